"""The asking side of a mailbox: :class:`Link` to another process, :class:`LocalLink` inside one. See ``mailbox.py``."""

from __future__ import annotations

import asyncio
import itertools
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
from .mailbox import Mailbox


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
        epoch: this incarnation of the asker.
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
        self._frame = 0
        self._cursor = 0
        self._early: dict[int, tuple[list[Any], Sequence[bytes]]] = {}
        self._queue: deque[Envelope] = deque()
        self._urgent: deque[Envelope] = deque()
        self._cancelled: list[int] = []
        self._open: dict[int, _Open] = {}
        self._sent = 0  # open requests that the peer has been sent
        self._definitions: dict[str, Callable[[str], bytes]] = {}
        self._room = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._meeting: asyncio.Future[None] | None = None
        self._gone: UmbelError | None = None

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """Send ``message`` and wait for its reply.

        Args:
            timeout: seconds; after them the peer is told to stop and ``DeadlineExceeded`` is raised.
            on_partial: called with every partial reply, in order.
            urgent: overtake everything that is queued.

        Raises:
            PeerLost: the peer died, or restarted after it had been sent the request.
            DeadlineExceeded: see ``timeout``.
            UmbelError: whatever the peer's handler raised.
        """
        if len(self._queue) >= self._capacity:
            await self.ready()
        number, future = self.ask(message, on_partial, urgent=urgent)
        timer = None
        if timeout is not None:
            timer = asyncio.get_running_loop().call_later(timeout, self._expire, number, type(message).__name__, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            self.abandon(number)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def ask(
        self, message: Frozen, on_partial: Observer | None = None, *, urgent: bool = False
    ) -> tuple[int, asyncio.Future[Any]]:
        """:meth:`request` for those who wait themselves: (number for :meth:`abandon`, future). It heeds no back-pressure."""
        if self._gone is not None:
            raise self._gone
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

    async def ready(self) -> None:
        """Until the queue has room."""
        while self.full and self._gone is None:
            self._room.clear()
            await self._room.wait()

    @property
    def full(self) -> bool:
        """Whether :meth:`request` would have to wait before it sends."""
        return len(self._queue) >= self._capacity

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
        self._fail_all(PeerLost(f"the link to {self.peer} was closed", peer=self.peer, delivered="unknown"))
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
        except Exception as error:  # a fault of ours or the transport's must not leave requests waiting for ever
            self._fail_all(ProtocolError(f"the link to {self.peer} broke: {error!r}"))
        finally:
            self._tasks.pop(what, None)  # in the step that saw the queue empty: whoever posts next starts a new job

    async def _pump(self) -> None:
        while self._queue and self._gone is None:
            if not self._peer_epoch:
                await self._meet()
            taken, wire, large = cut(self._queue, self._is_dead)
            if not self._room.is_set():
                self._room.set()
            self._mark_sent(taken)
            self._frame += 1
            if self._eager and self._sent:
                self._run("collect", self._collect)
            await self._deliver(taken, wire, large)
            if self._sent:
                self._run("collect", self._collect)

    def _mark_sent(self, envelopes: list[Envelope]) -> None:
        for number, _, _ in envelopes:
            if number and not (entry := self._open[number]).sent:
                entry.sent = True
                self._sent += 1

    def _is_dead(self, envelope: Envelope) -> bool:
        return envelope[0] != 0 and envelope[0] not in self._open

    async def _deliver(self, taken: list[Envelope], wire: list[Any], large: list[bytes]) -> None:
        """One frame, resent until this incarnation of the peer has it. A frame that a new incarnation refused unread is queued again."""
        while taken:
            epoch = self._peer_epoch
            head = (FRAME_VERSION, self._name, self._epoch, epoch, self._frame, self._cursor, wire)
            try:
                self.stats["frames"] += 1
                status = self._receive(*await self._transport.deliver(pack(head), large))
            except Unreachable:
                await self._meet()
                if self._peer_epoch != epoch:
                    return
                continue
            if status == WRONG_EPOCH:
                unread = [envelope for envelope in taken if envelope[0] == 0 or envelope[0] in self._open]
                for number, _, _ in unread:
                    if number:
                        self._open[number].sent = False
                        self._sent -= 1
                self._queue.extendleft(reversed(unread))
                await self._meet()
            return

    async def _control(self) -> None:
        while (self._urgent or self._cancelled) and self._gone is None:
            if not self._peer_epoch:
                await self._meet()
            cancelled, self._cancelled = self._cancelled, []
            taken, wire, _ = cut(self._urgent, self._is_dead)
            self._mark_sent(taken)
            epoch = self._peer_epoch
            try:
                await self._transport.control(pack((FRAME_VERSION, self._name, self._epoch, epoch, cancelled, wire)))
            except Unreachable:
                await self._meet()
                if self._peer_epoch == epoch:  # what control carries may arrive twice without harm
                    self._cancelled += cancelled
                    self._urgent.extendleft(reversed(taken))
            if self._sent:
                self._run("collect", self._collect)

    # receiving

    async def _collect(self) -> None:
        resume = False
        while self._sent and self._gone is None:
            epoch = self._peer_epoch
            try:
                self.stats["polls"] += 1
                frames = await self._transport.collect(pack((FRAME_VERSION, self._name, self._epoch, epoch, self._cursor, resume)))
                resume = False
                if self._receive(*frames) == WRONG_EPOCH:
                    await self._meet()
            except Unreachable:
                await self._meet()
                resume = self._peer_epoch == epoch

    def _receive(self, data: bytes, large: Sequence[bytes]) -> int:
        _, epoch, status, first, envelopes = read_frame(data, int, int, int, list)
        if status == STALE_SENDER:
            raise StaleEpoch(f"{self.peer} knows a newer incarnation of {self._name}; this one must stop", peer=self.peer)
        if status == OK and epoch == self._peer_epoch and envelopes:
            if first <= self._cursor:
                envelopes = envelopes[self._cursor + 1 - first :]
                first = self._cursor + 1
            self._early[first] = (envelopes, large)
            while (batch := self._early.pop(self._cursor + 1, None)) is not None:
                self._cursor += len(batch[0])
                for number, kind, part in batch[0]:
                    self._settle(number, kind, part, batch[1])
        return int(status)

    def _settle(self, number: int, kind: str, part: Any, large: Sequence[bytes]) -> None:
        entry = self._open.get(abs(number))
        if entry is None:
            return
        try:
            message = decode(kind, part if type(part) is bytes else body(part, large))
        except ProtocolError as error:
            message = failure(error)
            number = abs(number)
        if number < 0:
            if entry.on_partial is not None:
                entry.on_partial(message)
            return
        del self._open[number]
        self._sent -= entry.sent
        if entry.future.done():
            return
        if type(message) is Failure:
            entry.future.set_exception(from_wire(message.model_dump()))
        else:
            entry.future.set_result(message)

    # what can go wrong

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
        if epoch != self._peer_epoch:
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
        lost = PeerLost(f"{self.peer} restarted before it answered", peer=self.peer, delivered="unknown")
        self._peer_epoch, self._frame, self._cursor = epoch, 0, 0
        self._early.clear()
        self._cancelled.clear()
        for number in [number for number, entry in self._open.items() if entry.sent]:
            self._fail(number, lost)
        queued = [envelope for envelope in self._queue if envelope[0] or not envelope[1].startswith("Define@")]
        self._queue = deque([(0, *encode(Define(definition=key, blob=blob(key)))) for key, blob in self._definitions.items()])
        self._queue.extend(queued)

    def _fail(self, number: int, error: UmbelError) -> None:
        entry = self._open.pop(number)
        self._sent -= entry.sent
        if not entry.future.done():
            entry.future.set_exception(error)

    def _fail_all(self, error: UmbelError) -> None:
        self._gone = error
        for number in list(self._open):
            self._fail(number, error)
        self._queue.clear()
        self._room.set()

    def _expire(self, number: int, what: str, seconds: float) -> None:
        entry = self._open.get(number)
        if entry is not None:
            entry.future.set_exception(DeadlineExceeded(f"{self.peer} did not answer {what} within {seconds:g} s", peer=self.peer))
            self.abandon(number)


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
        self._one_way: set[asyncio.Future[Any]] = set()

    async def request(
        self, message: Frozen, *, timeout: float | None = None, on_partial: Observer | None = None, urgent: bool = False
    ) -> Any:
        """As :meth:`Link.request`; the handler runs inside the caller's task, so cancelling the one cancels the other."""
        try:
            work = self._mailbox.handler(type(message))(message, _LocalCaller(on_partial))
            reply = await (work if timeout is None else asyncio.wait_for(work, timeout))
        except UmbelError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"{self._mailbox.name} did not answer {type(message).__name__} in time") from None
        except Exception as error:  # the border of the actor, as for a remote one
            raise from_wire(failure(error).model_dump()) from error
        if reply is None:
            raise ProtocolError(f"{self._mailbox.name} sent no reply to {type(message).__name__}")
        return reply

    def send(self, message: Frozen) -> None:
        task = asyncio.ensure_future(self._mailbox.handler(type(message))(message, _LocalCaller(None)))
        self._one_way.add(task)
        task.add_done_callback(self._one_way.discard)

    def define(self, definition: str, blob: Callable[[str], bytes]) -> None:
        """Nothing to do: definitions are shared inside a process."""

    async def close(self) -> None:
        """Nothing to stop."""
