"""The asking side of a mailbox in another process. See ``mailbox.py``."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.codec import decode, encode, pack
from ..protocol.commands import Define, Failure
from ..protocol.errors import DeadlineExceeded, PeerLost, ProtocolError, StaleEpoch, UmbelError, from_wire
from ..protocol.messages import Frozen
from .frames import (
    FRAME_VERSION,
    OK,
    STALE_SENDER,
    WRONG_EPOCH,
    Envelope,
    Observer,
    Transport,
    Unreachable,
    body,
    cut,
    failure,
    read_frame,
)
from .local_link import LocalLink

__all__ = ["Link", "LocalLink"]
logger = logging.getLogger("umbel.mailbox")


class _Open:
    """A request that has no reply yet."""

    __slots__ = ("future", "on_partial", "sent")

    def __init__(self, future: asyncio.Future[Any], on_partial: Observer | None) -> None:
        self.future = future
        self.on_partial = on_partial
        self.sent = False


class Link:
    """The asking side of a connection to one peer. Use it on one event loop only.

    Args:
        name: who asks (unique in the cluster).
        epoch: this incarnation of the asker; no two links to a peer may have the same name and epoch.
        peer: who is asked, for errors.
        transport: how frames get there.
        capacity: messages queued before ``request`` waits.
        backoff: seconds between attempts to reach a peer that does not answer.
        eager: start the long poll together with the first frame, because replies are never ready at once.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        peer: str,
        transport: Transport,
        *,
        capacity: int = 50_000,
        backoff: float = 0.05,
        eager: bool = False,
    ) -> None:
        self.peer = peer
        self.stats = {"messages": 0, "frames": 0, "polls": 0, "restarts": 0}
        self._name = name
        self._epoch = epoch
        self._peer_epoch = 0
        self._transport = transport
        self._capacity = capacity
        self._backoff = backoff
        self._eager = eager
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._frame = 0
        self._control_frame = 0
        self._cursor = 0
        self._resume = False  # replies may have been lost with a failed collect
        self._early: dict[int, tuple[list[Any], Sequence[bytes]]] = {}
        self._queue: deque[Envelope] = deque()
        self._urgent: deque[Envelope] = deque()
        self._cancelled: list[int] = []
        self._open: dict[int, _Open] = {}
        self._sent = 0  # open requests that the peer has been sent
        self._definitions: dict[str, Callable[[str], bytes]] = {}
        self._introduced = False  # this incarnation of the peer has been sent the definitions
        self._waiting: deque[asyncio.Future[None]] = deque()  # for room in the queue
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._meeting: asyncio.Future[None] | None = None
        self._gone: UmbelError | None = None

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """Send ``message`` and wait for its reply.

        Args:
            message: any message type that the peer serves.
            timeout: seconds; after them the peer is told to stop and ``DeadlineExceeded`` is raised.
            on_partial: called with every partial reply, in order.
            urgent: overtake everything that is queued, definitions too.

        Raises:
            PeerLost: the peer died, or restarted after it had been sent the request.
            DeadlineExceeded: see ``timeout``.
            UmbelError: whatever the peer's handler raised.
        """
        if timeout is not None:
            return await self._request_within(timeout, message, on_partial, urgent)
        if not urgent and (self._waiting or len(self._queue) >= self._capacity):
            await self.ready()
        number, future = self.ask(message, on_partial, urgent=urgent)
        try:
            return await future
        except asyncio.CancelledError:
            self.abandon(number)
            if future.done() and not future.cancelled():
                future.exception()  # seen: it came together with the cancellation
            raise

    async def _request_within(self, seconds: float, message: Frozen, on_partial: Observer | None, urgent: bool) -> Any:
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await self.request(message, on_partial=on_partial, urgent=urgent)
        except TimeoutError:
            if not deadline.expired():
                raise
            what = f"{self.peer} did not answer {type(message).__name__} within {seconds:g} s"
            raise DeadlineExceeded(what, peer=self.peer) from None

    def ask(
        self, message: Frozen, on_partial: Observer | None = None, *, urgent: bool = False
    ) -> tuple[int, asyncio.Future[Any]]:
        """:meth:`request` for those who wait themselves: (number for :meth:`abandon`, future). It heeds no back-pressure."""
        if self._gone is not None:
            raise _again(self._gone, sent=False)
        kind, blob = encode(message)
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = _Open(future, on_partial)
        self._post((number, kind, blob), urgent)
        return number, future

    def abandon(self, number: int) -> None:
        """Nobody waits for this request any more: the peer is told to stop it."""
        entry = self._open.pop(number, None)
        if entry is not None and entry.sent:
            self._sent -= 1
            if self._gone is None:
                self._cancelled.append(number)
                self._run("control", self._control)

    @property
    def full(self) -> bool:
        """Whether :meth:`request` would have to wait before it sends."""
        return len(self._queue) >= self._capacity

    async def told(self, seconds: float = 1.0) -> None:
        """Until the peer has been told of what was abandoned, at most ``seconds``."""
        task = self._tasks.get("control")
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)

    async def ready(self) -> None:
        """Until the queue has room; those who wait take turns."""
        if self._gone is not None or not (self._waiting or self.full):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._admit()
            raise

    def _admit(self) -> None:
        room = self._capacity - len(self._queue)
        while self._waiting and (room > 0 or self._gone is not None):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    def send(self, message: Frozen) -> None:
        """Send ``message`` one way. It is lost if the peer dies before it arrives."""
        if self._gone is None:
            self._post((0, *encode(message)))

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """Make sure that the peer, in whatever incarnation, knows a definition before it gets what is sent after this."""
        if definition not in self._definitions:
            self._definitions[definition] = blob
            self.send(Define(definition=definition, blob=blob(definition)))

    async def close(self) -> None:
        """Stop; open requests fail with ``PeerLost``."""
        self._fail_all(PeerLost(f"the link to {self.peer} was closed", peer=self.peer))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # sending

    def _post(self, envelope: Envelope, urgent: bool = False) -> None:
        (self._urgent if urgent else self._queue).append(envelope)
        self.stats["messages"] += 1
        self._run("control" if urgent else "pump", self._control if urgent else self._pump)

    def _run(self, what: str, job: Callable[[], Any]) -> None:
        """Start a background job of this link unless it runs already; it starts on the next tick, so one burst is one frame."""
        if what not in self._tasks:
            self._tasks[what] = asyncio.get_running_loop().create_task(self._guarded(what, job))

    async def _guarded(self, what: str, job: Callable[[], Any]) -> None:
        try:
            await job()
        except UmbelError as error:
            self._fail_all(error)
        except Exception as error:  # a fault of ours or of the transport must not leave requests waiting for ever
            logger.exception("the link to %s broke", self.peer)
            self._fail_all(ProtocolError(f"the link to {self.peer} broke: {error!r}"))
        finally:
            self._tasks.pop(what, None)  # in the very step that saw nothing to do: whoever posts next starts the job again

    async def _pump(self) -> None:
        while self._queue and self._gone is None:
            if not self._peer_epoch:
                await self._meet()
                continue
            if not self._introduced:
                self._introduce()
            taken, wire, large = cut(self._queue, self._is_dead)
            self._admit()
            self._mark_sent(taken)
            if self._eager and self._sent:
                self._run("collect", self._collect)
            if taken:
                await self._deliver(taken, wire, large)
            if self._sent:
                self._run("collect", self._collect)

    def _is_dead(self, envelope: Envelope) -> bool:
        return envelope[0] != 0 and envelope[0] not in self._open

    def _mark_sent(self, envelopes: list[Envelope]) -> None:
        for number, _, _ in envelopes:
            if number:
                self._open[number].sent = True
                self._sent += 1

    async def _deliver(self, taken: list[Envelope], wire: list[Any], large: list[bytes]) -> None:
        """One frame, resent until this incarnation of the peer has it. What a new one refused unread is queued again."""
        self._frame += 1
        epoch, frame = self._peer_epoch, self._frame
        while True:
            head = (FRAME_VERSION, self._name, self._epoch, epoch, next(self._calls), frame, self._cursor, wire)
            self.stats["frames"] += 1
            try:
                status = self._receive(*await self._transport.deliver(pack(head), large))
            except Unreachable:
                if await self._still(epoch):
                    continue
                return
            if status == WRONG_EPOCH:
                self._queue.extendleft(reversed([envelope for envelope in taken if self._take_back(envelope)]))
                await self._still(epoch)
            return

    def _take_back(self, envelope: Envelope) -> bool:
        """Whether an envelope that came back unread must go out again."""
        if envelope[0]:
            entry = self._open.get(envelope[0])
            if entry is None:
                return False
            entry.sent = False
            self._sent -= 1
        return True

    async def _control(self) -> None:
        while (self._urgent or self._cancelled) and self._gone is None:
            if not self._peer_epoch:
                await self._meet()
                continue
            cancelled, self._cancelled = self._cancelled, []
            taken, wire, _ = cut(self._urgent, self._is_dead, by_reference=False)
            self._mark_sent(taken)
            self._control_frame += 1
            epoch = self._peer_epoch
            frame = pack((FRAME_VERSION, self._name, self._epoch, epoch, self._control_frame, cancelled, wire))
            while True:
                try:
                    await self._transport.control(frame)
                except Unreachable:
                    if await self._still(epoch):
                        continue
                break
            if self._sent:
                self._run("collect", self._collect)

    # receiving

    async def _collect(self) -> None:
        while self._sent and self._gone is None:
            epoch = self._peer_epoch
            head = (FRAME_VERSION, self._name, self._epoch, epoch, next(self._calls), self._cursor, self._resume)
            self.stats["polls"] += 1
            try:
                status = self._receive(*await self._transport.collect(pack(head)))
            except Unreachable:
                self._resume = await self._still(epoch)
                continue
            self._resume = False
            if status == WRONG_EPOCH:
                await self._still(epoch)

    def _receive(self, data: bytes, large: Sequence[bytes]) -> int:
        _, epoch, status, first, envelopes = read_frame(data, int, int, int, list)
        if status == STALE_SENDER:
            raise StaleEpoch(f"{self.peer} knows a newer incarnation of {self._name}; this one must stop", peer=self.peer)
        if status == OK and epoch == self._peer_epoch and envelopes:
            self._early[first] = (envelopes, large)
            while self._early and (first := min(self._early)) <= self._cursor + 1:
                envelopes, large = self._early.pop(first)
                self._settle_all(envelopes[self._cursor + 1 - first :], large)
        return int(status)

    def _settle_all(self, envelopes: list[Any], large: Sequence[bytes]) -> None:
        self._cursor += len(envelopes)
        for number, kind, part in envelopes:
            entry = self._open.get(abs(number))
            if entry is None:
                continue
            try:
                message = decode(kind, part if type(part) is bytes else body(part, large))
            except ProtocolError as error:
                message = failure(error)
            if number < 0 and type(message) is not Failure:
                self._observe(entry, message)
                continue
            del self._open[abs(number)]
            self._sent -= entry.sent
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
            logger.exception("an observer of %s failed; it gets no more partial replies of this request", self.peer)
            entry.on_partial = None

    # what can go wrong

    async def _still(self, epoch: int) -> bool:
        """After a call that failed: whether that incarnation of the peer is there, so that the call can be made again."""
        await self._meet()
        if self._gone is not None or self._peer_epoch != epoch:
            return False
        await asyncio.sleep(self._backoff)
        return self._peer_epoch == epoch and self._gone is None

    async def _meet(self) -> None:
        """Learn the peer's epoch, waiting for it to come back; a new one fails what the old one had been sent."""
        if self._meeting is not None:
            await asyncio.shield(self._meeting)
            return
        self._meeting = asyncio.get_running_loop().create_future()
        try:
            epoch = await self._hello()
        except UmbelError as error:
            self._fail_all(error)
            return
        finally:
            self._meeting.set_result(None)
            self._meeting = None
        if epoch != self._peer_epoch and self._gone is None:
            self._begin(epoch)

    async def _hello(self) -> int:
        delay = self._backoff
        while True:
            try:
                return await self._transport.hello()
            except Unreachable:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)

    def _begin(self, epoch: int) -> None:
        """A new incarnation: it knows nothing, so definitions go first and what the old one was sent has failed."""
        if self._peer_epoch:
            self.stats["restarts"] += 1
        lost = PeerLost(f"{self.peer} restarted before it answered", peer=self.peer)
        self._peer_epoch, self._frame, self._control_frame, self._cursor = epoch, 0, 0, 0
        self._introduced = self._resume = False
        self._early.clear()
        self._cancelled.clear()
        for number in [number for number, entry in self._open.items() if entry.sent]:
            self._fail(number, lost)

    def _introduce(self) -> None:
        self._introduced = True
        queued = [envelope for envelope in self._queue if envelope[0] or not envelope[1].startswith("Define@")]
        self._queue = deque([(0, *encode(Define(definition=key, blob=blob(key)))) for key, blob in self._definitions.items()])
        self._queue.extend(queued)

    def _fail(self, number: int, error: UmbelError) -> None:
        entry = self._open.pop(number)
        self._sent -= entry.sent
        if not entry.future.done():
            entry.future.set_exception(_again(error, entry.sent))

    def _fail_all(self, error: UmbelError) -> None:
        self._gone = self._gone or error
        for number in list(self._open):
            self._fail(number, error)
        self._queue.clear()
        self._urgent.clear()
        self._admit()


def _again(error: UmbelError, sent: bool) -> UmbelError:
    """The error once more: raising one instance for many requests would keep all their frames alive in its traceback."""
    copy = from_wire(error.to_wire())
    if isinstance(copy, PeerLost):
        copy.details["delivered"] = "unknown" if sent else "no"
    return copy
