"""Threads in a bucket: read the head, decide, write what is new, replace the head, and begin again where somebody was faster.

A text that states share is an object of its own. Its first byte says whether a collector means to delete it
(``s3_garbage.py``); a writer stores it before it saves and again after it has saved, so that it is there whoever comes second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ...protocol.codec import to_json
from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import CheckpointError, StoreUnavailable
from ...protocol.messages import NOTHING
from ...protocol.storage import ListThreads, ThreadInfo
from .delta import fold
from .lease import Lease
from .s3_client import S3Client
from .s3_head import Head, new_name, pack, read_head, thread_folder, unpack
from .static_parts import references
from .store import Write, WriteOutcome, encode_metadata, has_values

T = TypeVar("T")
HERE, MARKED = b"+", b"-"
MARK_LENGTH = 32
_NAME_BYTES = 400  # of an id, in the key of a list; a key has room for 1,024 characters
_FACTS_BYTES = 65_536
_TRIES = 3


class S3Threads:
    """What a store does, in threads that may block.

    Args:
        client: the bucket.
        timeout: seconds until a write gives up that others always overtake.
        max_bytes: the largest state.
    """

    def __init__(self, client: S3Client, *, timeout: float, max_bytes: int) -> None:
        self.client = client
        self._timeout, self._max_bytes = timeout, max_bytes
        self._fetchers = ThreadPoolExecutor(8, thread_name_prefix="umbel-s3-fetch")

    def close(self) -> None:
        """End the threads and the connections."""
        self._fetchers.shutdown(wait=True)
        self.client.close()

    def head(self, thread_id: str) -> tuple[Head, str | None, float]:
        """A thread's head, its etag (None when there is none), and the server's time."""
        found = self.client.get(thread_folder(thread_id) + "head")
        return read_head(found.body, thread_id, self.where(thread_id)), found.etag, found.now

    def change(self, thread_id: str, decide: Callable[[Head, float], tuple[Head, T]]) -> T:
        """Replace a head by what ``decide`` makes of it and the time, and answer what else it says.

        ``decide`` is called again for as long as others are faster; what it raises leaves the head alone.

        Raises:
            StoreUnavailable: others were faster until the time was over.
        """
        deadline = time.monotonic() + self._timeout
        wait = 0.005
        while True:
            before, etag, now = self.head(thread_id)
            after, answer = decide(before, now)
            if after == before or self.client.replace(thread_folder(thread_id) + "head", to_json(after), etag):
                return answer
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"others write to {self.where(thread_id)} all the time; try again, or raise ?timeout=")
            time.sleep(random.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, 0.5)

    def commit(self, thread_id: str, writes: Sequence[Write]) -> list[WriteOutcome]:
        """Saves and records of one thread, in order; all of them count from one moment on."""
        stored: dict[str, str] = {}
        superseded: set[str] = set()

        def put(save: SaveCheckpoint) -> str:
            if save.checkpoint_id not in stored:
                fact = CheckpointLoaded(checkpoint_id=save.checkpoint_id, parent_id=save.below, created_at=save.created_at)
                body = pack(fact, save.base, save.state, encode_metadata(save, self._max_bytes))
                stored[save.checkpoint_id] = new_name(save.checkpoint_id, len(save.state))
                self.client.put(thread_folder(thread_id) + stored[save.checkpoint_id], body)
            return stored[save.checkpoint_id]

        def decide(head: Head, now: float) -> tuple[Head, list[WriteOutcome]]:
            nonlocal superseded
            outcomes: list[WriteOutcome] = []
            names = set(head.line)
            for write in writes:
                head, outcome = head.after(write, now, put)
                outcomes.append(outcome)
            superseded = (names | set(stored.values())) - set(head.line)
            return head, outcomes

        saves = [write for write in writes if isinstance(write, SaveCheckpoint)]
        texts = {digest: text for save in saves for digest, text in save.statics.items()}
        self._put_texts(texts)
        if any(save.parent_id is None for save in saves):
            self.client.put(name_key(thread_id), thread_id.encode())
        outcomes = self.change(thread_id, decide)
        self._put_texts(texts)
        for name in superseded:
            self.client.delete(thread_folder(thread_id) + name)
        return outcomes

    def change_lease(self, thread_id: str, change: Callable[[Lease, float], Lease]) -> Lease:
        """Replace a thread's lease; what ``change`` raises leaves it as it is."""

        def decide(head: Head, now: float) -> tuple[Head, Lease]:
            lease = change(head.lease, now)
            return head.with_lease(lease), lease

        return self.change(thread_id, decide)

    def load(self, thread_id: str, checkpoint_id: str | None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""

        def read(head: Head) -> CheckpointLoaded:
            journal = head.journal if checkpoint_id is None else ()
            position = head.newest if checkpoint_id is None else head.find(checkpoint_id)
            if not head.line or position is None:
                return CheckpointLoaded(journal=journal, token=head.token)
            loaded = self.whole(head, position)
            texts = self._texts(references(loaded.state or b"") & set(head.statics))
            return loaded.evolve(journal=journal, token=head.token, statics=texts or NOTHING)

        return self._settled(thread_id, read)

    def _settled(self, thread_id: str, read: Callable[[Head], T]) -> T:
        """What ``read`` makes of the head; again where objects were superseded, folded or deleted meanwhile.

        Raises:
            CheckpointError: an object is damaged.
            StoreUnavailable: it changes faster than it can be read.
        """
        for _ in range(_TRIES):
            head, _, _ = self.head(thread_id)
            try:
                return read(head)
            except CheckpointError:
                if self.head(thread_id)[0] == head:
                    raise
        raise StoreUnavailable(f"{self.where(thread_id)} changes all the time; try again")

    def whole(self, head: Head, position: int) -> CheckpointLoaded:
        """The checkpoint at ``position`` with its whole state.

        Raises:
            CheckpointError: a part of it is missing or damaged.
        """
        where = self.where(head.thread_id)
        names = [head.name(at) for at in range(head.root(position), position + 1)]
        folder = thread_folder(head.thread_id)
        bodies = list(self._fetchers.map(lambda name: self.client.get(folder + name).body, names))
        if None in bodies:
            raise CheckpointError(f"{where} is damaged: {bodies.count(None)} of its objects are missing")
        parts = [unpack(body or b"", where) for body in bodies]
        facts = parts[-1][0]
        deltas = [(int(part["base"]), state) for part, state in parts[1:]]
        state = fold(parts[0][1], deltas, where=f"checkpoint {facts['checkpoint_id']!r} of {where}")
        return self._fact(head, position, facts).evolve(state=state)

    def history(self, thread_id: str, limit: int) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""

        def read(head: Head) -> list[CheckpointLoaded]:
            positions = range(head.newest, max(head.first - 1, head.newest - limit), -1)
            return list(self._fetchers.map(lambda position: self._stored(head, position), positions))

        return self._settled(thread_id, read)

    def _stored(self, head: Head, position: int) -> CheckpointLoaded:
        """The checkpoint at ``position`` without its state, which is not fetched unless it is small.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        where, key = self.where(head.thread_id), thread_folder(head.thread_id) + head.name(position)
        body = self.client.get(key, first=_FACTS_BYTES).body
        if body is not None and b"\n" not in body:
            body = self.client.get(key).body
        if body is None:
            raise CheckpointError(f"{where} is damaged: one of its objects is missing")
        return self._fact(head, position, unpack(body, where)[0])

    def list(self, request: ListThreads) -> Iterable[ThreadInfo]:
        """See :meth:`Store.threads`."""
        page: list[ThreadInfo] = []
        names = self.client.keys(_name_under(request.prefix), name_key(request.after) if request.after else "")
        for key, _, _ in names:
            if len(page) >= request.limit:
                break
            thread_id = self._named(key)
            head, _, now = self.head(thread_id)
            if head.line and thread_id.startswith(request.prefix) and has_values(head.metadata, request.where):
                page.append(head.info(now))
        return page

    def delete(self, thread_id: str, *, only: Callable[[Head, float], bool] = lambda head, now: True) -> Head:
        """Leave a tombstone of a thread if ``only`` says so; answers what it was, without a line when nothing was done."""
        gone = nothing = Head(thread_id=thread_id)

        def decide(head: Head, now: float) -> tuple[Head, Head | None]:
            nonlocal gone
            if not only(head, now):
                return head, None
            gone = head if head.line else gone  # a deletion whose answer was lost is not asked a second time what there was
            return head.emptied(now), gone

        deleted = self.change(thread_id, decide)
        if deleted is None:
            return nothing
        for name in deleted.line:
            self.client.delete(thread_folder(thread_id) + name)
        self.client.delete(name_key(thread_id))
        if self.head(thread_id)[0].line:  # begun anew meanwhile
            self.client.put(name_key(thread_id), thread_id.encode())
        return deleted

    def where(self, thread_id: str) -> str:
        """Names the thread in errors."""
        return f"thread {thread_id!r} in {self.client.place}"

    def _named(self, key: str) -> str:
        name = key.removeprefix("names/")
        if len(name) <= 2 * _NAME_BYTES:
            return bytes.fromhex(name).decode()
        return (self.client.get(key).body or b"").decode()

    def _fact(self, head: Head, position: int, facts: Mapping[str, object]) -> CheckpointLoaded:
        parent = facts["parent_id"] if position > head.first else None
        fact = CheckpointLoaded.model_validate({name: facts[name] for name in ("checkpoint_id", "created_at", "metadata")})
        depth = position - head.root(position)
        return fact.evolve(parent_id=parent, depth=depth)

    def _put_texts(self, texts: Mapping[str, str]) -> None:
        for digest, text in texts.items():
            self.client.put(f"texts/{digest}", HERE + text.encode("utf-8", "surrogatepass"))

    def _texts(self, digests: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for digest in digests:
            body = self.client.get(f"texts/{digest}").body
            if body:
                found[digest] = text_of(body).decode("utf-8", "surrogatepass")
        return found


def text_of(body: bytes) -> bytes:
    """The text in an object, marked or not."""
    return body[1 + MARK_LENGTH :] if body.startswith(MARKED) else body[1:]


def name_key(thread_id: str) -> str:
    """The key that lists a thread: keys sort like ids do, except that ids which share their first 400 bytes sort by hash."""
    data = thread_id.encode()
    if len(data) <= _NAME_BYTES:
        return f"names/{data.hex()}"
    return f"names/{data[:_NAME_BYTES].hex()}~{thread_folder(thread_id)[8:-1]}"


def _name_under(prefix: str) -> str:
    return f"names/{prefix.encode()[:_NAME_BYTES].hex()}"
