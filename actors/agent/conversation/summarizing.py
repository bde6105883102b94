"""A manager that sends a summary in place of the older messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Message
from ..models.history import paired
from .notes import clip, left_out, note, summed_up
from .steps import asks, leading_systems, opening, split_steps, step_at
from .summaries import Summaries, Summarise, prefix_keys

logger = logging.getLogger("umbel.conversation")

SUMMARY_CHARS = 8_000


class _Plan(NamedTuple):
    """How one request is shortened: ``before``, then a note, then ``after``.

    Attributes:
        known: text of the summary there is already, which stands for the first part of what is left out.
        missing: what it does not cover.
        key: of the summary of both.
    """

    before: list[Message]
    after: list[Message]
    known: str
    missing: list[Message]
    key: bytes

    def request(self, summary: str) -> list[Message]:
        """The request with a summary of all that is left out, or with what there is of one."""
        parts = [summed_up(self.known)] if self.known else []
        text = summed_up(summary) if summary else "\n".join([*parts, left_out(len(self.missing))])
        return [*self.before, note(text, "system"), *self.after]


class SummarizingManager:
    """Beyond ``threshold`` messages, sends a summary of the older ones as a system message, and the newest as they are.

    A summary is made once and stays while no more than ``threshold`` messages follow what it covers; then it is carried
    forward. Whole steps only; all leading system messages stay, and so does the request that opened the turn. Summaries are
    found by what they sum up, so one manager serves any number of threads.

    Args:
        threshold: messages (without leading system messages) that are sent as they are.
        keep_recent: messages that stay when a summary is made, at least 1, fewer than ``threshold``.
        summarise: ``async (messages) -> text``. Without it, in :meth:`apply`, and when it fails, the note says only that
            messages are missing.

    Raises:
        ConfigurationError: ``keep_recent`` is out of range.

    Source: spec MEM-6; BUG-31.
    """

    def __init__(self, threshold: int = 30, keep_recent: int = 10, summarise: Summarise | None = None) -> None:
        if not 1 <= keep_recent < threshold:
            raise ConfigurationError(
                f"SummarizingManager: keep_recent must be 1 or more and less than threshold ({threshold}), not {keep_recent}"
            )
        self.threshold = threshold
        self.keep_recent = keep_recent
        self.summarise = summarise
        self._summaries = Summaries()

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        whole = paired(messages)
        plan = self._plan(whole)
        return whole if plan is None else plan.request("" if plan.missing else plan.known)

    async def aapply(self, messages: Sequence[Message]) -> list[Message]:
        """Like :meth:`apply`, with ``summarise`` called where a new summary is due."""
        whole = paired(messages)
        plan = self._plan(whole)
        if plan is None:
            return whole
        if not plan.missing:
            return plan.request(plan.known)
        return plan.request(await self._summary(plan))

    def _plan(self, whole: list[Message]) -> _Plan | None:
        systems = leading_systems(whole)
        body = whole[systems:]
        if len(body) <= self.threshold:
            return None
        keys = prefix_keys(body)
        steps = split_steps(body)
        start = step_at(steps, len(body) - self.keep_recent)
        end = sum(map(len, steps[:start]))
        if not end:
            return None  # one step, whatever its size, is sent whole
        covered, known = self._summaries.longest(keys[:end])
        if covered and len(body) - covered <= self.threshold:
            start, end = step_at(steps, covered), covered
        after = body[end:]
        request = None if any(map(asks, steps[start:])) else opening(steps, start)
        before = whole[:systems]
        if request is not None:
            after = [*steps[request], *after]
        return _Plan(before, after, known, body[covered:end], keys[end - 1])

    async def _summary(self, plan: _Plan) -> str:
        if self.summarise is None:
            return ""
        earlier = [note(summed_up(plan.known))] if plan.known else []
        try:
            text = await self.summarise([*earlier, *plan.missing])
        except Exception:  # a summary is a convenience, the run goes on without
            logger.warning("a summary of %d messages failed; they are left out", len(plan.missing), exc_info=True)
            return ""
        text = clip((text or "").strip(), SUMMARY_CHARS)
        if text:
            self._summaries.keep(plan.key, text)
        return text
