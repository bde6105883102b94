"""What the members of a pattern did: a table, one row a step, with the steps of a member that is a pattern below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...protocol.patterns import MemberResult

SHOWN = 30  # steps of one pattern
WHY = 80  # characters


def member_table(members: Iterable[MemberResult]) -> str:
    """The table, for people."""
    from .thread_views import table

    return table(("step", "status", "calls", "tokens", "seconds", "why"), list(_rows(list(members), "")))


def member_facts(members: Iterable[MemberResult]) -> list[dict[str, Any]]:
    """The same as JSON values, every step, whole; the keys are stable."""
    return [
        {
            "step": done.step,
            "member": done.member,
            "status": done.status,
            "stop_reason": done.stop_reason,
            "text": done.text,
            "value": done.value,
            "error": done.error,
            "cached": done.cached,
            "duration_ms": done.duration_ms,
            "metrics": done.metrics.model_dump(mode="json"),
            "members": member_facts(done.members),
        }
        for done in members
    ]


def _rows(members: list[MemberResult], indent: str) -> Iterator[tuple[str, ...]]:
    from .thread_views import printable

    for done in members[:SHOWN]:
        spent = done.metrics
        status = "cached" if done.cached else done.status
        numbers = (f"{spent.model_calls:,}", f"{spent.total_tokens:,}", f"{done.duration_ms / 1e3:,.1f}")
        yield (f"{indent}{printable(done.step)}", status, *numbers, printable(done.problem)[:WHY])
        yield from _rows(list(done.members), f"{indent}  ")
    more = members[SHOWN:]
    if more:
        failed = sum(not done.success for done in more)
        yield (f"{indent}and {len(more):,} more", f"{failed:,} failed" if failed else "", "", "", "", "")
