"""The steps of a pattern, as its thread holds them. Source: OURS-24.

A pattern's conversation is its prompt and then one message for each thing that must not be lost: a step's result, an answer
of a person, a value that was chosen, the end. So a thread of a pattern costs what was added, like any other, and whatever
reads, forks, exports and deletes threads knows it already.

After a pause, a crash or a move the pattern is played again from its beginning, and gets from here what it had got before,
in the same order: steps that ran side by side end in the order in which they had ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

from ...protocol.markers import AUTOMATED, STEP, VALUES, is_request
from ...protocol.messages import Message
from ...protocol.patterns import Ending, MemberResult
from ...protocol.results import Metrics

Kind = Literal["result", "value", "answer", "begun", "asked", "spent", "end"]
PATIENCE = 200  # turns of the event loop without progress; then recorded steps are given to whoever asks
PACE = 8  # turns between two recorded results: what follows from the first happens before the second, as it did
REPEATABLE = frozenset({"error", "cancelled"})  # a member whose turn ended so can go on with it
logger = logging.getLogger("umbel.supervisor")


def record(kind: Kind, key: str, text: str = "", name: str | None = None, **facts: Any) -> Message:
    """A message that stands for something that happened in a pattern's run."""
    return Message(
        role="assistant", content=text, name=name, metadata={AUTOMATED: True, STEP: {"kind": kind, "key": key, **facts}}
    )


def fingerprint(*asked: Any) -> str:
    """Stands for what a step was asked: JSON values."""
    return hashlib.blake2b(json.dumps(asked, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def result_record(result: MemberResult, told: tuple[str, int] | None = None, *, asked: str = "", **marks: bool) -> Message:
    """The message that holds a step's result, which event tells it (segment, number), and what was asked.

    ``unwanted=True``: the program gave the step up.
    """
    facts = result.model_dump(mode="json", exclude={"step", "member", "text"}, exclude_defaults=True)
    facts |= {"told": told} if told is not None else {}
    facts |= {"asked": asked} if asked else {}
    return record("result", result.step, result.text, result.member, **facts, **marks)


def spent_record(key: str, metrics: Metrics) -> Message:
    """The message that says what of a member, which will go on, the pattern has counted."""
    return record("spent", key, metrics=metrics.model_dump(mode="json", exclude_defaults=True))


def result_of(message: Message) -> MemberResult:
    """The result that a message holds."""
    own = {"kind", "key", "told", "asked", "unwanted"}
    facts = {name: value for name, value in message.metadata[STEP].items() if name not in own}
    return MemberResult(step=message.metadata[STEP]["key"], member=message.name or "", text=message.content or "", **facts)


def this_turn(messages: tuple[Message, ...]) -> tuple[Message | None, list[Message]]:
    """The newest request of a pattern's conversation, and the records since."""
    start = next((index for index in range(len(messages) - 1, -1, -1) if is_request(messages[index])), None)
    if start is None:
        return None, [message for message in messages if STEP in message.metadata]
    return messages[start], [message for message in messages[start + 1 :] if STEP in message.metadata]


def report(run: Any) -> dict[str, Any]:
    """What a pattern's run came to, from its records: the members' results, and how it ended. Source: PAT-1, OURS-25."""
    _, records = this_turn(run.state.messages)
    newest: dict[str, Message] = {}
    end: dict[str, Any] = {}
    for message in records:
        facts = message.metadata[STEP]
        if facts["kind"] == "result":
            newest.pop(facts["key"], None)  # of a step that was tried again
            newest[facts["key"]] = message
        elif facts["kind"] == "end" and facts.get("segment") == run.request.run_id:  # not that of an earlier try
            end = {name: value for name, value in facts.items() if name not in {"kind", "key", "segment"}}
    members = [
        result_of(message).model_dump(mode="json", exclude={"conversation"}, exclude_defaults=True)
        for message in newest.values()
    ]
    return {**end, "members": members}


class StepLog:
    """What is known of the turn's steps.

    Args:
        messages: the conversation.
        again: failed steps are to be tried again (a turn that is continued).

    Attributes:
        prompt, values: of the turn.
        turn: its number in the thread, from 1.
        records: everything that was recorded in the thread, earlier turns included.
        answers: by step: what was asked, and the answers; oldest first.
        taken: by step: how many of its answers belong to tries that failed for good.
        begun: steps that must not run twice, have begun, and have neither a result nor a question.
        spent: by step that goes on: what of its member is counted already.
        totals: results of the turn so far; of a member that goes on, the newest.
        given_up: by step: tries that failed for good, so that the next one begins from nothing.
        ends: those that somebody watched, with the segment and number of the event that told it.
    """

    def __init__(self, messages: tuple[Message, ...], *, again: bool = False) -> None:
        request, records = this_turn(messages)
        self.prompt = (request.content if request is not None else None) or ""
        self.values: dict[str, Any] | None = None if request is None else request.metadata.get(VALUES)
        self.turn = sum(map(is_request, messages))
        self.records = [message for message in messages if STEP in message.metadata]
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.taken: dict[str, int] = {}
        self.begun: set[str] = set()
        self.spent: dict[str, Metrics] = {}
        self.totals: list[MemberResult] = []
        self.ends: list[tuple[str, int, MemberResult]] = []
        self.given_up: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._met: dict[str, Any] = {}
        self._earlier: dict[str, Any] = {}
        self._known: dict[str, MemberResult] = {}
        self._doubtful: dict[str, str] = {}  # what steps were asked that ended after one that is tried again
        self._unwanted: set[str] = set()
        for message in self.records[: len(self.records) - len(records)]:
            if message.metadata[STEP]["kind"] == "value":
                self._earlier[message.metadata[STEP]["key"]] = message.metadata[STEP]["value"]
        for message in records:
            self._read(message, again)
        self._order = deque(self._known)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    def _read(self, message: Message, again: bool) -> None:
        facts = message.metadata[STEP]
        kind, key = facts["kind"], facts["key"]
        if kind == "value":
            self._values[key] = facts["value"]
        elif kind == "answer":
            self.answers.setdefault(key, []).append(facts)
        elif kind == "begun":
            self.begun.add(key)
        elif kind == "asked":
            self.begun.discard(key)
        elif kind == "spent":
            self.spent[key] = Metrics.model_validate(facts["metrics"])
        elif kind == "result":
            result = result_of(message)
            if "told" in facts:
                self.ends.append((*facts["told"], result))
            self._read_result(result, again, facts.get("asked", ""), unwanted=bool(facts.get("unwanted")))

    def _read_result(self, result: MemberResult, again: bool, asked: str, *, unwanted: bool) -> None:
        key = result.step
        self.begun.discard(key)
        self.spent.pop(key, None)
        self._known.pop(key, None)
        self.totals.append(result)
        self._unwanted.discard(key)
        after_failure = bool(self._doubtful)
        if not again or result.success or result.status == "skipped" or (unwanted and not after_failure):
            self._known[key] = result
            if unwanted:
                self._unwanted.add(key)
            if after_failure:
                self._doubtful[key] = asked
            return
        self._doubtful[key] = ""
        if result.stop_reason not in REPEATABLE:
            self.taken[key] = len(self.answers.get(key, ()))
            self.given_up[key] = self.given_up.get(key, 0) + 1
        elif result.run_id:  # its member goes on, and so do its counters
            self.spent[key] = result.metrics
            self.totals.pop()

    @property
    def replayed(self) -> bool:
        """Nothing that is recorded is still to come."""
        return not self._order

    def value(self, key: str) -> tuple[bool, Any]:
        """Whether a value was chosen, and which."""
        if key in self._values:
            self._met[key] = self._values[key]
        return key in self._values, self._values.get(key)

    def keep_value(self, key: str, value: Any) -> None:
        """A value was chosen."""
        self._values[key] = self._met[key] = value

    def earlier(self, key: str) -> Any:
        """The value of that key that the program has met in this turn so far, or else the newest of earlier turns, or None."""
        return self._met.get(key, self._earlier.get(key))

    def knows(self, key: str, asked: str = "") -> bool:
        """Whether a step's result is recorded.

        A judge's, say, that ended after a step which is tried again does not count if it is ``asked`` something else now.
        """
        if asked and key in self._known and self._doubtful.get(key, "") not in {"", asked}:
            del self._known[key]
            self._order = deque(other for other in self._order if other != key)
            self.taken[key] = len(self.answers.get(key, ()))
            self.given_up[key] = self.given_up.get(key, 0) + 1
        return key in self._known

    def pass_over(self, keys: Iterable[str]) -> None:
        """These results are not asked for, and hold up no others."""
        known = set(keys)
        self._order = deque(key for key in self._order if key not in known)

    async def recall(self, key: str) -> MemberResult:
        """The recorded result of a step, after those that were recorded before it.

        Raises:
            TimeoutError: the program had given the step up, and does not do so again: it was its patience that ended.
        """
        result = self._known[key]
        if key in self._unwanted or key in self._order:
            turn = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._watch is None:
                self._watch = asyncio.ensure_future(self._give())
            try:
                await turn
            finally:
                self._waiting.pop(key, None)
        if key in self._unwanted:
            raise TimeoutError(f"step {key} was given up")
        return result

    async def _give(self) -> None:
        """Let go of the steps whose turn it is, one by one.

        A recorded step that nobody asks for (the pattern was changed since) does not hold up the others for ever.
        """
        quiet = 0
        while self._waiting:
            key = self._order[0] if self._order else None
            if key in self._unwanted:
                self._order.popleft()  # whoever asks for it is about to give it up
            elif key in self._waiting:
                self._let(key)
                quiet = 0
                for _ in range(PACE):
                    await asyncio.sleep(0)
            else:
                quiet += 1
                if quiet > PATIENCE:
                    self._let(self._next())
                await asyncio.sleep(0)
        self._watch = None

    def _next(self) -> str:
        """Whose turn it is when the first in the order does not come."""
        first = next((key for key in self._order if key in self._waiting), None)
        if first is None:
            return next(iter(self._waiting))
        logger.warning("step %r is recorded, but is not asked for; the pattern may have changed since", self._order[0])
        return first

    def _let(self, key: str) -> None:
        """Let go of a step; those that were recorded before it are given to whoever still asks."""
        while key in self._order and self._order.popleft() != key:
            pass
        turn = self._waiting.pop(key)
        if not turn.done():
            turn.set_result(None)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._watch is not None:
            self._watch.cancel()


def end_record(ending: Ending, segment: str) -> Message:
    """The message that holds how a segment of the pattern ended."""
    facts = ending.model_dump(mode="json", exclude={"final_output"}, exclude_defaults=True)
    return record("end", "", ending.final_output, segment=segment, **facts)


def past_results(messages: Iterable[Message]) -> list[MemberResult]:
    """The results of all turns but the newest, oldest first; of a step that was tried again, the newest."""
    turns: list[dict[str, MemberResult]] = [{}]
    for message in messages:
        if is_request(message):
            turns.append({})
        elif STEP in message.metadata and message.metadata[STEP]["kind"] == "result":
            result = result_of(message)
            turns[-1].pop(result.step, None)
            turns[-1][result.step] = result
    return [result for turn in turns[:-1] for result in turn.values()]
