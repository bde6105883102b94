"""What a fleet says about each task and about the whole."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, computed_field

from ...actors.tools.redaction import redact
from ...protocol.errors import UmbelError
from ...protocol.messages import Frozen, Text

Status = Literal["ok", "failed", "cancelled", "invalid", "quarantined"]
SIGNAL_EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
_MAX_ERROR = 500


class TaskResult(Frozen):
    """One line of the results file.

    Attributes:
        id: the task's id.
        status: ``ok``; ``failed`` (the agent did not succeed); ``cancelled`` (stopped before its end); ``invalid``
            (the task line could not be read, nothing was run); ``quarantined`` (every attempt killed an actor, or was
            under way when one died: it is not tried again in this run).
        message: the agent's final answer.
        stop_reason: why the run ended, None when it never did.
        tokens: prompt and completion tokens of all attempts that reported any.
        cost_usd: price of all attempts, None when the model has no price.
        duration_s: seconds from the first attempt to the end, waits between attempts included.
        attempts: how often it was tried.
        error: one line, without secrets; None when all is well.
    """

    id: Text
    status: Status
    message: Text | None = None
    stop_reason: str | None = None
    tokens: int = 0
    cost_usd: float | None = None
    duration_s: float = 0.0
    attempts: int = 0
    error: Text | None = None

    def line(self) -> bytes:
        """The result as one line of JSON."""
        return self.__pydantic_serializer__.to_json(self) + b"\n"


class FleetReport(Frozen):
    """What a fleet did.

    Attributes:
        total: tasks that this run took, sum of the next five.
        ok, failed, cancelled, invalid, quarantined: how they ended.
        skipped: tasks that an earlier run had already finished (``resume``).
        retries: attempts beyond the first.
        duration_s: seconds from the first task to the last.
        rate: tasks per second.
        tokens: of all attempts.
        cost_usd: of all attempts, None when no model has a price.
        name: of the fleet, if it has one.
        out: the results file, or files.
        stopped: why the fleet was stopped before its end (``SIGINT``, ``SIGTERM``, ``cancelled``, ``deadline``,
            ``budget_tokens``, ``budget_cost_usd``, ``budget_seconds``...), or None.
        failures: the first 20 results that are not ok.
        results: every result in the order of the tasks; empty when they were not kept.
    """

    total: int = 0
    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    invalid: int = 0
    quarantined: int = 0
    skipped: int = 0
    retries: int = 0
    duration_s: float = 0.0
    rate: float = 0.0
    tokens: int = 0
    cost_usd: float | None = None
    name: str | None = None
    out: str | None = None
    stopped: str | None = None
    failures: tuple[TaskResult, ...] = ()
    results: tuple[TaskResult, ...] = Field(default=(), repr=False)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exit_code(self) -> int:
        """0 all ok, 1 some not, 130 and 143 after SIGINT and SIGTERM."""
        if self.stopped is not None:
            return SIGNAL_EXIT_CODES.get(self.stopped, 1)
        return 0 if self.ok == self.total else 1

    def to_json(self, *, indent: int | None = None) -> str:
        """The report as JSON, without the kept results."""
        return self.model_dump_json(exclude={"results"}, indent=indent)


class FleetInterrupted(KeyboardInterrupt):
    """Ctrl-C while ``Fleet.run_sync`` was at work. Everything that was finished is in ``report`` and in its file."""

    def __init__(self, report: FleetReport) -> None:
        super().__init__(resume_advice(report))
        self.report = report


def resume_advice(report: FleetReport) -> str:
    """What is done and how to go on, for someone who stopped a fleet."""
    done = f"stopped after {report.total - report.cancelled:,} tasks ({report.cancelled:,} cancelled)"
    if report.stopped == "deadline":
        done = f"the deadline has passed: {done}"
    elif report.stopped is not None and report.stopped.startswith("budget_"):
        done = f"the budget ({report.stopped.removeprefix('budget_')}) is used up: {done}"
    if report.name is not None:
        return f"{done}; results so far are kept as fleet {report.name!r}; run again with resume to go on"
    if report.out is None:
        return f"{done}; give results a file to be able to resume"
    with_more = " and more of it" if (report.stopped or "").startswith("budget_") else ""
    return f"{done}; results so far are in {report.out}; run again with resume{with_more} to go on"


def one_line(text: str) -> str:
    """``text`` as one line of at most 500 characters without secrets."""
    line = redact(" ".join(text[: 4 * _MAX_ERROR].split()))
    return line if len(line) <= _MAX_ERROR else line[: _MAX_ERROR - 3] + "..."


def describe_error(error: Any) -> str | None:
    """An exception, an error on the wire, or text, as one line with its code or class first."""
    if error is None:
        return None
    if isinstance(error, UmbelError):
        return one_line(f"{error.code}: {error.message}")
    if isinstance(error, BaseException):
        return one_line(f"{type(error).__name__}: {error}")
    code, message = getattr(error, "code", None), getattr(error, "message", None)
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
    return one_line(f"{code}: {message}" if code else str(message or error))
