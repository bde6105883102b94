"""A channel on which the requests of one tick of the event loop travel as one message. See ``mailbox.py``.

Runs that went on together, because one frame brought what they waited for, ask the same actor at the same moment. A request
by itself costs an envelope, a task, a reply and its settling; in a bundle it costs its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from ..protocol.bundle import Bundle
from ..protocol.commands import Failure
from ..protocol.errors import ProtocolError, UmbelError, from_wire
from ..protocol.messages import Frozen
from .frames import Channel, Observer

MOST = 64  # requests in a bundle
LONG = 65_536  # bytes beside a message; such a one travels alone

_Waiting = tuple[Frozen, asyncio.Future[Any]]


class Bundling:
    """Another channel, whose peer answers :class:`Bundle`.

    Args:
        channel: that one.
        kinds: the requests that may share a message. All in a bundle are answered when the last of them is.
    """

    def __init__(self, channel: Channel, kinds: Collection[type[Frozen]]) -> None:
        self._channel = channel
        self._kinds = frozenset(kinds)
        self._waiting: list[_Waiting] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """As ``Link.request``. A caller that is cancelled leaves its request in the bundle: it may be done all the same."""
        alone = type(message) not in self._kinds or len(message.attachment() or b"") > LONG
        if alone or urgent or timeout is not None or on_partial is not None:
            return await self._channel.request(message, timeout=timeout, on_partial=on_partial, urgent=urgent)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((message, future))
        return await future

    def send(self, message: Frozen) -> None:
        """As ``Link.send``."""
        self._channel.send(message)

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """As ``Link.define``."""
        self._channel.define(definition, blob)

    async def close(self) -> None:
        """Close the other channel, and wait until what it was asked has failed or was answered."""
        await self._channel.close()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MOST):
            task = asyncio.get_running_loop().create_task(self._ask(waiting[start : start + MOST]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, waiting: list[_Waiting]) -> None:
        waiting = [(message, future) for message, future in waiting if not future.done()]
        try:
            replies = await self._replies([message for message, _ in waiting])
        except UmbelError as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(from_wire(error.to_wire()))  # one object raised in many tasks keeps all their frames
        except BaseException:  # a cancellation, or a fault of ours: nobody may be left waiting
            for _, future in waiting:
                future.cancel()
            raise
        else:
            for (_, future), reply in zip(waiting, replies, strict=True):
                if future.done():
                    continue
                if type(reply) is Failure:
                    future.set_exception(from_wire(reply.model_dump()))
                else:
                    future.set_result(reply)

    async def _replies(self, messages: list[Frozen]) -> list[Frozen]:
        if len(messages) <= 1:
            return [await self._channel.request(message) for message in messages]
        reply: Bundle = await self._channel.request(Bundle.of(messages))
        replies = reply.messages()
        if len(replies) != len(messages):
            raise ProtocolError(f"{len(messages)} requests went out as one, and {len(replies)} replies came back")
        return replies
