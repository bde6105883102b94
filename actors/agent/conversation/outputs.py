"""Old tool outputs are cleared: the call and the fact that it was answered stay, the text goes.

Source: spec MEM-13, MEM-19.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ....protocol.markers import ARCHIVED_OUTPUT, CLEARED_OUTPUT
from ....protocol.messages import Message
from ....protocol.state import CHARS_PER_TOKEN

SMALLEST = 64  # tokens; a stub would hardly be shorter


def clear_outputs(
    messages: Sequence[Message],
    *,
    keep_tokens: int,
    spare: Callable[[int], bool],
    archived: Mapping[str, str] | None = None,
) -> list[Message]:
    """``messages`` with a stub in place of each old, long tool output.

    Args:
        messages: the conversation.
        keep_tokens: tokens of the newest outputs that stay.
        spare: whether the message at an index stays whatever its size.
        archived: call id to the id under which the observation pack gives the output back.
    """
    result = list(messages)
    room = keep_tokens * CHARS_PER_TOKEN
    for n in range(len(result) - 1, -1, -1):
        message = result[n]
        if message.role != "tool":
            continue
        size = len(message.content or "")
        room -= size
        if room < 0 and size > SMALLEST * CHARS_PER_TOKEN and not spare(n):
            result[n] = stub(message, recall_id(message, archived))
    return result


def stub(message: Message, recall: str | None) -> Message:
    """What is sent instead of a tool's output. It says that the call was made, so that nobody makes it again for that."""
    again = f" Read it with obs_recall(id={recall!r})." if recall else ""
    text = f"[The call was carried out; its output of {len(message.content or '')} characters was cleared to save room.{again}]"
    marks = {CLEARED_OUTPUT: True, **({ARCHIVED_OUTPUT: recall} if recall else {})}
    return message.evolve(content=text, metadata={**message.metadata, **marks})


def recall_id(message: Message, archived: Mapping[str, str] | None) -> str | None:
    """The id under which a tool's output can be read again, if it is archived."""
    known = (archived or {}).get(message.tool_call_id or "") or message.metadata.get(ARCHIVED_OUTPUT)
    return known if isinstance(known, str) and known else None
