"""What day it is, and the days around it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, strategies as st

from umbel import get_today_date
from umbel.actors.tools.builtin.dates import calendar_of, last_day, local_now, today_tool
from umbel.actors.tools.invoke import invoke

Make = Callable[..., Any]


@pytest.mark.spec("TOOL-34")
async def test_the_tool_reads_its_clock(request_for: Make) -> None:
    def clock() -> datetime:
        return datetime(2024, 2, 29, 23, 59, tzinfo=timezone(timedelta(hours=9)))

    frozen = today_tool(clock)
    assert frozen.idempotent and frozen.name == "get_today_date" and not frozen.parameters["properties"]
    for each in (frozen, pickle.loads(cloudpickle.dumps(frozen))):
        days = json.loads((await invoke(*request_for(each))).content)
        assert days["today"] == "2024-02-29" and days["weekday"] == "Thursday" and days["utc_offset"] == "+0900"


async def test_by_default_it_is_the_machines_own_time(request_for: Make) -> None:
    before = local_now().date()
    days = json.loads((await invoke(*request_for(get_today_date))).content)
    assert before <= date.fromisoformat(days["today"]) <= local_now().date()
    assert local_now().tzinfo is not None


@pytest.mark.spec("TOOL-34")
def test_a_leap_day() -> None:
    assert calendar_of(datetime(2024, 2, 29, tzinfo=UTC)) == {
        "today": "2024-02-29",
        "weekday": "Thursday",
        "utc_offset": "+0000",
        "yesterday": "2024-02-28",
        "tomorrow": "2024-03-01",
        "days_ago_7": "2024-02-22",
        "days_ago_30": "2024-01-30",
        "days_ahead_7": "2024-03-07",
        "days_ahead_30": "2024-03-30",
        "iso_week": "2024-W09",
        "week_start": "2024-02-26",
        "week_end": "2024-03-03",
        "month_start": "2024-02-01",
        "month_end": "2024-02-29",
        "previous_month_start": "2024-01-01",
        "previous_month_end": "2024-01-31",
        "next_month_start": "2024-03-01",
        "quarter": 1,
        "quarter_start": "2024-01-01",
        "quarter_end": "2024-03-31",
        "year_start": "2024-01-01",
        "year_end": "2024-12-31",
        "day_of_year": 60,
    }


@pytest.mark.spec("TOOL-34")
@given(st.dates(date(1900, 1, 1), date(2199, 12, 1)))
def test_every_day_lies_in_its_own_spans(today: date) -> None:
    now = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
    days = {name: date.fromisoformat(str(value)) for name, value in calendar_of(now).items() if _is_date(value)}
    day = timedelta(days=1)
    for span in ("week", "month", "quarter", "year"):
        assert days[f"{span}_start"] <= today <= days[f"{span}_end"]
    assert (days["week_start"].weekday(), days["week_end"].weekday()) == (0, 6)
    assert days["month_end"] + day == days["next_month_start"]
    assert days["previous_month_end"] + day == days["month_start"]
    assert days["previous_month_start"].day == 1
    assert last_day(days["previous_month_start"]) == days["previous_month_end"]
    assert (days["quarter_end"] + day).day == 1


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 10 and value[4] == value[7] == "-"
