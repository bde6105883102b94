"""Stop conditions of the user's own, and how they combine: ``(ToolCalled("refund") & ConfidenceMet(0.9)) | MaxIterations(8)``.

The loop checks the configured condition at the top of every iteration, on a copy of its own, before the built-in stops and
in addition to them. Conditions are picklable; a copy starts afresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any

from .errors import ConfigurationError
from .markers import is_request
from .state import AgentState

__all__ = [
    "And", "ConfidenceMet", "CostLimit", "CustomCondition", "MaxIterations", "NoToolCalls", "Not", "Or",
    "TerminationCondition", "TextMention", "TimeLimit", "TokenLimit", "ToolCallCount", "ToolCalled", "Verdict",
]  # fmt: skip

Verdict = tuple[bool, str | None]
_GO_ON: Verdict = (False, None)


class TerminationCondition:
    """Base of all conditions. Subclasses override :meth:`check`, and :meth:`reset` if they remember anything."""

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """Whether the run must stop now, and the reason to report.

        Args:
            state: the run's state at the top of an iteration.
            **context: ``last_message`` (text of the last reply, empty if none), ``no_tool_calls`` (whether that reply
                called nothing), and ``clock`` (seconds, monotonic) where the runtime brings its own.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forget what earlier checks remembered."""

    def carry_on(self, elapsed: float) -> None:
        """Count ``elapsed`` seconds as already spent: the turn goes on in another segment."""

    def __and__(self, other: object) -> And:
        return And(self, other) if isinstance(other, TerminationCondition) else NotImplemented

    def __or__(self, other: object) -> Or:
        return Or(self, other) if isinstance(other, TerminationCondition) else NotImplemented

    def __invert__(self) -> Not:
        return Not(self)


class _Composite(TerminationCondition):
    """A condition made of others."""

    def __init__(self, *children: TerminationCondition) -> None:
        if not children:
            raise ConfigurationError(f"{type(self).__name__} needs at least one condition")
        for child in children:
            if not isinstance(child, TerminationCondition):
                raise ConfigurationError(f"{type(self).__name__} combines termination conditions, not {child!r}")
        self.children = children

    def reset(self) -> None:
        for child in self.children:
            child.reset()

    def carry_on(self, elapsed: float) -> None:
        for child in self.children:
            child.carry_on(elapsed)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), self.children))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.children))})"


class Or(_Composite):
    """Stops with the first child, from the left, that stops; those after it are not asked."""

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        for child in self.children:
            stop, reason = child.check(state, **context)
            if stop:
                return True, reason
        return _GO_ON


class And(_Composite):
    """Stops when every child stops; the reasons are joined with ``" AND "``. The first that does not ends the check."""

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        reasons = []
        for child in self.children:
            stop, reason = child.check(state, **context)
            if not stop:
                return _GO_ON
            if reason:
                reasons.append(reason)
        return True, " AND ".join(reasons) or "all_conditions_met"


class Not(_Composite):
    """Stops while its child does not."""

    def __init__(self, child: TerminationCondition) -> None:
        super().__init__(child)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        (child,) = self.children
        return _GO_ON if child.check(state, **context)[0] else (True, f"not:{child!r}")


@dataclass(frozen=True)
class MaxIterations(TerminationCondition):
    """Stops after ``n`` iterations."""

    n: int

    def __post_init__(self) -> None:
        _whole(self, "n", self.n)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        return (True, "max_iterations") if state.iteration >= self.n else _GO_ON


@dataclass(frozen=True)
class TokenLimit(TerminationCondition):
    """Stops once ``n`` tokens (prompt plus completion) are used."""

    n: int

    def __post_init__(self) -> None:
        _whole(self, "n", self.n)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        return (True, "token_budget") if state.total_tokens_used >= self.n else _GO_ON


@dataclass(frozen=True)
class CostLimit(TerminationCondition):
    """Stops once ``usd`` are spent; a model without a price costs nothing here."""

    usd: float

    def __post_init__(self) -> None:
        _positive(self, "usd", self.usd)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        return (True, "cost_budget") if state.cost_usd_used >= self.usd else _GO_ON


@dataclass
class TimeLimit(TerminationCondition):
    """Stops ``seconds`` after its first check.

    Args:
        seconds: how long.
        clock: monotonic seconds; the runtime's clock, or the machine's, when None.
    """

    seconds: float
    clock: Callable[[], float] | None = field(default=None, repr=False)
    _started: float | None = field(default=None, init=False, repr=False, compare=False)
    _spent: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _positive(self, "seconds", self.seconds)

    def __hash__(self) -> int:
        return hash((TimeLimit, self.seconds))

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        now = (self.clock or context.get("clock") or time.monotonic)()
        if self._started is None:
            self._started = now
        return (True, "time_budget") if self._spent + now - self._started >= self.seconds else _GO_ON

    def reset(self) -> None:
        """Start again with the next check."""
        self._started, self._spent = None, 0.0

    def carry_on(self, elapsed: float) -> None:
        """See the base class."""
        self._started, self._spent = None, elapsed

    def __getstate__(self) -> dict[str, Any]:
        # A monotonic time means nothing in another process, and a copy belongs to another run.
        return {**self.__dict__, "_started": None, "_spent": 0.0}


@dataclass(frozen=True)
class TextMention(TerminationCondition):
    """Stops when the last reply of this turn contains ``text``."""

    text: str
    case_sensitive: bool = False

    def __post_init__(self) -> None:
        _name(self, "text", self.text)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        reply = context.get("last_message") or _newest_reply(state)
        found = self.text in reply if self.case_sensitive else self.text.casefold() in reply.casefold()
        return (True, f"text_mention:{self.text}") if found else _GO_ON


@dataclass(frozen=True)
class ToolCalled(TerminationCondition):
    """Stops after a call of the tool in this turn; with ``require_success``, after one that ran and gave a result."""

    name: str
    require_success: bool = False

    def __post_init__(self) -> None:
        _name(self, "name", self.name)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        for done in state.tool_executions:
            if done.tool_name == self.name and (done.success or not self.require_success):
                return True, f"tool_called:{self.name}"
        return _GO_ON


@dataclass(frozen=True)
class ToolCallCount(TerminationCondition):
    """Stops after ``n`` tool calls in this turn, of the tool ``name`` or (None) of any. A cap: no success."""

    n: int
    name: str | None = None

    def __post_init__(self) -> None:
        _whole(self, "n", self.n)
        if self.name is not None:
            _name(self, "name", self.name)

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        history = state.tool_history
        count = len(history) if self.name is None else history.count(self.name)
        reason = "tool_call_limit" if self.name is None else f"tool_call_limit:{self.name}"
        return (True, reason) if count >= self.n else _GO_ON


@dataclass(frozen=True)
class ConfidenceMet(TerminationCondition):
    """Stops at this confidence."""

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not _is_number(self.threshold) or not 0 <= self.threshold <= 1:
            raise ConfigurationError(f"ConfidenceMet: threshold must be a number from 0 to 1, not {self.threshold!r}")

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        return (True, "confidence_met") if state.confidence >= self.threshold else _GO_ON


@dataclass(frozen=True)
class NoToolCalls(TerminationCondition):
    """Stops after a reply that calls nothing (in auto mode such a reply ends the run by itself)."""

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        return (True, "no_tools") if context.get("no_tool_calls") else _GO_ON


@dataclass(frozen=True)
class CustomCondition(TerminationCondition):
    """Stops when ``fn(state, **context)`` says so; it returns ``(stop, reason or None)`` and no reason means ``complete``."""

    fn: Callable[..., Verdict]

    def __post_init__(self) -> None:
        fn: Any = self.fn
        if not callable(fn) or iscoroutinefunction(fn):
            raise ConfigurationError(f"CustomCondition: fn must be a plain (not async) callable, not {self.fn!r}")

    def check(self, state: AgentState, **context: Any) -> Verdict:
        """See the base class."""
        verdict: Any = self.fn(state, **context)
        match verdict:
            case (bool() as stop, str() | None as reason):
                return (True, reason or "complete") if stop else _GO_ON
        raise ConfigurationError(f"CustomCondition: {self.fn!r} must return (bool, reason or None), not {verdict!r}")


def _newest_reply(state: AgentState) -> str:
    """The newest text of the model in this turn; an earlier turn's reply is not this turn's."""
    for message in reversed(state.messages):
        if message.role == "assistant" and message.content:
            return message.content
        if is_request(message):
            break
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _whole(condition: TerminationCondition, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{type(condition).__name__}: {name} must be a whole number of at least 1, not {value!r}")


def _positive(condition: TerminationCondition, name: str, value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise ConfigurationError(f"{type(condition).__name__}: {name} must be a number above 0, not {value!r}")


def _name(condition: TerminationCondition, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{type(condition).__name__}: {name} must be a text that is not empty, not {value!r}")
