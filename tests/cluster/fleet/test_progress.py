from __future__ import annotations

import io
from typing import Any

import pytest

from umbel.cluster.fleet.progress import RateMeter, Snapshot, _LogLines, choose_reporter, describe, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_line_every_five_seconds_and_a_last_one() -> None:
    now = 0.0
    stream = io.StringIO()
    lines = _LogLines(stream, clock=lambda: now)
    for _ in range(100):
        now += 0.25
        lines.update(Snapshot(total=10, done=3, ok=2, failed=1, rate=2.0, eta_s=3.5, tokens=1234, cost_usd=0.5))
    lines.close(Snapshot(total=10, done=10, ok=10))
    text = stream.getvalue().splitlines()
    assert len(text) == 6
    assert text[0] == "fleet: 3/10, 2.0/s, ETA 4s, 0 running, 1 failed, 1,234 tokens, $0.5000"
    assert text[-1].startswith("fleet: 10/10")


def test_a_terminal_gets_a_bar_with_the_same_facts() -> None:
    terminal = Terminal()
    reporter = choose_reporter(True, terminal)
    reporter.update(Snapshot(total=10, done=3, failed=1, rate=2.0))
    reporter.close(Snapshot(total=None, done=4, rate=2.0))
    assert "3/10" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_no_progress_and_own_functions() -> None:
    seen: list[Any] = []
    choose_reporter(False).update(Snapshot())
    reporter = choose_reporter(seen.append)
    reporter.update(Snapshot(done=1))
    reporter.close(Snapshot(done=2))
    assert [snapshot.done for snapshot in seen] == [1, 2]


def test_an_unknown_total_is_not_invented() -> None:
    assert describe(Snapshot(done=5, skipped=2)).startswith("7 done, ")


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    meter = RateMeter()
    for second in range(61):
        rate = meter.rate(float(second), second if second < 30 else 30 + (second - 30) * 10)
    assert rate == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59.4, "59s"), (61, "1m01s"), (3725, "1h02m"), (360000, "100h00m")])
def test_durations(seconds: Any, text: Any) -> None:
    assert duration(seconds) == text


def test_a_line_says_what_a_fleet_waits_for_and_what_it_may_still_use() -> None:
    line = describe(Snapshot(total=10, done=1, running=9, waiting=7, deadline_s=3_700, budget="40% of 1,000 tokens"))
    assert "deadline in 1h01m, 9 running, 7 waiting for rate limits, 0 failed" in line
    assert line.endswith("budget: 40% of 1,000 tokens")
    assert "waiting" not in describe(Snapshot(waiting=0)) and "deadline" not in describe(Snapshot())
