"""The requests of a link that have no reply yet."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from ..protocol.codec import decode
from ..protocol.commands import Failure
from ..protocol.errors import PeerLost, ProtocolError, UmbelError, from_wire
from ..protocol.messages import Frozen
from .frames import Envelope, Observer, body, failure

logger = logging.getLogger("umbel.mailbox")


class _Open:
    __slots__ = ("future", "on_partial", "sent")

    def __init__(self, future: asyncio.Future[Any], on_partial: Observer | None) -> None:
        self.future = future
        self.on_partial = on_partial
        self.sent = False


class OpenRequests:
    """Pairs replies with requests.

    Attributes:
        by_number: the requests.
        sent: how many of them the peer has been sent.
        cursor: the last reply that arrived with all before it.
    """

    def __init__(self, peer: str) -> None:
        self.by_number: dict[int, _Open] = {}
        self.sent = 0
        self.cursor = 0
        self._peer = peer
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: dict[int, tuple[list[Any], Sequence[bytes]]] = {}  # replies that overtook others, by the first one's place

    def add(self, on_partial: Observer | None) -> tuple[int, asyncio.Future[Any]]:
        number = next(self._numbers)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # kept: with Python 3.11 asking costs a system call
        future: asyncio.Future[Any] = self._loop.create_future()
        self.by_number[number] = _Open(future, on_partial)
        return number, future

    def drop(self, number: int) -> bool:
        """Forget a request; whether the peer has been sent it."""
        entry = self.by_number.pop(number, None)
        if entry is None or not entry.sent:
            return False
        self.sent -= 1
        return True

    def mark_sent(self, envelopes: list[Envelope]) -> None:
        for number, _, _ in envelopes:
            if number:
                self.by_number[number].sent = True
                self.sent += 1

    def take_back(self, envelopes: list[Envelope]) -> list[Envelope]:
        """Those that must go out again, of envelopes that came back unread."""
        kept = []
        for envelope in envelopes:
            entry = self.by_number.get(envelope[0])
            if entry is not None:
                entry.sent = False
                self.sent -= 1
            if entry is not None or not envelope[0]:
                kept.append(envelope)
        return kept

    # replies

    def receive(self, first: int, envelopes: list[Any], large: Sequence[bytes]) -> None:
        """Replies, of which the first has the place ``first`` in the peer's sequence. Each counts once, in that sequence."""
        self._early[first] = (envelopes, large)
        while self._early and (first := min(self._early)) <= self.cursor + 1:
            envelopes, large = self._early.pop(first)
            self._settle(envelopes[self.cursor + 1 - first :], large)

    def _settle(self, envelopes: list[Any], large: Sequence[bytes]) -> None:
        self.cursor += len(envelopes)
        by_number = self.by_number
        for number, kind, part in envelopes:
            entry = by_number.get(abs(number))
            if entry is None:
                continue
            try:
                message = decode(kind, part if type(part) is bytes else body(part, large))
            except ProtocolError as error:
                message = failure(error)
            if number < 0 and type(message) is not Failure:
                self._observe(entry, message)
                continue
            del by_number[abs(number)]
            self.sent -= entry.sent
            if entry.future.done():
                continue
            if type(message) is Failure:
                entry.future.set_exception(from_wire(message.model_dump()))
            else:
                entry.future.set_result(message)

    def _observe(self, entry: _Open, message: Frozen) -> None:
        if entry.on_partial is None:
            return
        try:
            entry.on_partial(message)
        except Exception:  # one observer's fault must not break the link for everyone else
            logger.exception("an observer of %s failed; it gets no more partial replies of this request", self._peer)
            entry.on_partial = None

    # what can go wrong

    def restart(self, lost: UmbelError) -> None:
        """The peer has no memory: what it had been sent has failed, and its replies count from one."""
        self.cursor = 0
        self._early.clear()
        for number in [number for number, entry in self.by_number.items() if entry.sent]:
            self._fail(number, lost)

    def fail_all(self, error: UmbelError) -> None:
        for number in list(self.by_number):
            self._fail(number, error)

    def _fail(self, number: int, error: UmbelError) -> None:
        entry = self.by_number.pop(number)
        self.sent -= entry.sent
        if not entry.future.done():
            entry.future.set_exception(again(error, entry.sent))


def again(error: UmbelError, sent: bool) -> UmbelError:
    """The error once more: raising one instance for many requests would keep all their frames alive in its traceback."""
    copy = from_wire(error.to_wire())
    if isinstance(copy, PeerLost):
        copy.details["delivered"] = "unknown" if sent else "no"
    return copy
