"""The batched link between two actors.

One pair of processes shares one link, whatever number of runs talk over it, because a Ray call costs the same whether
it carries one message or a hundred. The asking side holds a ``Link`` (``link.py``), the answering side a :class:`Mailbox`:

    Link --deliver(frame)--> Mailbox    messages of one loop tick (cut at 80 KB), one frame in flight, so order is kept;
                                        the call returns whatever replies are ready at once
    Link --collect(cursor)-> Mailbox    a long poll, only while requests are open: slower replies, and partial ones
    Link --control(frame)--> Mailbox    cancellations and urgent messages, past any queue

Every call names the epoch (incarnation) of both sides. A resent frame is recognised by its number, and of two attempts
at the same call only the later one gets replies. A reply that was lost on the way is sent again until its cursor is
acknowledged, and a peer that restarted fails what it had been sent with ``PeerLost``: nothing is ever silently run
twice. A full mailbox keeps ``deliver`` waiting, which fills the link's queue, which makes ``request`` wait: that is the
back-pressure.

Inside a process ``LocalLink`` (``local_link.py``) hands over the same (frozen) messages without encoding them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..protocol.codec import decode, encode, pack
from ..protocol.commands import Failure
from ..protocol.errors import DecodeError, PeerLost, ProtocolError, RequestCancelled, UmbelError, UnknownKind
from ..protocol.messages import Frozen
from .frames import FRAME_VERSION, OK, STALE_SENDER, WRONG_EPOCH, Envelope, Frames, Handler, body, cut, failure, read_frame

POLL_SECONDS = 20.0
MAX_NUMBER = 2**63
logger = logging.getLogger("umbel.mailbox")


async def _within(future: asyncio.Future[None], seconds: float) -> None:
    timer = asyncio.get_running_loop().call_later(seconds, _wake, future)
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


class Session:
    """What a mailbox keeps for one peer: its running requests, and the replies it has not acknowledged."""

    def __init__(self, peer: str, epoch: int) -> None:
        self.peer = peer
        self.epoch = epoch
        self.frame = 0  # the last one that was started; likewise of control
        self.control_frame = 0
        self.delivery = 0  # the latest attempt to deliver; likewise to collect
        self.collection = 0
        self.entrance = asyncio.Lock()  # frames start one after the other, also when the mailbox is full
        self.running: dict[int, RemoteCaller] = {}
        self.withdrawn: set[int] = set()  # cancelled before they arrived; all of them are in the frame under way
        self.unsent: deque[Envelope] = deque()
        self.unacknowledged: deque[Envelope] = deque()
        self.first_cursor = 1  # of unacknowledged
        self.delivering = False
        self.wake: asyncio.Future[None] | None = None  # of a waiting collect
        self.first_reply: asyncio.Future[None] | None = None  # of a lingering deliver
        self.drained: asyncio.Event | None = None
        self.one_way = itertools.count(-1, -1)

    def post(self, number: int, message: Frozen) -> None:
        kind, blob = encode(message)
        self.unsent.append((number, kind, blob))
        if self.first_reply is not None:
            _wake(self.first_reply)
        elif not self.delivering:
            _wake(self.wake)

    def notify(self) -> None:
        """End a poll."""
        _wake(self.wake)

    async def linger(self, seconds: float) -> None:
        """Until the first reply is posted, at most ``seconds``."""
        self.first_reply = asyncio.get_running_loop().create_future()
        try:
            await _within(self.first_reply, seconds)
        finally:
            self.first_reply = None

    async def poll(self, seconds: float) -> None:
        """Until something is posted that no delivery takes along."""
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

    def withdraw(self, number: int) -> None:
        """Nobody waits for this request any more."""
        caller = self.running.get(number)
        if caller is None:
            self.withdrawn.add(number)
        else:
            caller.withdrawn = True
            caller.stop()

    def stop(self) -> None:
        """Cancel whatever runs, and let go of those who wait."""
        for caller in self.running.values():
            caller.stop()
        self.notify()


class RemoteCaller:
    """The asking side of one request (``Caller``), and the request itself while it runs."""

    __slots__ = ("begun", "key", "number", "session", "stopped", "task", "withdrawn")

    def __init__(self, session: Session, key: int, number: int) -> None:
        self.session = session
        self.key = key
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.stopped = False
        self.withdrawn = False

    def stop(self) -> None:
        self.stopped = True  # a task that has not begun must not be cancelled: its `finally` would never run
        if self.task is not None and self.begun:
            self.task.cancel()

    def send(self, message: Frozen) -> None:
        if self.number and not self.withdrawn:
            self.session.post(-self.number, message)

    async def flow(self) -> None:
        session = self.session
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
        self._closed = False

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
        _, peer, peer_epoch, epoch, call, number, cursor, envelopes = read_frame(data, str, int, int, int, int, int, list)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch:
            return self._refuse(session)
        if call > session.delivery:
            session.delivery = call
            session.acknowledge(cursor)
            async with session.entrance:
                if number > session.frame:
                    await self._enter(session, number, envelopes, large)
                else:
                    session.rewind()
        return self._replies(session, call == session.delivery)

    async def _enter(self, session: Session, number: int, envelopes: list[Any], large: Sequence[bytes]) -> None:
        while self.busy >= self.capacity and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._session(session.peer, session.epoch) is not session:
            return
        session.frame = number
        session.delivering = True
        try:
            self._start(session, envelopes, large)
            await asyncio.sleep(0)
        finally:
            session.withdrawn.clear()
            session.delivering = False
        if self.linger and not session.unsent and session.running:
            await session.linger(self.linger)

    async def collect(self, data: bytes) -> Frames:
        """Replies that were not ready in time; waits up to 20 s for the first."""
        _, peer, peer_epoch, epoch, call, cursor, resume = read_frame(data, str, int, int, int, int, bool)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch:
            return self._refuse(session)
        if call > session.collection:
            session.collection = call
            session.notify()  # ends an earlier poll, whose caller is gone
            session.acknowledge(cursor)
            if resume:
                session.rewind()
            if not session.unsent:
                await session.poll(POLL_SECONDS)
        return self._replies(session, call == session.collection)

    def control(self, data: bytes) -> None:
        """Cancellations and urgent messages; runs at once, whatever is queued."""
        _, peer, peer_epoch, epoch, number, withdrawn, envelopes = read_frame(data, str, int, int, int, list, list)
        session = self._session(peer, peer_epoch)
        if session is None or epoch != self.epoch or number <= session.control_frame:
            return
        session.control_frame = number
        for request in withdrawn:
            session.withdraw(_checked(request))
        self._start(session, envelopes, ())

    async def close(self) -> None:
        """Cancel what runs and wait for it to end."""
        self._closed = True
        self._room.set()
        callers = [caller for session in self._sessions.values() for caller in session.running.values()]
        for session in self._sessions.values():
            session.stop()
        await asyncio.gather(*(caller.task for caller in callers if caller.task is not None), return_exceptions=True)

    def _session(self, peer: str, epoch: int) -> Session | None:
        """The peer's session; None for an incarnation that a newer one has replaced."""
        if self._closed:
            raise PeerLost(f"{self.name} is closed", peer=self.name, delivered="no")
        session = self._sessions.get(peer)
        if session is not None and session.epoch == epoch:
            return session
        if session is not None:
            if epoch < session.epoch:
                return None
            session.stop()
        self._sessions[peer] = session = Session(peer, epoch)
        return session

    def _refuse(self, session: Session | None) -> Frames:
        return pack((FRAME_VERSION, self.epoch, STALE_SENDER if session is None else WRONG_EPOCH, 0, ())), ()

    def _replies(self, session: Session, latest: bool) -> Frames:
        """What is ready; nothing for a call whose caller gave it up and made another."""
        if self._sessions[session.peer] is not session:
            return self._refuse(None)
        first, wire, large = session.take() if latest else (0, [], [])
        if session.unsent:
            session.notify()
        return pack((FRAME_VERSION, self.epoch, OK, first, wire)), large

    def _start(self, session: Session, envelopes: list[Any], large: Sequence[bytes]) -> None:
        create, running, withdrawn = asyncio.get_running_loop().create_task, session.running, session.withdrawn
        try:
            for number, kind, part in envelopes:
                key = _checked(number) or next(session.one_way)
                if key in running:
                    raise DecodeError(f"request {key} runs already")
                if withdrawn and key in withdrawn:
                    continue
                running[key] = caller = RemoteCaller(session, key, number)
                self.busy += 1
                caller.task = create(self._serve(caller, kind, part, large))
        except DecodeError:
            raise
        except (TypeError, ValueError):
            raise DecodeError("an envelope has three parts") from None

    async def _serve(self, caller: RemoteCaller, kind: str, part: Any, large: Sequence[bytes]) -> None:
        session = caller.session
        reply: Any
        try:
            if caller.stopped:
                raise asyncio.CancelledError
            caller.begun = True
            message = decode(kind, part if type(part) is bytes else body(part, large))
            reply = await self.handler(type(message))(message, caller)
        except asyncio.CancelledError:
            reply = failure(RequestCancelled(f"{self.name}: the request was cancelled"))
        except UmbelError as error:
            reply = failure(error)
        except (Exception, SystemExit) as error:  # the border of the actor: whatever a handler raised is the caller's reply
            logger.debug("%s: %s failed", self.name, kind, exc_info=True)
            reply = failure(error)
        finally:
            self.busy -= 1
            del session.running[caller.key]
            if not self._room.is_set() and self.busy < self.capacity:
                self._room.set()
        if caller.withdrawn:
            return
        if caller.number:
            self._reply(caller, kind, reply)
        elif isinstance(reply, Failure):
            logger.warning("%s: one-way %s failed: %s", self.name, kind, reply.message)

    def _reply(self, caller: RemoteCaller, kind: str, reply: Any) -> None:
        if reply is None:
            reply = failure(ProtocolError(f"{self.name} sent no reply to {kind}"))
        try:
            caller.session.post(caller.number, reply)
        except Exception as error:  # noqa: BLE001 - whatever a handler returned, its caller must not wait for ever
            caller.session.post(caller.number, failure(error))


def _checked(number: Any) -> int:
    if type(number) is not int or not 0 <= number < MAX_NUMBER:
        raise DecodeError("a request's number is a whole number")
    return number
