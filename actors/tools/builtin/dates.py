"""``get_today_date``: models do not know what day it is, and are bad at counting days (TOOL-34)."""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from ..decorator import Tool, tool

Clock = Callable[[], datetime]


def local_now() -> datetime:
    """The time, in the time zone of the machine that the tool runs on."""
    return datetime.now(UTC).astimezone()


def today_tool(clock: Clock = local_now) -> Tool:
    """The tool ``get_today_date``.

    Args:
        clock: gives the time, aware of its time zone. It travels to the executor, so it must be picklable.
    """

    @tool(idempotent=True)
    async def get_today_date() -> dict[str, str | int]:
        """Get today's date and the days around it: yesterday, tomorrow, this week, month, quarter and year."""
        return calendar_of(clock())

    return get_today_date


def calendar_of(now: datetime) -> dict[str, str | int]:
    """The dates that questions about time are made of. Dates are ISO 8601; weeks begin on Monday."""
    today = now.date()
    monday = today - timedelta(days=today.weekday())
    first = today.replace(day=1)
    quarter = (today.month - 1) // 3
    year, week, _ = today.isocalendar()
    return {
        "today": today.isoformat(),
        "weekday": calendar.day_name[today.weekday()],
        "utc_offset": now.strftime("%z"),
        "yesterday": _shifted(today, days=-1),
        "tomorrow": _shifted(today, days=1),
        "days_ago_7": _shifted(today, days=-7),
        "days_ago_30": _shifted(today, days=-30),
        "days_ahead_7": _shifted(today, days=7),
        "days_ahead_30": _shifted(today, days=30),
        "iso_week": f"{year}-W{week:02}",
        "week_start": monday.isoformat(),
        "week_end": _shifted(monday, days=6),
        "month_start": first.isoformat(),
        "month_end": last_day(first).isoformat(),
        "previous_month_start": _month(first, -1).isoformat(),
        "previous_month_end": _shifted(first, days=-1),
        "next_month_start": _month(first, 1).isoformat(),
        "quarter": quarter + 1,
        "quarter_start": date(today.year, 3 * quarter + 1, 1).isoformat(),
        "quarter_end": last_day(date(today.year, 3 * quarter + 3, 1)).isoformat(),
        "year_start": date(today.year, 1, 1).isoformat(),
        "year_end": date(today.year, 12, 31).isoformat(),
        "day_of_year": today.timetuple().tm_yday,
    }


def last_day(day: date) -> date:
    """The last day of its month."""
    return day.replace(day=calendar.monthrange(day.year, day.month)[1])


def _month(first: date, by: int) -> date:
    years, month = divmod(first.month - 1 + by, 12)
    return first.replace(year=first.year + years, month=month + 1)


def _shifted(day: date, days: int) -> str:
    return (day + timedelta(days=days)).isoformat()


get_today_date = today_tool()
