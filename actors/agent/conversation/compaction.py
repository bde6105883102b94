"""The context compactor: it rewrites a run's stored conversation before it outgrows the model's context.

    prune      clear old tool outputs                                  no model call
    summarize  fold the middle into one summary, a user-role note      one or two model calls
    truncate   fold the middle into a note that it is missing          when there is no summary

What is over the limit even so is reported as exhausted: the run ends instead of sending what the provider would refuse.

Source: spec MEM-11 to MEM-21, LOOP-39, LOOP-40.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ....protocol.messages import Frozen, Message
from ....protocol.state import CHARS_PER_TOKEN, estimate_tokens
from ..models.history import paired
from .budgets import Budgets, CompactionConfig, budgets_of
from .notes import clip, summary_note, summary_request
from .outputs import clear_outputs
from .steps import (
    first_request,
    fold,
    foldable,
    is_summary,
    join,
    leading_systems,
    opening,
    split_steps,
    tail_start,
)
from .tokens import RunningEstimate, last_reply

logger = logging.getLogger("umbel.conversation")

Stage = Literal["prune", "summarize", "truncate"]
SummaryModel = Callable[[list[Message], int], Awaitable[str | None]]
"""``async (messages, max_tokens) -> text``: one model call, or None when there is no model for it."""

ATTEMPTS = (1.0, 0.25)  # shares of the material that a summary is tried on


class Pressure(NamedTuple):
    """How full the context is.

    Attributes:
        tokens: size of the next request.
        threshold: what it may be.
        estimate: its size by characters alone; ``tokens`` is more where the provider counted more.
    """

    tokens: int
    threshold: int
    estimate: int

    @property
    def is_due(self) -> bool:
        """The conversation must be compacted."""
        return self.tokens > self.threshold


class CompactionMemory:
    """What one run remembers of its compactions. Never shared between runs.

    Attributes:
        folded_at: iteration of the last summary or truncation.
        rewritten_at: iteration of the last rewriting of any kind: what was reported before it says nothing about the rest.
        estimate: of the conversation so far.
    """

    __slots__ = ("estimate", "folded_at", "rewritten_at")

    def __init__(self) -> None:
        self.folded_at: int | None = None
        self.rewritten_at: int | None = None
        self.estimate = RunningEstimate()


class Compaction(Frozen):
    """A compaction, done or refused. All but ``messages`` is what :class:`~umbel.protocol.events.CompactionEvent` shows.

    Attributes:
        messages: the conversation from now on.
        iteration: when.
        stage: what was done last.
        tokens_before, tokens_after, threshold, context_window: sizes in tokens.
        messages_before, messages_after: lengths.
        summary: the summary's text, if there is one.
        exhausted: the next request would still be too large: end the run ``context_exhausted``.
        detail: why it is exhausted, or why there is no summary.
    """

    messages: tuple[Message, ...]
    iteration: int
    stage: Stage
    tokens_before: int
    tokens_after: int
    threshold: int
    context_window: int
    messages_before: int
    messages_after: int
    summary: str | None = None
    exhausted: bool = False
    detail: str | None = None

    def event_fields(self) -> dict[str, Any]:
        """The fields of the event."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "messages"}


def measure(
    messages: Sequence[Message],
    *,
    config: CompactionConfig,
    window: int,
    tools_tokens: int,
    reported_tokens: int | None,
    iteration: int,
    memory: CompactionMemory,
) -> Pressure:
    """How full the context is before the model call of ``iteration``; arguments as for :func:`compact`.

    The cost is that of the messages which are new since the last time.
    """
    estimate = memory.estimate.tokens(messages) + tools_tokens
    tokens = estimate
    if reported_tokens is not None and memory.rewritten_at != iteration:
        tokens = max(tokens, reported_tokens + estimate_tokens(messages[last_reply(messages) :]))
    return Pressure(tokens, budgets_of(config, window).threshold, estimate)


async def compact(
    messages: Sequence[Message],
    *,
    config: CompactionConfig,
    window: int,
    tools_tokens: int = 0,
    reported_tokens: int | None = None,
    iteration: int,
    memory: CompactionMemory,
    instructions: str | None = None,
    summarise: SummaryModel | None = None,
    archived: Mapping[str, str] | None = None,
) -> Compaction | None:
    """Make room in a conversation, if it needs any.

    Args:
        messages: the stored conversation, every call answered.
        config: limits and sizes.
        window: tokens that the model can read.
        tools_tokens: of the tool schemas sent along (``schema_tokens``).
        reported_tokens: of the last request, as the provider counted it (``reported_size``); None when it did not.
        iteration: of the model call to come.
        memory: the run's own.
        instructions: wishes for the summary, of a before-compaction hook.
        summarise: calls the summary model; whatever it raises makes way for truncation.
        archived: call id to recall id of outputs that the observation pack can give back.

    Returns:
        None when the conversation is small enough, or compaction is off.

    Raises:
        ConfigurationError: ``reserved_tokens`` leaves nothing of the window.
    """
    if not config.enabled:
        return None
    pressure = measure(
        messages,
        config=config,
        window=window,
        tools_tokens=tools_tokens,
        reported_tokens=reported_tokens,
        iteration=iteration,
        memory=memory,
    )
    if not pressure.is_due:
        return None
    work = _Work(messages, config, budgets_of(config, window), pressure, tools_tokens, iteration, archived)
    done = work.prune() or work.last_resort(memory)
    if done is None:
        done = await work.fold(instructions, summarise)
        memory.folded_at = iteration
    if done.messages != work.messages:
        memory.rewritten_at = iteration
        memory.estimate = RunningEstimate()
    return done


class _Work:
    """One compaction: its inputs, and the stages."""

    def __init__(
        self,
        messages: Sequence[Message],
        config: CompactionConfig,
        budgets: Budgets,
        pressure: Pressure,
        tools_tokens: int,
        iteration: int,
        archived: Mapping[str, str] | None,
    ) -> None:
        self.messages = tuple(messages)
        self.config = config
        self.budgets = budgets
        self.pressure = pressure
        self.tools_tokens = tools_tokens
        self.iteration = iteration
        self.archived = archived
        self.steps = split_steps(paired(messages))
        self.folded = self._folded()

    def size(self, messages: Sequence[Message]) -> int:
        """Tokens of a request with ``messages``, if the provider counts as it did the last time; rounded up."""
        estimate = estimate_tokens(messages) + self.tools_tokens
        return -(-estimate * self.pressure.tokens // max(1, self.pressure.estimate))

    def characters(self, tokens: int) -> int:
        """How many characters take ``tokens``."""
        return tokens * CHARS_PER_TOKEN * self.pressure.estimate // self.pressure.tokens

    def prune(self) -> Compaction | None:
        """Clear old outputs; None when that is not enough. What the model has not seen yet stays."""
        pruned = self._cleared(self.messages, self.budgets.outputs, last_reply(self.messages))
        return self._done("prune", pruned) if self.size(pruned) <= self.budgets.goal else None

    def last_resort(self, memory: CompactionMemory) -> Compaction | None:
        """What is left when folding would not help: give up all outputs but the newest, or else the run."""
        since = None if memory.folded_at is None else self.iteration - memory.folded_at
        if all(is_summary(self.steps[n][0]) for n in self.folded):
            refused = "what must stay is too large, and nothing else is left to fold"
        elif since is not None and since < self.config.min_iterations_between_summaries:
            refused = f"it is full again {since} iterations after the last summary"
        else:
            return None
        pruned = self._cleared(self.messages, 0, len(self.messages))
        if self.size(pruned) <= self.budgets.threshold:
            return self._done("prune", pruned)
        return self._done("summarize", self.messages, refused=refused)

    async def fold(self, instructions: str | None, summarise: SummaryModel | None) -> Compaction:
        """Fold the middle into a summary, or into a note that it is missing."""
        middle = join([self.steps[n] for n in self.folded])
        summary = await self._summarise(middle, instructions, summarise)
        note = summary_note(middle, summary, self.budgets.summary * CHARS_PER_TOKEN, self.archived)
        messages = fold(self.steps, self.folded, note)
        if self.size(messages) > self.budgets.threshold:
            messages = self._cleared(messages, self.budgets.outputs, last_reply(messages))
        if self.size(messages) > self.budgets.threshold:
            messages = self._cleared(messages, 0, len(messages))
        return self._done("truncate" if summary is None else "summarize", messages, summary=summary)

    async def _summarise(
        self, middle: Sequence[Message], instructions: str | None, summarise: SummaryModel | None
    ) -> str | None:
        if summarise is None:
            return None
        limit = max(0, self.budgets.threshold - self.budgets.summary) * CHARS_PER_TOKEN
        for share in ATTEMPTS:
            request = summary_request(
                middle, max_tokens=self.budgets.summary, limit=limit, share=share, instructions=instructions
            )
            try:
                text = await summarise(request, self.budgets.summary)
            except Exception:  # a failing summary model must not end the run (MEM-20)
                logger.warning("a summary of %d messages failed", len(middle), exc_info=True)
                continue
            if text and text.strip():
                return clip(text.strip(), self.budgets.summary * CHARS_PER_TOKEN)
        return None

    def _folded(self) -> list[int]:
        tail = tail_start(self.steps, self.config.tail_turns, self.characters(self.budgets.tail))
        head = leading_systems([step[0] for step in self.steps])
        return foldable(self.steps, head, tail, {first_request(self.steps), opening(self.steps)})

    def _cleared(self, messages: Sequence[Message], keep_tokens: int, spared_from: int) -> list[Message]:
        newest = max((n for n, message in enumerate(messages) if message.role == "tool"), default=-1)
        return clear_outputs(
            messages,
            keep_tokens=self.characters(keep_tokens) // CHARS_PER_TOKEN,
            spare=lambda n: n >= spared_from or n == newest,
            archived=self.archived,
        )

    def _done(
        self, stage: Stage, messages: Sequence[Message], *, summary: str | None = None, refused: str | None = None
    ) -> Compaction:
        after = self.size(messages)
        exhausted = refused is not None or after > self.budgets.threshold
        detail = "no summary could be made: earlier messages were left out" if stage == "truncate" else None
        if exhausted:
            reason = refused or "what must stay is too large"
            detail = (
                f"the conversation takes {after} of the {self.budgets.threshold} tokens that a context window of "
                f"{self.budgets.window} allows: {reason}"
            )
        return Compaction(
            messages=tuple(messages),
            iteration=self.iteration,
            stage=stage,
            tokens_before=self.pressure.tokens,
            tokens_after=after,
            threshold=self.budgets.threshold,
            context_window=self.budgets.window,
            messages_before=len(self.messages),
            messages_after=len(messages),
            summary=summary,
            exhausted=exhausted,
            detail=detail,
        )
