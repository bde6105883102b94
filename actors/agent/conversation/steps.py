"""The structure of a conversation: what must stay together, and what must not go.

A *step* is an assistant message with the results of its calls, or any other single message. Conversations are cut
between steps only, so a call and its result are never separated (spec MEM-4; BUG-31).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....protocol.markers import COMPACTION_SUMMARY, is_durable, is_request
from ....protocol.messages import Message
from ....protocol.state import count_characters

Step = tuple[Message, ...]


def leading_systems(messages: Sequence[Message]) -> int:
    """How many system messages stand at the start."""
    return next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))


def split_steps(messages: Sequence[Message]) -> list[Step]:
    """The steps of a conversation whose results stand right behind their calls (see ``paired``)."""
    steps: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and steps:
            steps[-1].append(message)
        else:
            steps.append([message])
    return [tuple(step) for step in steps]


def join(steps: Sequence[Step]) -> list[Message]:
    """The messages of ``steps``, in order."""
    return [message for step in steps for message in step]


def is_reply(step: Step) -> bool:
    """An assistant message, with or without calls: one turn of the model."""
    return step[0].role == "assistant"


def asks(step: Step) -> bool:
    """A request of the user, and neither a note of the runtime nor a summary."""
    return is_request(step[0]) and not is_summary(step[0])


def is_summary(message: Message) -> bool:
    """A note that stands for messages that were taken out."""
    return bool(message.metadata.get(COMPACTION_SUMMARY))


def is_pinned(step: Step) -> bool:
    """A memory block, or a note that holds for this turn only: it leaves with the turn, never before."""
    return not is_durable(step[0])


def opening(steps: Sequence[Step], before: int | None = None) -> int | None:
    """Index of the newest request of the user (ahead of step ``before``): what the turn is about."""
    end = len(steps) if before is None else before
    return next((n for n in range(end - 1, -1, -1) if asks(steps[n])), None)


def first_request(steps: Sequence[Step]) -> int | None:
    """Index of the conversation's first request."""
    return next((n for n, step in enumerate(steps) if asks(step)), None)


def last_turns(steps: Sequence[Step], turns: int) -> int:
    """Index at which the last ``turns`` turns of the model begin; 0 when there are not more than that."""
    for n in range(len(steps) - 1, -1, -1):
        turns -= is_reply(steps[n])
        if turns <= 0:
            return n
    return 0


def tail_start(steps: Sequence[Step], turns: int | None, budget: int) -> int:
    """Index at which the end of the conversation begins that is to stay as it is.

    It holds at most ``turns`` turns of the model (None: any number) and ``budget`` characters, but always the newest turn
    with whatever follows it: the model has not answered that yet.
    """
    start = last_turns(steps, 1)
    floor = 0 if turns is None else last_turns(steps, turns)
    used = sum(map(count_characters, join(steps[start:])))
    while start > floor:
        used += sum(map(count_characters, steps[start - 1]))
        if used > budget:
            break
        start -= 1
    return start


def step_at(steps: Sequence[Step], messages: int) -> int:
    """Index of the first step that begins at or after ``messages`` messages; the last step when none does."""
    begin = 0
    for n, step in enumerate(steps):
        if begin >= messages:
            return n
        begin += len(step)
    return max(0, len(steps) - 1)


def foldable(steps: Sequence[Step], start: int, end: int, keep: Collection[int | None] = ()) -> list[int]:
    """Indices from ``start`` to ``end`` (exclusive) of what a note may replace: all but ``keep`` and what is pinned."""
    return [n for n in range(start, end) if n not in keep and not is_pinned(steps[n])]


def fold(steps: Sequence[Step], folded: Sequence[int], note: Message) -> list[Message]:
    """The messages without the ``folded`` steps (ascending, not empty); ``note`` stands where the first of them was."""
    gone = set(folded)
    return [message for n, step in enumerate(steps) for message in ((note,) if n == folded[0] else () if n in gone else step)]
