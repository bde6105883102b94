"""The link inside a process. See ``mailbox.py``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ..protocol.errors import DeadlineExceeded, ProtocolError, RequestCancelled, UmbelError, from_wire
from ..protocol.messages import Frozen
from .frames import Observer, failure
from .mailbox import Mailbox

logger = logging.getLogger("umbel.mailbox")


class _LocalCaller:
    __slots__ = ("_on_partial",)

    def __init__(self, on_partial: Observer | None) -> None:
        self._on_partial = on_partial

    def send(self, message: Frozen) -> None:
        if self._on_partial is not None:
            self._on_partial(message)

    async def flow(self) -> None:
        await asyncio.sleep(0)


class LocalLink:
    """A channel to a mailbox of the same process and loop: same messages, same errors, no encoding, no queue."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._one_way: set[asyncio.Task[None]] = set()

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """As ``Link.request``; the handler runs inside the caller's task, so cancelling the one cancels the other."""
        if self._one_way:
            await asyncio.sleep(0)  # what was sent earlier begins earlier
        handled = self._mailbox.handler(type(message))(message, _LocalCaller(on_partial))
        deadline = None
        try:
            if timeout is None:
                reply = await handled
            else:
                async with asyncio.timeout(timeout) as deadline:
                    reply = await handled
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RequestCancelled(f"{self._mailbox.name}: the request was cancelled") from None
        except (Exception, SystemExit) as error:  # the border of the actor, as for a remote one
            if deadline is not None and deadline.expired():
                raise self._late(message, timeout) from None
            if isinstance(error, UmbelError):
                raise
            raise from_wire(failure(error).model_dump()) from error
        if reply is None:
            raise ProtocolError(f"{self._mailbox.name} sent no reply to {type(message).__name__}")
        return reply

    def _late(self, message: Frozen, timeout: float | None) -> DeadlineExceeded:
        name = self._mailbox.name
        return DeadlineExceeded(f"{name} did not answer {type(message).__name__} within {timeout:g} s", peer=name)

    def send(self, message: Frozen) -> None:
        task = asyncio.get_running_loop().create_task(self._send(message))
        self._one_way.add(task)
        task.add_done_callback(self._one_way.discard)

    async def _send(self, message: Frozen) -> None:
        try:
            await self._mailbox.handler(type(message))(message, _LocalCaller(None))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - nobody waits for it: a remote mailbox only logs it, too
            logger.warning("%s: one-way %s failed: %s", self._mailbox.name, type(message).__name__, error)

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """Nothing to do: definitions are shared inside a process."""

    async def close(self) -> None:
        """Stop the one-way messages that are being handled."""
        tasks = list(self._one_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
