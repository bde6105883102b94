"""The steps of a pattern, as its thread holds them. Source: OURS-24.

A pattern's conversation is its prompt and then one message for each thing that must not be lost: a step's result, an answer
of a person, a value that was chosen, the end. So a thread of a pattern costs what was added, like any other, and whatever
reads, forks, exports and deletes threads knows it already.

After a pause, a crash or a move the pattern is played again from its beginning, and gets from here what it had got before,
in the same order: steps that ran side by side end in the order in which they had ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

from ...protocol.markers import AUTOMATED, STEP, VALUES, is_request
from ...protocol.messages import Message
from ...protocol.patterns import Ending, MemberResult

Kind = Literal["result", "value", "answer", "begun", "end"]
PATIENCE = 200  # turns of the event loop without progress; then recorded steps are given to whoever asks
REPEATABLE = frozenset({"error", "cancelled"})  # a member whose turn ended so can go on with it
logger = logging.getLogger("umbel.supervisor")


def record(kind: Kind, key: str, text: str = "", name: str | None = None, **facts: Any) -> Message:
    """A message that stands for something that happened in a pattern's run."""
    return Message(
        role="assistant", content=text, name=name, metadata={AUTOMATED: True, STEP: {"kind": kind, "key": key, **facts}}
    )


def result_record(result: MemberResult) -> Message:
    """The message that holds a step's result."""
    facts = result.model_dump(mode="json", exclude={"step", "member", "text"}, exclude_defaults=True)
    return record("result", result.step, result.text, result.member, **facts)


def result_of(message: Message) -> MemberResult:
    """The result that a message holds."""
    facts = {name: value for name, value in message.metadata[STEP].items() if name not in {"kind", "key"}}
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
    newest = {message.metadata[STEP]["key"]: message for message in records if message.metadata[STEP]["kind"] == "result"}
    members = [
        result_of(message).model_dump(mode="json", exclude={"conversation"}, exclude_defaults=True)
        for message in newest.values()
    ]
    end = next((message for message in reversed(records) if message.metadata[STEP]["kind"] == "end"), None)
    facts = {} if end is None else {name: value for name, value in end.metadata[STEP].items() if name not in {"kind", "key"}}
    return {**facts, "members": members}


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
        begun: steps without a result that must not run twice, and have begun.
        totals: results of the turn so far.
    """

    def __init__(self, messages: tuple[Message, ...], *, again: bool = False) -> None:
        request, records = this_turn(messages)
        self.prompt = (request.content if request is not None else None) or ""
        self.values: dict[str, Any] | None = None if request is None else request.metadata.get(VALUES)
        self.turn = sum(map(is_request, messages))
        self.records = [message for message in messages if STEP in message.metadata]
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self.begun: set[str] = set()
        self.totals: list[MemberResult] = []
        self.given_up: dict[str, int] = {}
        self._values: dict[str, Any] = {}
        self._known: dict[str, MemberResult] = {}
        for message in records:
            self._read(message, again)
        self._order = deque(self._known)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self.moved = 0

    def _read(self, message: Message, again: bool) -> None:
        facts = message.metadata[STEP]
        kind, key = facts["kind"], facts["key"]
        if kind == "value":
            self._values[key] = facts["value"]
        elif kind == "answer":
            self.answers.setdefault(key, []).append(facts)
        elif kind == "begun":
            self.begun.add(key)
        elif kind == "result":
            result = result_of(message)
            self.begun.discard(key)
            self.totals.append(result)
            self._known.pop(key, None)
            if not again or result.success or result.status == "skipped":
                self._known[key] = result
            elif result.stop_reason not in REPEATABLE:
                self.given_up[key] = self.given_up.get(key, 0) + 1

    @property
    def replayed(self) -> bool:
        """Nothing that is recorded is still to come."""
        return not self._order

    def value(self, key: str) -> tuple[bool, Any]:
        """Whether a value was chosen, and which."""
        return key in self._values, self._values.get(key)

    def keep_value(self, key: str, value: Any) -> None:
        """A value was chosen."""
        self._values[key] = value

    def knows(self, key: str) -> bool:
        """Whether a step's result is recorded."""
        return key in self._known

    def pass_over(self, keys: Iterable[str]) -> None:
        """These results are not asked for, and hold up no others."""
        known = set(keys)
        self._order = deque(key for key in self._order if key not in known)

    async def recall(self, key: str) -> MemberResult:
        """The recorded result of a step, after those that were recorded before it."""
        result = self._known[key]
        if key in self._order:
            turn = self._waiting[key] = asyncio.get_running_loop().create_future()
            self._give()
            if not turn.done() and self._watch is None:
                self._watch = asyncio.ensure_future(self._insist())
            await turn
        return result

    def _give(self) -> None:
        """Let go of the steps whose turn it is."""
        while self._order and self._order[0] in self._waiting:
            self._let(self._order.popleft())

    def _let(self, key: str) -> None:
        turn = self._waiting.pop(key)
        self.moved += 1
        if not turn.done():
            turn.set_result(None)

    async def _insist(self) -> None:
        """A recorded step that nobody asks for (the pattern was changed since) must not hold up the others for ever."""
        quiet, seen = 0, -1
        while self._waiting:
            quiet = quiet + 1 if self.moved == seen else 0
            seen = self.moved
            if quiet > PATIENCE:
                skipped = self._order[0] if self._order else ""
                logger.warning("step %r is recorded, but is not asked for; the pattern may have changed since", skipped)
                first = next(key for key in self._order if key in self._waiting)
                self._order.remove(first)
                self._let(first)
            await asyncio.sleep(0)
        self._watch = None

    def close(self) -> None:
        """Nobody waits any more."""
        if self._watch is not None:
            self._watch.cancel()


def end_record(ending: Ending) -> Message:
    """The message that holds how the pattern ended."""
    facts = ending.model_dump(mode="json", exclude={"final_output"}, exclude_defaults=True)
    return record("end", "", ending.final_output, **facts)


def earlier_value(records: Iterable[Message], key: str) -> Any:
    """The newest value of that key that any turn has recorded, or None."""
    found = None
    for message in records:
        facts = message.metadata[STEP]
        if facts["kind"] == "value" and facts["key"] == key:
            found = facts["value"]
    return found
