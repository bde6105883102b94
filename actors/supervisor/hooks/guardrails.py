"""Guardrails: rules on prompts, tool calls and tool results, each with an action of its own.

| rule | looks at | default action |
| --- | --- | --- |
| ``prompt:length`` | the prompt's length | block |
| ``prompt:sql``, ``prompt:path_traversal`` | the prompt's first 8 KiB | warn |
| ``prompt:shell`` | the same, for shell characters | allow (off) |
| ``prompt:email``, ``phone``, ``ssn``, ``card`` | the prompt | warn |
| ``prompt:ip`` | the prompt | allow (off) |
| ``tool:blocklist``, ``tool:allowlist`` | the tool's name | block |
| ``arguments:path_traversal`` | texts in arguments, at any depth | block |
| ``arguments:sql`` | the same | warn |
| ``arguments:shell``, ``arguments:ip`` | the same | allow (off) |
| ``arguments:email``, ``phone``, ``ssn``, ``card`` | the same | warn |
| ``result:length`` | the result's length | warn |
| ``result:email``, ``phone``, ``ssn``, ``card`` | the result | warn |
| ``result:ip`` | the result | allow (off) |

``block`` refuses the prompt (:class:`GuardrailViolation`), cancels the tool call with a reason that the model reads, or puts
a notice in place of the result. ``warn`` only records. ``redact`` (rules on personal data) masks what was found: in the
conversation, in the arguments at any depth, in the result. ``allow`` switches the rule off.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ....protocol.errors import ConfigurationError, GuardrailViolation
from ....protocol.events import CustomEvent
from ....protocol.markers import is_request
from ....protocol.messages import Frozen
from .base import Hook, PerRun, Priority
from .patterns import ATTACKS, PII, find_pii, redact_pii, redact_value, texts_of

if TYPE_CHECKING:
    from ....protocol.state import AgentState
    from .events import AfterToolCall, BeforeToolCall

logger = logging.getLogger("umbel.guardrails")

Action = Literal["block", "warn", "redact", "allow"]
ACTIONS: tuple[Action, ...] = ("block", "warn", "redact", "allow")
METADATA_KEY = "guardrail_violations"
SCANNED_CHARS = 8_192
BLOCKED_TOOLS = frozenset({"eval", "exec", "system", "shell", "rm", "delete", "drop", "truncate"})
_PII_DEFAULTS: dict[str, Action] = {kind: "allow" if kind == "ip" else "warn" for kind in PII}
RULES: dict[str, Action] = {
    "prompt:length": "block",
    "prompt:sql": "warn",
    "prompt:path_traversal": "warn",
    "prompt:shell": "allow",
    "tool:blocklist": "block",
    "tool:allowlist": "block",
    "arguments:sql": "warn",
    "arguments:path_traversal": "block",
    "arguments:shell": "allow",
    "result:length": "warn",
    **{f"{where}:{kind}": action for where in ("prompt", "arguments", "result") for kind, action in _PII_DEFAULTS.items()},
}


class Violation(Frozen):
    """A rule was broken. What exactly was found is not part of it, so that it can be logged.

    Attributes:
        rule: see the module's table.
        action: what was done about it.
        run_id: in which run.
        tool_name: at which tool, or None for the prompt.
        detail: the facts, in words.
    """

    rule: str
    action: Action
    run_id: str = ""
    tool_name: str | None = None
    detail: str = ""


class GuardrailsHook(Hook):
    """Applies the rules of the module's table. The defaults let ordinary prompts pass.

    Every violation is logged, given to ``on_violation`` and, at tool calls, emitted as a custom event ``guardrail_violation``;
    those of the prompt are also in ``state.metadata["guardrail_violations"]``.

    Args:
        actions: other actions, by rule: ``{"prompt:email": "block", "arguments:shell": "warn"}``.
        max_prompt_length: characters.
        max_result_length: characters.
        blocked_tools: names, compared without case.
        allowed_tools: the only tools that may be called; None allows all.
        on_violation: called with each :class:`Violation`, in the supervisor's process; may be async.

    Raises:
        ConfigurationError: an unknown rule or action; the message has the nearest known one.

    Source: HOOK-36 to HOOK-39.
    """

    priority = Priority.SECURITY

    def __init__(
        self,
        *,
        actions: Mapping[str, Action] | None = None,
        max_prompt_length: int = 100_000,
        max_result_length: int = 50_000,
        blocked_tools: Collection[str] = BLOCKED_TOOLS,
        allowed_tools: Collection[str] | None = None,
        on_violation: Callable[[Violation], Any] | None = None,
    ) -> None:
        self.actions = {**RULES, **_checked(actions or {})}
        self.max_prompt_length = max_prompt_length
        self.max_result_length = max_result_length
        self.blocked_tools = frozenset(name.casefold() for name in blocked_tools)
        self.allowed_tools = None if allowed_tools is None else frozenset(allowed_tools)
        self.on_violation = on_violation
        self._violations: PerRun[list[Violation]] = PerRun(list, limit=1_000)

    def violations(self, run_id: str) -> tuple[Violation, ...]:
        """What this process's instance found in the run (of the last 1,000 runs that broke a rule)."""
        return tuple(self._violations.get(run_id) or ())

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        broken = self._in_text("prompt", prompt, self.max_prompt_length)
        found = [self._violation(state.run_id, None, *rule) for rule in broken]
        await self._record(found)
        for violation in found:
            if violation.action == "block":
                raise GuardrailViolation(f"the prompt was refused: {violation.detail} ({violation.rule})", rule=violation.rule)
        if found:
            state = state.with_metadata(METADATA_KEY, [violation.model_dump() for violation in found])
        kinds = _redacted(found)
        return _with_redacted_request(state, prompt, kinds) if kinds else state

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        found = [self._violation(event.run_id, event.tool_name, *rule) for rule in self._in_call(event)]
        await self._record(found, event)
        for violation in found:
            if violation.action == "block":
                event.cancel = f"{event.tool_name} was not run: {violation.detail} ({violation.rule})"
                return
        kinds = _redacted(found)
        if kinds:
            event.arguments = redact_value(event.arguments, kinds)

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        if event.result is None:
            return
        text = event.result if isinstance(event.result, str) else str(event.result)
        broken = self._in_text("result", text, self.max_result_length)
        found = [self._violation(event.run_id, event.tool_name, *rule) for rule in broken]
        await self._record(found, event)
        for violation in found:
            if violation.action == "block":
                event.result = f"The result of {event.tool_name} is withheld: {violation.detail} ({violation.rule})"
                return
        kinds = _redacted(found)
        if kinds:
            event.result = redact_pii(text, kinds)[0] if isinstance(event.result, str) else redact_value(event.result, kinds)

    # finding

    def _on(self, rule: str) -> bool:
        return self.actions[rule] != "allow"

    def _in_text(self, where: str, text: str, limit: int) -> Iterator[tuple[str, str]]:
        if len(text) > limit and self._on(f"{where}:length"):
            yield f"{where}:length", f"it has {len(text)} characters, {limit} are allowed"
        if where == "prompt":
            yield from self._attacks(where, text)
        yield from self._pii(where, text)

    def _in_call(self, event: BeforeToolCall) -> Iterator[tuple[str, str]]:
        if event.tool_name.casefold() in self.blocked_tools and self._on("tool:blocklist"):
            yield "tool:blocklist", "this tool is blocked"
        if self.allowed_tools is not None and event.tool_name not in self.allowed_tools and self._on("tool:allowlist"):
            yield "tool:allowlist", "only listed tools are allowed"
        text = "\n".join(texts_of(event.arguments))
        yield from self._attacks("arguments", text)
        yield from self._pii("arguments", text)

    def _attacks(self, where: str, text: str) -> Iterator[tuple[str, str]]:
        scanned = text[:SCANNED_CHARS] if where == "prompt" else text
        for name, pattern in ATTACKS.items():
            if self._on(f"{where}:{name}") and pattern.search(scanned):
                yield f"{where}:{name}", f"it matches the pattern {name!r}"

    def _pii(self, where: str, text: str) -> Iterator[tuple[str, str]]:
        for kind in PII:
            count = sum(1 for _ in find_pii(kind, text)) if self._on(f"{where}:{kind}") else 0
            if count:
                yield f"{where}:{kind}", f"it holds personal data ({kind}, {count} times)"

    # telling

    def _violation(self, run_id: str, tool_name: str | None, rule: str, detail: str) -> Violation:
        return Violation(rule=rule, action=self.actions[rule], run_id=run_id, tool_name=tool_name, detail=detail)

    async def _record(self, found: list[Violation], event: BeforeToolCall | AfterToolCall | None = None) -> None:
        for violation in found:
            self._violations[violation.run_id].append(violation)
            logger.info("run %s: guardrail %s (%s): %s", violation.run_id, violation.rule, violation.action, violation.detail)
            if event is not None and event.run is not None:
                event.emit(CustomEvent(name="guardrail_violation", data=violation.model_dump()))
            if self.on_violation is not None:
                returned = self.on_violation(violation)
                if inspect.isawaitable(returned):
                    await returned


def _checked(actions: Mapping[str, Action]) -> dict[str, Action]:
    for rule, action in actions.items():
        if rule not in RULES:
            close = difflib.get_close_matches(rule, RULES, n=1, cutoff=0.5) or [r for r in RULES if r.endswith(f":{rule}")][:1]
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"there is no guardrail rule {rule!r}{hint} Rules: {', '.join(sorted(RULES))}")
        if action not in ACTIONS:
            raise ConfigurationError(f"guardrail rule {rule!r}: the action is one of {', '.join(ACTIONS)}, not {action!r}")
        if action == "redact" and rule.partition(":")[2] not in PII:
            raise ConfigurationError(f"guardrail rule {rule!r}: only personal data can be redacted; use block, warn or allow")
    return dict(actions)


def _redacted(found: list[Violation]) -> list[str]:
    return [violation.rule.partition(":")[2] for violation in found if violation.action == "redact"]


def _with_redacted_request(state: AgentState, prompt: str, kinds: list[str]) -> AgentState:
    """The state with the newest request masked, which is the prompt."""
    messages = list(state.messages)
    for index in range(len(messages) - 1, -1, -1):
        if is_request(messages[index]) and messages[index].content == prompt:
            messages[index] = messages[index].evolve(content=redact_pii(prompt, kinds)[0])
            return state.evolve(messages=tuple(messages))
    raise GuardrailViolation(
        "the prompt holds personal data that must be redacted, but another hook changed it first; "
        "give GuardrailsHook the lowest priority",
        rule=f"prompt:{kinds[0]}",
    )
