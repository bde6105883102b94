"""The authoritative state of one run, as an immutable value.

Every ``with_*`` returns a new state and shares what did not change; values are trusted and never validated again, since
this is the loop's hot path. Nothing here reads a clock: pass ``now`` and the state is stamped with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite, isnan
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, PlainSerializer

from .codec import message_type
from .loop_detection import READ_ONLY_TOOLS, Loop, find_loop
from .markers import EPHEMERAL_KEYS, ITERATION_SAVES, is_durable
from .messages import (
    NOTHING,
    Frozen,
    Json,
    JsonObject,
    Message,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    clean_text,
    clean_value,
)
from .turn import PendingInterrupt, Turn

CompletionMode = Literal["auto", "explicit"]
# Sorted, so that equal states have equal bytes in every process.
Names = Annotated[frozenset[Text], PlainSerializer(sorted, return_type=list[str], when_used="json")]
TERMINAL_TOOLS = frozenset({"submit", "done", "finish", "complete"})
CHARS_PER_TOKEN = 4
CACHE_WRITE_PRICE = 1.25
CACHE_READ_PRICE = 0.1


class ToolExecution(Frozen):
    """One tool call as it was carried out.

    Attributes:
        tool_name: the tool.
        tool_call_id: the call.
        arguments: as recorded: after hook edits, without secrets.
        result: text for the model, or None.
        error: why it failed, or None.
        code: machine-readable kind of failure (``unknown_tool``, ``cancelled``...), or None.
        duration_ms: milliseconds spent in the body.
        timestamp: when it ended, UTC.
        idempotent_cache_hit: an earlier equal call's result was used; the body did not run.
    """

    tool_name: Text
    tool_call_id: Text
    arguments: JsonObject = NOTHING
    result: Text | None = None
    error: Text | None = None
    code: Text | None = None
    duration_ms: float = 0.0
    timestamp: AwareDatetime | None = None
    idempotent_cache_hit: bool = False

    @property
    def success(self) -> bool:
        """The body ran (now, or earlier for a cache hit) and gave a result; a call that a hook cancelled did not."""
        return self.error is None and self.code is None


class ReasoningStep(Frozen):
    """What one iteration thought and did.

    ``reflection`` and ``confidence_delta`` stay None and 0.0: a step is recorded before anything reflects on it.
    """

    iteration: int = 0
    thought: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    reflection: Text | None = None
    confidence_delta: float = 0.0
    timestamp: AwareDatetime | None = None


@message_type
class AgentState(Frozen):
    """Everything a run knows about itself. ``with_*`` methods give new values, nothing changes in place.

    Attributes:
        run_id: new for every turn, kept across pause and resume.
        agent_id: the agent, if it has an id.
        messages: the conversation, oldest first.
        iteration: iterations started in this turn; ``max_iterations`` is its limit.
        tool_executions: calls carried out in this turn, in call order; ``tool_history`` holds their names.
        reasoning_steps: one per iteration that executed calls.
        errors: texts of what went wrong in the run itself.
        confidence: 0 to 1; ``confidence_history`` holds every value it was set to.
        tool_loop_threshold: equal steps that count as a loop; ``tool_loop_read_only_threshold`` for steps that only
            read (None: one more).
        tool_loop_warnings: (signature, number of steps) of the loops already warned about.
        terminal_tools: a successful call of one of these ends the run.
        total_tokens_used: prompt plus completion tokens.
        cache_creation_tokens, cache_read_tokens: extra to the prompt tokens (Anthropic style).
        cached_tokens, cache_write_tokens: already inside the prompt tokens (OpenAI style).
        token_budget: stop at this many tokens (None or 0: no limit).
        reported_cost_usd, reported_cost_calls: the provider's own figures.
        input_price_per_million, output_price_per_million: US dollars; unknown is None.
        cost_usd_used: spend computed from the prices.
        cost_budget_usd: stop at this spend (None: no limit).
        turn: where the turn stands between its segments.
        completion_mode: ``explicit`` ignores replies without calls and confidence.
        provider_state: the provider's own continuation value.
        metadata: JSON values of the application; persisted. Ephemeral run metadata never gets here.
        started_at, updated_at: UTC, given by whoever runs the loop.
    """

    run_id: Text = ""
    agent_id: Text | None = None
    messages: tuple[Message, ...] = ()
    iteration: int = 0
    max_iterations: int = 20
    tool_executions: tuple[ToolExecution, ...] = ()
    reasoning_steps: tuple[ReasoningStep, ...] = ()
    tool_history: tuple[Text, ...] = ()
    errors: tuple[Text, ...] = ()
    confidence: float = 0.0
    confidence_threshold: float = 0.85
    confidence_history: tuple[float, ...] = ()
    tool_loop_threshold: int = 3
    tool_loop_read_only_threshold: int | None = None
    tool_loop_read_only_tools: Names = READ_ONLY_TOOLS
    tool_loop_warnings: tuple[tuple[str, int], ...] = ()
    terminal_tools: Names = TERMINAL_TOOLS
    total_tokens_used: int = 0
    prompt_tokens_used: int = 0
    completion_tokens_used: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    token_budget: int | None = None
    reported_cost_usd: float = 0.0
    reported_cost_calls: int = 0
    input_price_per_million: float | None = None
    output_price_per_million: float | None = None
    cost_usd_used: float = 0.0
    cost_budget_usd: float | None = None
    completion_mode: CompletionMode = "auto"
    turn: Turn = Turn()
    provider_state: Json = None
    metadata: JsonObject = NOTHING
    started_at: AwareDatetime | None = None
    updated_at: AwareDatetime | None = None

    # Updates

    def with_message(self, message: Message, *, now: datetime | None = None) -> Self:
        """Append one message."""
        return self._with(now, messages=(*self.messages, message))

    def with_messages(self, messages: Iterable[Message], *, now: datetime | None = None) -> Self:
        """Append messages in order."""
        return self._with(now, messages=(*self.messages, *messages))

    def with_iteration(self, iteration: int, *, now: datetime | None = None) -> Self:
        """Set the iteration."""
        return self._with(now, iteration=iteration)

    def next_iteration(self, *, now: datetime | None = None) -> Self:
        """Count one iteration more."""
        return self._with(now, iteration=self.iteration + 1)

    def with_provider_state(self, provider_state: Any, *, now: datetime | None = None) -> Self:
        """Replace the provider's continuation value."""
        return self._with(now, provider_state=clean_value(provider_state))

    def with_tool_execution(self, execution: ToolExecution, *, now: datetime | None = None) -> Self:
        """Append an execution, and its name to the tool history."""
        return self._with(
            now,
            tool_executions=(*self.tool_executions, execution),
            tool_history=(*self.tool_history, execution.tool_name),
        )

    def with_tool_results(
        self,
        executions: Sequence[ToolExecution],
        messages: Sequence[Message],
        step: ReasoningStep | None = None,
        *,
        now: datetime | None = None,
    ) -> Self:
        """Append a batch of executions, the messages that answer its calls, and the step that it was."""
        return self._with(
            now,
            reasoning_steps=self.reasoning_steps if step is None else (*self.reasoning_steps, step),
            tool_executions=(*self.tool_executions, *executions),
            tool_history=(*self.tool_history, *[execution.tool_name for execution in executions]),
            messages=(*self.messages, *messages),
        )

    def with_reasoning_step(self, step: ReasoningStep, *, now: datetime | None = None) -> Self:
        """Append a reasoning step."""
        return self._with(now, reasoning_steps=(*self.reasoning_steps, step))

    def with_confidence(self, confidence: float, *, now: datetime | None = None) -> Self:
        """Set the confidence, clamped to [0, 1]; not a number counts as 0."""
        value = min(1.0, max(0.0, confidence)) if not isnan(confidence) else 0.0
        return self._with(now, confidence=value, confidence_history=(*self.confidence_history, value))

    def adjust_confidence(self, delta: float, diminishing: bool = True, *, now: datetime | None = None) -> Self:
        """Add ``delta``. With ``diminishing`` a gain counts only for the part still missing to 1; a loss counts in full."""
        if diminishing and delta > 0:
            delta *= 1.0 - self.confidence
        return self.with_confidence(self.confidence + delta, now=now)

    def with_error(self, error: str, *, now: datetime | None = None) -> Self:
        """Append an error's text."""
        return self._with(now, errors=(*self.errors, clean_text(error)))

    def with_metadata(self, key: str, value: Any, *, now: datetime | None = None) -> Self:
        """Set one metadata key to a JSON value."""
        return self._with(now, metadata={**self.metadata, clean_text(key): clean_value(value)})

    def with_token_usage(self, usage: Usage, *, now: datetime | None = None) -> Self:
        """Add one model call's tokens, and what they cost if both prices are known."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        cost = self.cost_of(prompt, completion, usage.cache_creation_tokens, usage.cache_read_tokens)
        return self._with(
            now,
            total_tokens_used=self.total_tokens_used + prompt + completion,
            prompt_tokens_used=self.prompt_tokens_used + prompt,
            completion_tokens_used=self.completion_tokens_used + completion,
            cache_creation_tokens=self.cache_creation_tokens + usage.cache_creation_tokens,
            cache_read_tokens=self.cache_read_tokens + usage.cache_read_tokens,
            cached_tokens=self.cached_tokens + usage.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + usage.cache_write_tokens,
            cost_usd_used=self.cost_usd_used + (cost or 0.0),
        )

    def with_response_usage(
        self, usage: Usage | Mapping[str, Any] | None, cost_usd: Any = None, *, now: datetime | None = None
    ) -> Self:
        """Add what a reply reported.

        Args:
            usage: ``Usage``, or the provider's own object with the field names of ``Usage``; a value that is not a
                non-negative whole number counts as 0.
            cost_usd: the provider's own figure (or ``cost_usd`` inside ``usage``); ignored unless it is a number.
            now: the time to stamp.
        """
        state = self
        if isinstance(usage, Mapping):
            cost_usd = usage.get("cost_usd") if cost_usd is None else cost_usd
            usage = Usage(**{name: _count(usage.get(name)) for name in Usage.model_fields})
        if usage is not None:
            state = state.with_token_usage(usage, now=now)
        if isinstance(cost_usd, int | float) and not isinstance(cost_usd, bool) and isfinite(cost_usd) and cost_usd >= 0:
            total = state.reported_cost_usd + cost_usd
            state = state._with(now, reported_cost_usd=total, reported_cost_calls=state.reported_cost_calls + 1)
        return state

    def with_tool_loop_warning(self, signature: str) -> Self:
        """Remember that the loop with this signature was warned about (``updated_at`` stays as it is)."""
        return self.evolve(tool_loop_warnings=(*self.tool_loop_warnings, (signature, len(self.reasoning_steps))))

    def _with(self, now: datetime | None, **changes: Any) -> Self:
        return self.evolve(**changes) if now is None else self.evolve(**changes, updated_at=now)

    # Queries

    @property
    def interrupts(self) -> tuple[PendingInterrupt, ...]:
        """What the paused turn waits for."""
        return self.turn.interrupts

    @property
    def priced(self) -> bool:
        """Both prices are known."""
        return self.input_price_per_million is not None and self.output_price_per_million is not None

    def cost_of(self, prompt: int, completion: int, cache_writes: int = 0, cache_reads: int = 0) -> float | None:
        """US dollars for these tokens, or None when a price is unknown.

        Cache writes cost 1.25 and cache reads 0.1 of a prompt token; tokens that the provider counts inside the prompt
        (``cached_tokens``) are charged in full.
        """
        price_in, price_out = self.input_price_per_million, self.output_price_per_million
        if price_in is None or price_out is None:
            return None
        return token_cost(price_in, price_out, prompt, completion, cache_writes, cache_reads)

    def would_exceed_cost_budget(self, max_output_tokens: int) -> bool:
        """Whether one more call that writes ``max_output_tokens`` could pass the cost budget.

        The prompt is estimated from the messages (tool schemas are not included). False without a budget or prices.
        """
        if self.cost_budget_usd is None:
            return False
        worst = self.cost_of(estimate_tokens(self.messages), max_output_tokens)
        return worst is not None and self.cost_usd_used + worst > self.cost_budget_usd

    @property
    def last_tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the newest assistant message since the last message in the user's role."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.tool_calls
            if message.role == "user":
                break
        return ()

    @property
    def called_terminal_tool(self) -> bool:
        """A terminal tool among the last calls has run and succeeded; one that was blocked or failed does not count."""
        if not self.tool_executions:
            return False
        ids = {call.id for call in self.last_tool_calls if call.name in self.terminal_tools}
        return bool(ids) and any(done.tool_call_id in ids and done.success for done in reversed(self.tool_executions))

    @property
    def total_tokens(self) -> int:
        """The tracked total, or an estimate from the conversation when nothing was tracked."""
        return self.total_tokens_used or estimate_tokens(self.messages)

    def find_loop(self) -> Loop | None:
        """The tool loop that the newest reasoning steps form, if any."""
        if len(self.reasoning_steps) < 2:
            return None
        return find_loop(
            self.reasoning_steps,
            self.tool_loop_threshold,
            self.tool_loop_read_only_threshold,
            self.tool_loop_read_only_tools,
        )

    def should_terminate(self) -> str | None:
        """The built-in stop reason that holds now, in the order in which they win, or None to go on."""
        spent = self._spent()
        if spent is not None:
            return spent
        if self.called_terminal_tool:
            return "terminal_tool"
        return None if self.completion_mode == "explicit" else self._came_to_rest()

    def _spent(self) -> str | None:
        if self.iteration >= self.max_iterations:
            return "max_iterations"
        if self.token_budget and self.total_tokens_used >= self.token_budget:
            return "token_budget"
        if self.cost_budget_usd is not None and self.cost_usd_used >= self.cost_budget_usd:
            return "cost_budget"
        return None

    def _came_to_rest(self) -> str | None:
        if self.confidence >= self.confidence_threshold:
            return "confidence_met"
        loop = self.find_loop()
        if loop is not None and loop.past_warning:
            return "tool_loop"
        return "no_tools" if self.iteration >= 1 and self._ended_without_calls() else None

    def _ended_without_calls(self) -> bool:
        for message in reversed(self.messages):
            if message.role == "assistant":
                return not message.tool_calls
            if message.role != "tool":
                return False  # somebody spoke since, or the reply was sent back with a note
        return False

    # Storing

    def durable(self, *, ephemeral: Collection[str] = (), final: bool = False, after: int = 0) -> Self:
        """The state as it may be stored or returned: no memory blocks, no turn-only messages, no ephemeral metadata.

        Args:
            ephemeral: further metadata keys to drop (configured header keys).
            final: also drop the bookkeeping of iteration saves.
            after: so many messages at the beginning are known to be durable.
        """
        changes: dict[str, Any] = {}
        added = self.messages[after:]
        if not all(map(is_durable, added)):
            changes["messages"] = (*self.messages[:after], *filter(is_durable, added))
        if self.metadata:
            dropped = {*EPHEMERAL_KEYS, *ephemeral, *((ITERATION_SAVES,) if final else ())}
            if not dropped.isdisjoint(self.metadata):
                changes["metadata"] = {key: value for key, value in self.metadata.items() if key not in dropped}
        return self.evolve(**changes) if changes else self


def estimate_tokens(messages: Iterable[Message]) -> int:
    """A rough count: a token per four characters of text and call arguments."""
    return sum(map(count_characters, messages)) // CHARS_PER_TOKEN


def count_characters(message: Message) -> int:
    """Characters of a message's text and call arguments: what its size is estimated from."""
    characters = len(message.content or "")
    for call in message.tool_calls:
        characters += len(json.dumps(call.arguments, default=str)) + len(call.malformed_arguments or "")
    return characters


def token_cost(
    input_price: float, output_price: float, prompt: int, completion: int, cache_writes: int = 0, cache_reads: int = 0
) -> float:
    """US dollars for tokens at prices per million; cache writes cost 1.25, reads 0.1 of a prompt token (spec STATE-27)."""
    read = prompt + CACHE_WRITE_PRICE * cache_writes + CACHE_READ_PRICE * cache_reads
    return (read * input_price + completion * output_price) / 1_000_000


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
