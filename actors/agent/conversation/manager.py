"""What a conversation manager is, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ....protocol.messages import Message
from ..models.history import paired


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
    """The request that ``manager`` makes of ``messages``: by ``aapply`` if it has one, else by ``apply``.

    Calls and results that a manager separated are dropped (spec LOOP-42, LOOP-43).
    """
    asynchronous = getattr(manager, "aapply", None)
    request: list[Message] = manager.apply(messages) if asynchronous is None else await asynchronous(messages)
    return request if isinstance(manager, NullManager) else paired(request)
