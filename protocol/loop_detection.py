"""One rule that says whether a run goes round in circles: the same calls, with the same arguments, giving the same results.

Pure functions over reasoning steps. Steps that differ are told apart by names and lengths first; arguments are written as
JSON, and digests computed, only for steps that may really be equal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Protocol

from .messages import ToolCall, ToolResult

MAX_PERIOD = 3
READ_ONLY_TOOLS = frozenset(
    [
        "read",
        "read_file",
        "view",
        "cat",
        "ls",
        "list_dir",
        "list_directory",
        "list_files",
        "glob",
        "grep",
        "find_files",
        "search_files",
        "todo_read",
    ]
)
_Row = tuple[str, str, str | None, str | None]
StepIdentity = tuple[tuple[str, str, str], ...]


class Step(Protocol):
    """What the rule reads of a reasoning step."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the step."""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Their results."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The newest steps repeat.

    Attributes:
        signature: names the repeated calls; the same whichever step of the cycle came last.
        period: how many steps repeat (1 to 3).
        repeats: how many times they were seen back to back, the newest included.
        threshold: how many times count as a loop.
        tools: names of the tools called, sorted.
    """

    signature: str
    period: int
    repeats: int
    threshold: int
    tools: tuple[str, ...]

    @property
    def past_warning(self) -> bool:
        """It went on after the repeat that earns a warning: time to stop."""
        return self.repeats > self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for events."""
        return {**asdict(self), "tools": list(self.tools)}


def step_identity(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> StepIdentity:
    """What makes two steps equal: the sorted set of (name, canonical JSON arguments, digest of result and error).

    Equal calls within a step count once, their order does not matter, and a step without calls is ``()``.
    """
    return tuple(
        sorted(
            {
                (name, arguments, _hash((content or "", error or "")))
                for name, arguments, content, error in _pair(calls, results)
            }
        )
    )


def find_loop(
    steps: Sequence[Step],
    threshold: int = 3,
    read_only_threshold: int | None = None,
    read_only_tools: Collection[str] = (),
) -> Loop | None:
    """The loop that ends at the newest step, or None.

    The last one, two or three steps (distinct ones when more than one) were repeated back to back at least ``threshold``
    times; the shortest period wins. Steps that call only ``read_only_tools`` need ``read_only_threshold`` (one more than
    ``threshold`` when None): reading the same thing again is how one waits.

    Args:
        steps: oldest first; a step without calls breaks any streak.
        threshold: repeats that count as a loop, at least 2.
        read_only_threshold: the same for steps that only read.
        read_only_tools: names of tools that only read.
    """
    if read_only_threshold is None:
        read_only_threshold = threshold + 1
    needed = min(threshold, read_only_threshold)
    rows: dict[int, frozenset[_Row]] = {}
    for period in range(1, MAX_PERIOD + 1):
        if len(steps) < period * needed:
            return None
        repeats = _repeats(steps, period, rows)
        if repeats < needed:
            continue
        unit = [_rows(steps, index, rows) for index in range(len(steps) - period, len(steps))]
        if len(set(unit)) < period:
            continue
        tools = sorted({name for step in unit for name, *_ in step})
        limit = read_only_threshold if all(name in read_only_tools for name in tools) else threshold
        if repeats >= limit:
            newest = steps[len(steps) - period :]
            signature = _signature([step_identity(step.tool_calls, step.tool_results) for step in newest])
            return Loop(signature, period, repeats, limit, tuple(tools))
    return None


def _repeats(steps: Sequence[Step], period: int, rows: dict[int, frozenset[_Row]]) -> int:
    """How many times the last ``period`` steps stand back to back at the end; 0 when one of them called nothing."""
    if not all(step.tool_calls for step in steps[len(steps) - period :]):
        return 0
    index = len(steps) - period - 1
    while index >= 0 and _equal(steps, index, index + period, rows):
        index -= 1
    return (len(steps) - 1 - index) // period


def _equal(steps: Sequence[Step], first: int, second: int, rows: dict[int, frozenset[_Row]]) -> bool:
    one, other = steps[first], steps[second]
    if {call.name for call in one.tool_calls} != {call.name for call in other.tool_calls}:
        return False
    if {len(result.content) for result in one.tool_results} != {len(result.content) for result in other.tool_results}:
        return False
    if {result.content for result in one.tool_results} != {result.content for result in other.tool_results}:
        return False
    return _rows(steps, first, rows) == _rows(steps, second, rows)


def _rows(steps: Sequence[Step], index: int, rows: dict[int, frozenset[_Row]]) -> frozenset[_Row]:
    """The step's identity before anything is digested."""
    known = rows.get(index)
    if known is None:
        step = steps[index]
        known = rows[index] = frozenset(_pair(step.tool_calls, step.tool_results))
    return known


def _pair(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> Iterator[_Row]:
    answers = {result.tool_call_id: result for result in results}
    for call in calls:
        answer = answers.get(call.id)
        yield call.name, _arguments(call), answer.content if answer else None, answer.error if answer else None


def _arguments(call: ToolCall) -> str:
    if call.malformed_arguments is not None:
        return call.malformed_arguments
    return json.dumps(call.arguments, sort_keys=True, separators=(",", ":"), default=str)


def _signature(unit: list[StepIdentity]) -> str:
    parts = [_hash(text for row in identity for text in row) for identity in unit]
    return _hash(min(parts[start:] + parts[:start] for start in range(len(parts))))


def _hash(texts: Iterable[str]) -> str:
    digest = blake2b(digest_size=8)
    for text in texts:
        blob = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(blob))
        digest.update(blob)
    return digest.hexdigest()
