"""The asking side of a mailbox in another process. See ``mailbox.py``."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.codec import encode, pack
from ..protocol.commands import Define
from ..protocol.errors import DeadlineExceeded, PeerLost, ProtocolError, StaleEpoch, UmbelError
from ..protocol.messages import Frozen
from .frames import (
    FORGOTTEN,
    FRAME_MESSAGES,
    FRAME_VERSION,
    OK,
    STALE_SENDER,
    WINDOW,
    WRONG_EPOCH,
    Envelope,
    Frames,
    Observer,
    Transport,
    Unreachable,
    Unsent,
    cut,
    read_frame,
)
from .local_link import LocalLink
from .open_requests import OpenRequests, again

__all__ = ["Link", "LocalLink"]
WORTH_A_CALL = 32  # messages that have queued up, before a further frame leaves while others are under way
logger = logging.getLogger("umbel.mailbox")
_Answer = asyncio.Future[Frames]
_Sent = tuple[tuple[int, int], int, list[Any], list[bytes], _Answer] | None  # session, frame, its envelopes and large blobs


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
        patience: seconds that a peer which is away is waited for; then what is open fails with ``PeerLost``, and a later
            request tries anew. None waits for ever.
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
        patience: float | None = None,
    ) -> None:
        self.peer = peer
        self.stats = {"messages": 0, "frames": 0, "polls": 0, "restarts": 0, "bytes_out": 0, "bytes_in": 0}
        self._name = name
        self._session = (epoch, 0)  # this side's epoch, and the peer's, once it is known
        self._transport = transport
        self._capacity = capacity
        self._backoff = backoff
        self._eager = eager
        self._patience = patience
        self._polls = itertools.count(1)
        self._frame = 0
        self._under_way: dict[int, list[Envelope]] = {}  # frames of this incarnation of the peer
        self._unsent: set[int] = set()  # of those: have not left, because the connection had broken before
        self._pump_names = itertools.count(1)
        self._pumps = 0
        self._fresh = False  # a pump has been started and has not taken its first frame
        self._control_frame = 0
        self._resume = False  # replies may have been lost with a failed collect
        self._queue: deque[Envelope] = deque()
        self._urgent: deque[Envelope] = deque()
        self._cancelled: list[int] = []
        self._requests = OpenRequests(peer)
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
        del message  # it is on its way, and the reply may take hours
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
            raise again(self._gone, sent=False)
        kind, blob = encode(message)
        number, future = self._requests.add(on_partial)
        self._post((number, kind, blob), urgent)
        return number, future

    def abandon(self, number: int) -> None:
        """Nobody waits for this request any more: the peer is told to stop it."""
        if self._requests.drop(number) and self._gone is None:
            self._cancelled.append(number)
            self._run("control", self._control)

    async def told(self, seconds: float = 1.0) -> None:
        """Until the peer has been told of what was abandoned, at most ``seconds``."""
        task = self._tasks.get("control")
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)

    @property
    def gone(self) -> bool:
        """Whether the peer is gone for good, or this link was closed."""
        return self._gone is not None

    @property
    def met(self) -> bool:
        """Whether the peer is known to be there: it has been reached, and nothing has gone wrong since."""
        return bool(self._session[1]) and self._meeting is None and self._gone is None

    def meet(self) -> None:
        """Reach the peer before anything is to be sent."""
        if not self._session[1] and self._meeting is None and self._gone is None:
            self._run("meet", self._meet)

    @property
    def full(self) -> bool:
        """Whether :meth:`request` would have to wait before it sends."""
        return len(self._queue) >= self._capacity

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
        self._transport.close()

    # sending

    def _post(self, envelope: Envelope, urgent: bool = False) -> None:
        if urgent:
            self._urgent.append(envelope)
            self._run("control", self._control)
            return
        self._queue.append(envelope)
        waiting = len(self._queue)
        if waiting >= FRAME_MESSAGES and self._pumps < WINDOW and self._introduced and self._meeting is None:
            self._start_pump(self._send())
        elif not self._fresh and (not self._pumps or (waiting >= WORTH_A_CALL and self._pumps < WINDOW)):
            self._fresh = True
            self._start_pump()

    def _start_pump(self, sent: _Sent | None = None) -> None:
        """Frames leave on the next tick, so that one burst is one frame; a full one (``sent``) has left already."""
        self._pumps += 1
        self._run(f"pump {next(self._pump_names)}", lambda: self._pump(sent))

    def _run(self, what: str, job: Callable[[], Any]) -> None:
        """Start a background job of this link unless it runs already."""
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

    async def _pump(self, sent: _Sent | None) -> None:
        """Send frames until the queue is empty; of several pumps only one goes on when the queue is short."""
        fresh = sent is None
        try:
            if sent is not None:
                await self._answered(sent)
            while self._queue and self._gone is None and (self._pumps == 1 or len(self._queue) >= WORTH_A_CALL):
                if not self._session[1] or self._meeting is not None:
                    await self._meet()
                    continue
                fresh = self._fresh = False
                if not self._introduced:
                    self._introduce()
                sent = self._send()
                if len(self._queue) >= WORTH_A_CALL and self._pumps < WINDOW:
                    self._fresh = True
                    self._start_pump()
                await self._answered(sent)
        finally:
            self._pumps -= 1
            if fresh:
                self._fresh = False

    def _send(self) -> _Sent:
        """Hand the next frame to the transport."""
        taken, wire, large = cut(self._queue, self._requests.by_number)
        self._admit()
        self._requests.mark_sent(taken)
        self.stats["messages"] += len(taken)
        if self._eager and self._requests.sent:
            self._run("collect", self._collect)
        if not taken:
            return None
        self._frame += 1
        self._under_way[self._frame] = taken
        return self._session, self._frame, wire, large, self._hand_over(self._session, self._frame, 1, wire, large)

    def _hand_over(self, session: tuple[int, int], frame: int, attempt: int, wire: list[Any], large: list[bytes]) -> _Answer:
        self.stats["frames"] += 1
        head = (FRAME_VERSION, self._name, *session, frame, attempt, self._requests.cursor, wire)
        packed = pack(head)
        self.stats["bytes_out"] += len(packed) + sum(map(len, large))
        return asyncio.ensure_future(self._transport.deliver(packed, large))

    async def _answered(self, sent: _Sent) -> None:
        """Wait for a frame's answer; it is resent until this incarnation of the peer has it."""
        if sent is None:
            return
        session, frame, wire, large, answer = sent
        under_way = self._under_way
        for attempt in itertools.count(1):
            try:
                status = self._receive(session, *await answer)
            except Unreachable as error:
                if isinstance(error, Unsent) and attempt == 1 and session == self._session:
                    self._unsent.add(frame)
                if await self._still(session):
                    self._unsent.discard(frame)
                    answer = self._hand_over(session, frame, attempt + 1, wire, large)
                    continue
                break
            if status in {WRONG_EPOCH, FORGOTTEN}:
                if attempt == 1 and session == self._session:  # an earlier attempt may have run; what followed may be there
                    self._take_back(frame)
                await self._renew(session, status)
            break
        under_way.pop(frame, None)
        if self._requests.sent:
            self._run("collect", self._collect)

    def _take_back(self, refused: int) -> None:
        """The peer refused a frame unread: it is queued again, with those that would have followed it."""
        under_way = self._under_way
        numbers = sorted(number for number in under_way if number >= refused)
        unread = [envelope for number in numbers for envelope in self._requests.take_back(under_way.pop(number))]
        self._queue.extendleft(reversed(unread))

    async def _control(self) -> None:
        while (self._urgent or self._cancelled) and self._gone is None:
            if not self._session[1]:
                await self._meet()
                continue
            cancelled, self._cancelled = self._cancelled, []
            taken, wire, _ = cut(self._urgent, self._requests.by_number, by_reference=False)
            self._requests.mark_sent(taken)
            self.stats["messages"] += len(taken)
            self._control_frame += 1
            session = self._session
            frame = pack((FRAME_VERSION, self._name, *session, self._control_frame, cancelled, wire))
            while True:
                try:
                    await self._transport.control(frame)
                except Unreachable:
                    if await self._still(session):
                        continue
                break
            if self._requests.sent:
                self._run("collect", self._collect)

    # receiving

    async def _collect(self) -> None:
        while self._requests.sent and self._gone is None:
            session = self._session
            head = (FRAME_VERSION, self._name, *session, next(self._polls), self._requests.cursor, self._resume)
            self.stats["polls"] += 1
            try:
                status = self._receive(session, *await self._transport.collect(pack(head)))
            except Unreachable:
                self._resume = await self._still(session)
                continue
            self._resume = False
            if status in {WRONG_EPOCH, FORGOTTEN}:
                await self._renew(session, status)

    def _receive(self, session: tuple[int, int], data: bytes, large: Sequence[bytes]) -> int:
        self.stats["bytes_in"] += len(data) + sum(map(len, large))
        _, epoch, status, first, envelopes = read_frame(data, int, int, int, list)
        if status == STALE_SENDER and session[0] == self._session[0]:
            raise StaleEpoch(f"{self.peer} knows a newer incarnation of {self._name}; this one must stop", peer=self.peer)
        if status == OK and epoch == session[1] and session == self._session and envelopes:
            self._requests.receive(first, envelopes, large)
        return int(status)

    # what can go wrong

    async def _still(self, session: tuple[int, int]) -> bool:
        """After a call that failed: whether that incarnation of the peer is there, so that the call can be made again."""
        await self._meet()
        if self._gone is not None or self._session != session:
            return False
        await asyncio.sleep(self._backoff)
        return self._session == session and self._gone is None

    async def _renew(self, session: tuple[int, int], status: int) -> None:
        """The peer does not know the session: it has restarted, or it has forgotten this side, which was away for long."""
        if status == WRONG_EPOCH:
            await self._still(session)
        elif self._session == session:
            self._begin((session[0] + 1, session[1]))

    async def _meet(self) -> None:
        """Learn the peer's epoch, waiting for it to come back; a new one fails what the old one had been sent."""
        if self._meeting is not None:
            await asyncio.shield(self._meeting)
            return
        self._meeting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._patience):
                epoch = await self._hello()
        except TimeoutError:
            self._despair()
            return
        except UmbelError as error:
            self._fail_all(error)
            return
        finally:
            self._meeting.set_result(None)
            self._meeting = None
        if epoch != self._session[1] and self._gone is None:
            self._begin((self._session[0], epoch))

    async def _hello(self) -> int:
        delay = self._backoff
        while True:
            try:
                return await self._transport.hello()
            except Unreachable:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)

    def _despair(self) -> None:
        """The peer stays away: what waits for it fails, and whatever an old incarnation may still say does not count."""
        why = f"{self.peer} did not come back within {self._patience:g} s: its node may be lost, and no other has room for it"
        self._requests.fail_all(PeerLost(why, peer=self.peer))
        self._begin((self._session[0] + 1, 0))
        self._queue.clear()
        self._urgent.clear()
        self._admit()

    def _begin(self, session: tuple[int, int]) -> None:
        """A peer that knows nothing: definitions go first, and what it had been sent before has failed."""
        if self._session[1]:
            self.stats["restarts"] += 1
        unread = [
            envelope for frame in sorted(self._unsent) for envelope in self._requests.take_back(self._under_way.get(frame, []))
        ]
        self._queue.extendleft(reversed(unread))
        self._unsent.clear()
        self._session = session
        self._frame = self._control_frame = 0
        self._introduced = self._resume = False
        self._under_way = {}
        self._cancelled.clear()
        self._requests.restart(PeerLost(f"{self.peer} restarted, or lost touch, before it answered", peer=self.peer))

    def _introduce(self) -> None:
        self._introduced = True
        queued = [envelope for envelope in self._queue if envelope[0] or not envelope[1].startswith("Define@")]
        self._queue = deque([(0, *encode(Define(definition=key, blob=blob(key)))) for key, blob in self._definitions.items()])
        self._queue.extend(queued)

    def _fail_all(self, error: UmbelError) -> None:
        self._gone = self._gone or error
        self._requests.fail_all(error)
        self._queue.clear()
        self._urgent.clear()
        self._admit()
