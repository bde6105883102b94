"""What a conversation manager is, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ....protocol.messages import Message


@runtime_checkable
class ConversationManager(Protocol):
    """Shortens what one request sends. The stored conversation never changes (spec MEM-1).

    One manager may serve any number of runs at once. A manager whose shortening needs a model also has
    ``async aapply(messages) -> list[Message]``, which :func:`manage` prefers.
    """

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """The messages to send instead of ``messages``: a new list; its input is untouched."""
        ...


class NullManager:
    """Sends everything."""

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)


async def manage(manager: ConversationManager, messages: Sequence[Message]) -> list[Message]:
    """What ``manager`` makes of ``messages``: by ``aapply`` if it has one, else by ``apply`` (spec LOOP-42)."""
    asynchronous = getattr(manager, "aapply", None)
    if asynchronous is None:
        return manager.apply(messages)
    result: list[Message] = await asynchronous(messages)
    return result
