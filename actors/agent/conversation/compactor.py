"""The compactor of requests: it clears old tool outputs, then leaves out or sums up the middle of the conversation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Message
from ....protocol.state import CHARS_PER_TOKEN, count_characters, estimate_tokens
from ..models.history import paired
from .notes import clip, left_out, note, summed_up
from .outputs import clear_outputs
from .steps import (
    Step,
    fold,
    foldable,
    is_reply,
    join,
    last_turns,
    leading_systems,
    opening,
    split_steps,
    tail_start,
)
from .summaries import Summaries, Summarise, prefix_keys

logger = logging.getLogger("umbel.conversation")

HEAD_SHARE = 0.25
SUMMARY_CHARS = 16_000


class _Cut(NamedTuple):
    """A request that is still too large: its ``steps`` (old outputs cleared), and which of them may go."""

    steps: list[Step]
    folded: list[int]
    material: list[Step]
    keys: list[bytes]


class LLMCompactor:
    """Keeps requests under a share of the model's context, and changes nothing below it.

    Over the limit it first clears tool outputs that are ``tool_output_ttl`` turns old. If that is not enough, the middle goes:
    the first turns and the newest ones stay, a user-role note stands for the rest: a summary where there is a ``summarise``
    and :meth:`aapply` is used, else the bare fact. The request that opened the turn, memory blocks and notes for this turn
    always stay. A turn is one reply of the model with the results of its calls.

    Args:
        context_length: tokens that the model can read.
        trigger: share of it that a request may take.
        head_turns: turns kept at the start.
        tail_fraction: share of the limit for what is kept at the end.
        tool_output_ttl: turns for which a tool's output is sent whole.
        slide_step: by how many steps the two cuts move at once; between moves the provider's prefix cache serves.
        summarise: ``async (messages) -> text``; what it failed on is left out.

    Raises:
        ConfigurationError: a number is out of range.

    Source: spec MEM-7, MEM-8; BUG-54.
    """

    def __init__(
        self,
        context_length: int = 128_000,
        *,
        trigger: float = 0.8,
        head_turns: int = 2,
        tail_fraction: float = 0.5,
        tool_output_ttl: int = 10,
        slide_step: int = 1,
        summarise: Summarise | None = None,
    ) -> None:
        _require("context_length", context_length, context_length >= 1, "1 or more")
        _require("trigger", trigger, 0 < trigger <= 1, "more than 0 and at most 1")
        _require("head_turns", head_turns, head_turns >= 0, "0 or more")
        _require("tail_fraction", tail_fraction, 0 < tail_fraction < 1, "between 0 and 1")
        _require("tool_output_ttl", tool_output_ttl, tool_output_ttl >= 1, "1 or more")
        _require("slide_step", slide_step, slide_step >= 1, "1 or more")
        self.context_length = context_length
        self.trigger = trigger
        self.head_turns = head_turns
        self.tail_fraction = tail_fraction
        self.tool_output_ttl = tool_output_ttl
        self.slide_step = slide_step
        self.summarise = summarise
        self._summaries = Summaries()

    @property
    def limit(self) -> int:
        """Tokens that a request may have."""
        return int(self.context_length * self.trigger)

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        cut = self._cut(messages)
        if not isinstance(cut, _Cut):
            return cut
        known = self._known(cut)
        return known if known is not None else self._without_middle(cut)

    async def aapply(self, messages: Sequence[Message]) -> list[Message]:
        """Like :meth:`apply`, with ``summarise`` called where a new summary is due."""
        cut = self._cut(messages)
        if not isinstance(cut, _Cut):
            return cut
        known = self._known(cut)
        if known is not None:
            return known
        text = await self._summary(cut)
        return fold(cut.steps, cut.folded, note(summed_up(text))) if text else self._without_middle(cut)

    def _cut(self, messages: Sequence[Message]) -> _Cut | list[Message]:
        """The request if it is small enough, by itself or without old outputs; else how it can be cut."""
        whole = paired(messages)
        if estimate_tokens(whole) <= self.limit:
            return whole
        material = split_steps(whole)
        fresh = last_turns(material, self.tool_output_ttl)
        fresh -= fresh % self.slide_step
        old = sum(map(len, material[:fresh]))
        cleared = clear_outputs(whole, keep_tokens=0, spare=lambda n: n >= old)
        if estimate_tokens(cleared) <= self.limit:
            return cleared
        steps = split_steps(cleared)
        characters = self.limit * CHARS_PER_TOKEN
        tail = self._slid(tail_start(steps, None, int(characters * self.tail_fraction)), last_turns(steps, 1))
        head = min(tail, self._head_end(steps, int(characters * HEAD_SHARE)))
        folded = foldable(steps, head, tail, {opening(steps)})
        if not folded:
            return cleared
        return _Cut(steps, folded, material, prefix_keys(join([material[n] for n in folded])))

    def _slid(self, start: int, last: int) -> int:
        return min(-(-start // self.slide_step) * self.slide_step, max(start, last))

    def _head_end(self, steps: Sequence[Step], budget: int) -> int:
        """Index behind the last step that is kept at the start."""
        replies = 0
        begin = leading_systems([step[0] for step in steps])
        for n in range(begin, len(steps)):
            replies += is_reply(steps[n])
            budget -= sum(map(count_characters, steps[n]))
            if replies > self.head_turns or budget < 0:
                return n
        return len(steps)

    def _covered(self, cut: _Cut) -> tuple[int, str]:
        """How many of the folded steps an earlier summary stands for, and its text."""
        covered, text = self._summaries.longest(cut.keys)
        counted = 0
        for n, index in enumerate(cut.folded):
            if counted == covered:
                return n, text
            counted += len(cut.material[index])
        return len(cut.folded), text

    def _known(self, cut: _Cut) -> list[Message] | None:
        """The request with an earlier summary, if it is small enough."""
        covered, text = self._covered(cut)
        if not covered:
            return None
        request = fold(cut.steps, cut.folded[:covered], note(summed_up(text)))
        return request if estimate_tokens(request) <= self.limit else None

    def _without_middle(self, cut: _Cut) -> list[Message]:
        return fold(cut.steps, cut.folded, note(left_out(len(cut.keys))))

    async def _summary(self, cut: _Cut) -> str:
        if self.summarise is None:
            return ""
        covered, known = self._covered(cut)
        material = join([cut.material[n] for n in cut.folded[covered:]])
        earlier = [note(summed_up(known))] if covered else []
        if not material:
            return known
        try:
            text = await self.summarise([*earlier, *material])
        except Exception:  # a summary is a convenience, the run goes on without
            logger.warning("a summary of %d messages failed; they are left out", len(material), exc_info=True)
            return ""
        text = clip((text or "").strip(), min(SUMMARY_CHARS, self.limit * CHARS_PER_TOKEN // 8))
        if text:
            self._summaries.keep(cut.keys[-1], text)
        return text


def _require(name: str, value: float, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigurationError(f"LLMCompactor: {name} must be {expected}, not {value}")
