"""The batched link between two actors.

One pair of processes shares one link, whatever number of runs talk over it, because a Ray call costs the same whether
it carries one message or a hundred. The asking side holds a ``Link`` (``link.py``), the answering side a :class:`Mailbox`:

    Link --deliver(frame)--> Mailbox    messages of one loop tick (cut at 64 or 80 KB); while a frame is under way, messages
                                        gather for the next one, and a few more leave only when many have gathered;
                                        the mailbox starts frames in their order, whatever order they arrive in;
                                        the call returns whatever replies are ready at once
    Link --collect(cursor)-> Mailbox    a long poll, only while requests are open: slower replies, and partial ones
    Link --control(frame)--> Mailbox    cancellations and urgent messages, past any queue

Every call names the epoch (incarnation) of both sides. A resent frame is recognised by its number, and of two attempts
at the same call only the later one gets replies. A reply that was lost on the way is sent again until its cursor is
acknowledged. A peer that restarted, or that was away so long that it was forgotten, fails what it had been sent with
``PeerLost``: nothing is ever silently run twice. A full mailbox keeps ``deliver`` waiting, which fills the link's queue,
which makes ``request`` wait: that is the back-pressure.

Inside a process ``LocalLink`` (``local_link.py``) hands over the same (frozen) messages without encoding them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ..protocol.codec import decode, pack
from ..protocol.commands import Failure
from ..protocol.errors import DecodeError, PeerLost, ProtocolError, RequestCancelled, UmbelError, UnknownKind
from ..protocol.messages import Frozen
from .burst import begun
from .frames import FORGOTTEN, FRAME_VERSION, OK, STALE_SENDER, WINDOW, WRONG_EPOCH, Frames, Handler, body, failure, read_frame
from .session import RemoteCaller, Session

POLL_SECONDS = 20.0
MAX_NUMBER = 2**63
MAX_FORGOTTEN = 10_000
logger = logging.getLogger("umbel.mailbox")


class Mailbox:
    """The answering side: decodes frames, runs a handler per message, returns replies.

    Args:
        name: this actor's stable name, for errors.
        epoch: this incarnation; larger than every earlier one.
        capacity: requests running at once before ``deliver`` waits.
        linger: seconds that ``deliver`` waits for the first reply when none is ready after one tick (for handlers
            that always hop to another thread).
    """

    def __init__(self, name: str, epoch: int, *, capacity: int = 20_000, linger: float = 0.0) -> None:
        self.name = name
        self.epoch = epoch
        self.capacity = capacity
        self.linger = linger
        self.busy = 0
        self._handlers: dict[type[Frozen], Handler] = {}
        self._sessions: dict[str, Session] = {}
        self._forgotten: dict[str, int] = {}  # peers that were away for long, with their epochs
        self._room = asyncio.Event()
        self._closed = False
        self._holding = False  # nothing more is started here
        self._released = False  # what is held is for the incarnation after this one
        self._loop: asyncio.AbstractEventLoop | None = None

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
        _, peer, peer_epoch, epoch, number, attempt, cursor, envelopes = read_frame(data, str, int, int, int, int, int, list)
        session = self._session(peer, peer_epoch, epoch)
        if not isinstance(session, Session):
            return self._refuse(session)
        if not session.accepts(number, attempt):
            return self._replies(session, latest=False)
        session.acknowledge(cursor)
        if await session.turn(number):
            await self._enter(session, number, envelopes, large)
        else:
            session.rewind()
        if self._released:
            return self._refuse(WRONG_EPOCH)
        return self._replies(session, latest=session.attempts.get(number) == attempt)

    async def _enter(self, session: Session, number: int, envelopes: list[Any], large: Sequence[bytes]) -> None:
        session.entering = True
        try:
            while (self.busy >= self.capacity or self._holding) and not (self._closed or self._released):
                self._room.clear()
                await self._room.wait()
            if self._closed or self._released or self._sessions.get(session.peer) is not session:
                return
            session.frame = number
            session.attempts.pop(number - WINDOW, None)
            self._start(session, envelopes, large)
        finally:
            session.entering = False
            session.advance()
            if session.withdrawn:
                session.forget_withdrawn()
        session.delivering += 1
        try:
            await begun()
        finally:
            session.delivering -= 1
        if self.linger and not session.unsent and session.running:
            await session.linger(self.linger)

    async def collect(self, data: bytes) -> Frames:
        """Replies that were not ready in time; waits up to 20 s for the first."""
        _, peer, peer_epoch, epoch, call, cursor, resume = read_frame(data, str, int, int, int, int, bool)
        session = self._session(peer, peer_epoch, epoch)
        if not isinstance(session, Session):
            return self._refuse(session)
        if call > session.collection:
            session.collection = call
            session.notify()  # ends an earlier poll, whose caller is gone
            session.acknowledge(cursor)
            if resume:
                session.rewind()
            if not session.unsent:
                await session.poll(POLL_SECONDS)
        return self._replies(session, latest=call == session.collection)

    def control(self, data: bytes) -> None:
        """Cancellations and urgent messages; runs at once, whatever is queued."""
        _, peer, peer_epoch, epoch, number, withdrawn, envelopes = read_frame(data, str, int, int, int, list, list)
        session = self._session(peer, peer_epoch, epoch)
        if not isinstance(session, Session) or number <= session.control_frame:
            return
        session.control_frame = number
        for request in withdrawn:
            session.withdraw(_checked(request))
        self._start(session, envelopes, ())

    def hold(self) -> None:
        """Start nothing more: requests wait, while what runs goes on. Cancellations get through."""
        self._holding = True

    @property
    def told(self) -> bool:
        """Whether every reply that is ready has been fetched."""
        return not any(session.unsent for session in self._sessions.values())

    def release(self) -> None:
        """Refuse unread what was held: its senders keep it for the incarnation after this one, which must follow soon."""
        self._released = True
        self._room.set()
        for session in self._sessions.values():
            session.over = True
            session.advance()

    async def close(self) -> None:
        """Cancel what runs and wait for it to end."""
        self._closed = True
        self._room.set()
        for session in self._sessions.values():
            session.stop()
        await begun()
        callers = [caller for session in self._sessions.values() for caller in session.running.values()]
        await asyncio.gather(*(caller.task for caller in callers if caller.task is not None), return_exceptions=True)

    def forget(self, peer: str) -> None:
        """Drop what is kept for a peer that seems to be gone for good; what it asked for is cancelled."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            session.stop()
            self._forgotten[peer] = session.epoch
            if len(self._forgotten) > MAX_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]

    def _session(self, peer: str, peer_epoch: int, epoch: int) -> Session | int:
        """The peer's session, or with what status it is refused."""
        if self._closed:
            raise PeerLost(f"{self.name} is closed", peer=self.name, delivered="no")
        if self._released:
            return WRONG_EPOCH
        session = self._sessions.get(peer)
        known = session.epoch if session is not None else self._forgotten.get(peer, 0)
        if peer_epoch < known:
            return STALE_SENDER
        if epoch != self.epoch:
            return WRONG_EPOCH
        if peer_epoch == known:
            return session or FORGOTTEN
        if session is not None:
            session.stop()
        self._forgotten.pop(peer, None)
        self._sessions[peer] = session = Session(peer, peer_epoch)
        return session

    def _refuse(self, status: int) -> Frames:
        return pack((FRAME_VERSION, self.epoch, status, 0, ())), ()

    def _replies(self, session: Session, *, latest: bool) -> Frames:
        """What is ready; nothing for a call whose caller gave it up and made another, or was forgotten meanwhile."""
        current = self._sessions.get(session.peer)
        if current is not session:
            return self._refuse(OK if current is None else STALE_SENDER)  # its frame may have run: it is not unread
        first, wire, large = session.take() if latest else (0, [], [])
        if session.unsent:
            session.notify()
        return pack((FRAME_VERSION, self.epoch, OK, first, wire)), large

    def _start(self, session: Session, envelopes: list[Any], large: Sequence[bytes]) -> None:
        self._loop = asyncio.get_running_loop()  # asked for once a frame: with Python 3.11 it costs a system call
        running, withdrawn, jobs = session.running, session.withdrawn, session.burst.jobs
        try:
            for number, kind, part in envelopes:
                key = _checked(number) or next(session.one_way)
                if key in running:
                    raise DecodeError(f"request {key} runs already")
                if withdrawn and key in withdrawn:
                    continue
                running[key] = caller = RemoteCaller(session, key, number)
                self.busy += 1
                jobs.append(self._serve(caller, kind, part, large))
        except DecodeError:
            raise
        except (TypeError, ValueError):
            raise DecodeError("an envelope has three parts") from None
        finally:
            session.burst.start()

    async def _serve(self, caller: RemoteCaller, kind: str, part: Any, large: Sequence[bytes]) -> None:
        session = caller.session
        reply: Any
        try:
            if caller.stopped:
                raise asyncio.CancelledError
            caller.task = asyncio.current_task(self._loop)
            message = decode(kind, part if type(part) is bytes else body(part, large))
            handled = self.handler(type(message))(message, caller)
            del part, large, message  # the handler may wait for hours: its bytes need not
            reply = await handled
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
