"""The batched link between two actors.

One pair of processes shares one link, whatever number of runs talk over it, because a Ray call costs the same whether
it carries one message or a hundred. The asking side holds a ``Link`` (``link.py``), the answering side a :class:`Mailbox`:

    Link --deliver(frame)--> Mailbox    messages of one loop tick (cut at 80 KB), one frame in flight, so order is kept;
                                        the call returns whatever replies are ready at once
    Link --collect(cursor)-> Mailbox    a long poll, only while requests are open: slower replies, and partial ones
    Link --control(frame)--> Mailbox    cancellations and urgent messages, past any queue

Every frame names the epoch (incarnation) of both sides. A resent frame is recognised by its number, a reply that was
lost on the way is sent again until its cursor is acknowledged, and a peer that restarted fails what it had been sent
with :class:`PeerLost`: nothing is ever silently run twice. A full mailbox keeps ``deliver`` waiting, which fills the
link's queue, which makes ``request`` wait: that is the back-pressure.

Inside a process :class:`LocalLink` hands over the same (frozen) messages without encoding them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..protocol.codec import decode, encode, pack
from ..protocol.errors import DecodeError, ProtocolError, RequestCancelled, UmbelError, UnknownKind
from ..protocol.messages import Frozen
from .frames import FRAME_VERSION, OK, STALE_SENDER, WRONG_EPOCH, Envelope, Frames, Handler, body, cut, failure, read_frame

POLL_SECONDS = 20.0
logger = logging.getLogger("umbel.mailbox")


async def _within(future: asyncio.Future[None], seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        timer.cancel()


class Session:
    """What a mailbox keeps for one peer: its running requests, and the replies it has not acknowledged."""

    def __init__(self, peer: str, epoch: int) -> None:
        self.peer = peer
        self.epoch = epoch
        self.frame = 0
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.cancelled_early: deque[int] = deque(maxlen=1_000)  # cancelled before they began
        self.unsent: deque[Envelope] = deque()
        self.unacknowledged: deque[Envelope] = deque()
        self.first_cursor = 1  # of unacknowledged
        self.delivering = False
        self.wake: asyncio.Future[None] | None = None  # of a waiting collect
        self.first_reply: asyncio.Future[None] | None = None  # of a lingering deliver
        self.drained: asyncio.Event | None = None

    def post(self, number: int, message: Frozen) -> None:
        try:
            kind, blob = encode(message)
        except ProtocolError as error:
            number, (kind, blob) = abs(number), encode(failure(error))
        self.unsent.append((number, kind, blob))
        if self.first_reply is not None:
            if not self.first_reply.done():
                self.first_reply.set_result(None)
        elif not self.delivering:
            self.notify()

    def notify(self) -> None:
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)

    async def linger(self, seconds: float) -> None:
        """Until the first reply is posted, at most ``seconds``."""
        self.first_reply = asyncio.get_running_loop().create_future()
        await _within(self.first_reply, seconds)
        self.first_reply = None

    async def poll(self, seconds: float) -> None:
        """Until something is posted that no delivery takes along. A newer poll ends an older one."""
        self.notify()
        self.wake = wake = asyncio.get_running_loop().create_future()
        await _within(wake, seconds)

    def acknowledge(self, cursor: int) -> None:
        while self.unacknowledged and self.first_cursor <= cursor:
            self.unacknowledged.popleft()
            self.first_cursor += 1

    def rewind(self) -> None:
        """The peer lost a frame: everything it has not acknowledged is sent again."""
        self.unsent.extendleft(reversed(self.unacknowledged))
        self.unacknowledged.clear()

    def take(self) -> tuple[int, list[Any], list[bytes]]:
        """The next replies: (cursor of the first, envelopes, large blobs)."""
        first = self.first_cursor + len(self.unacknowledged)
        taken, wire, large = cut(self.unsent)
        self.unacknowledged.extend(taken)
        if self.drained is not None and len(self.unsent) < Mailbox.OUTBOX:
            self.drained.set()
        return first, wire, large

    def cancel(self, number: int) -> None:
        task = self.tasks.get(number)
        if task is not None:
            task.cancel()
        else:
            self.cancelled_early.append(number)


class _RemoteCaller:
    __slots__ = ("_number", "_session")

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self._number = number

    def send(self, message: Frozen) -> None:
        self._session.post(-self._number, message)

    async def flow(self) -> None:
        session = self._session
        if len(session.unsent) >= Mailbox.OUTBOX:
            session.drained = session.drained or asyncio.Event()
            session.drained.clear()
            await session.drained.wait()


class Mailbox:
    """The answering side: decodes frames, runs a handler per message, returns replies.

    Args:
        name: this actor's stable name, for errors.
        epoch: this incarnation; larger than every earlier one.
        capacity: requests running at once before ``deliver`` waits.
        linger: seconds that ``deliver`` waits for the first reply when none is ready after one tick (for handlers
            that always hop to another thread).
    """

    OUTBOX = 20_000  # posted but unsent messages of a peer before ``Caller.flow`` waits

    def __init__(self, name: str, epoch: int, *, capacity: int = 20_000, linger: float = 0.0) -> None:
        self.name = name
        self.epoch = epoch
        self.capacity = capacity
        self.linger = linger
        self.busy = 0
        self._handlers: dict[type[Frozen], Handler] = {}
        self._sessions: dict[str, Session] = {}
        self._room = asyncio.Event()
        self._one_way = itertools.count(1)

    def on(self, message_class: type[Frozen], handler: Handler) -> None:
        """Serve ``message_class`` with ``async handler(message, caller) -> reply or None``."""
        self._handlers[message_class] = handler

    def handler(self, message_class: type[Frozen]) -> Handler:
        try:
            return self._handlers[message_class]
        except KeyError:
            raise UnknownKind(f"{self.name} does not serve {message_class.__name__}") from None

    async def deliver(self, data: bytes, large: Sequence[bytes] = ()) -> Frames:
        """One frame in, the replies that are ready at once out."""
        _, peer, peer_epoch, epoch, number, cursor, envelopes = read_frame(data, str, int, int, int, int, list)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch:
            return self._refuse(session)
        session.acknowledge(cursor)
        if number <= session.frame:
            session.rewind()
            return self._replies(session)
        session.frame = number
        while self.busy >= self.capacity:
            self._room.clear()
            await self._room.wait()
        session.delivering = True
        self._start(session, envelopes, large)
        await asyncio.sleep(0)
        session.delivering = False
        if self.linger and not session.unsent and session.tasks:
            await session.linger(self.linger)
        return self._replies(session)

    async def collect(self, data: bytes) -> Frames:
        """Replies that were not ready in time; waits up to 20 s for the first."""
        _, peer, peer_epoch, epoch, cursor, resume = read_frame(data, str, int, int, int, bool)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch:
            return self._refuse(session)
        session.acknowledge(cursor)
        if resume:
            session.rewind()
        if not session.unsent:
            await session.poll(POLL_SECONDS)
        return self._replies(session)

    def control(self, data: bytes) -> None:
        """Cancellations and urgent messages; runs at once, whatever is queued."""
        _, peer, peer_epoch, epoch, cancelled, envelopes = read_frame(data, str, int, int, list, list)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch:
            return
        for number in cancelled:
            session.cancel(number)
        self._start(session, envelopes, ())

    async def close(self) -> None:
        """Cancel what runs and wait for it to end."""
        tasks = [task for session in self._sessions.values() for task in session.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in self._sessions.values():
            session.notify()

    def _session(self, peer: str, epoch: int) -> Session | None:
        """The peer's session; None for an incarnation that a newer one has replaced."""
        session = self._sessions.get(peer)
        if session is not None and session.epoch == epoch:
            return session
        if session is not None:
            if epoch < session.epoch:
                return None
            for task in session.tasks.values():
                task.cancel()
            session.notify()
        self._sessions[peer] = session = Session(peer, epoch)
        return session

    def _refuse(self, session: Session | None) -> Frames:
        return pack((FRAME_VERSION, self.epoch, STALE_SENDER if session is None else WRONG_EPOCH, 0, ())), ()

    def _replies(self, session: Session) -> Frames:
        first, wire, large = session.take()
        if session.unsent:
            session.notify()
        return pack((FRAME_VERSION, self.epoch, OK, first, wire)), large

    def _start(self, session: Session, envelopes: list[Any], large: Sequence[bytes]) -> None:
        create, serve = asyncio.get_running_loop().create_task, self._serve
        try:
            work = [serve(session, number, kind, part, large) for number, kind, part in envelopes]
        except (TypeError, ValueError):
            raise DecodeError("an envelope has three parts") from None
        self.busy += len(work)
        for job in work:
            create(job)

    async def _serve(self, session: Session, number: int, kind: str, part: Any, large: Sequence[bytes]) -> None:
        reply: Frozen | None
        key = number or -next(self._one_way)
        session.tasks[key] = asyncio.current_task()  # type: ignore[assignment]  # it runs in one
        try:
            if session.cancelled_early and number in session.cancelled_early:
                raise asyncio.CancelledError
            message = decode(kind, part if type(part) is bytes else body(part, large))
            reply = await self.handler(type(message))(message, _RemoteCaller(session, number))
        except asyncio.CancelledError:
            reply = failure(RequestCancelled(f"{self.name}: the request was cancelled"))
        except UmbelError as error:
            reply = failure(error)
        except Exception as error:  # the border of the actor: whatever a handler raised is the caller's reply
            logger.debug("%s: %s failed", self.name, kind, exc_info=True)
            reply = failure(error)
        finally:
            self.busy -= 1
            del session.tasks[key]
            if not self._room.is_set() and self.busy < self.capacity:
                self._room.set()
        if number:
            session.post(number, reply if reply is not None else failure(ProtocolError(f"{self.name} sent no reply to {kind}")))
        elif isinstance(reply, Failure):
            logger.warning("%s: one-way %s failed: %s", self.name, kind, reply.message)
