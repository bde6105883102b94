"""Checkpoints in Redis or Valkey: for clusters, and for processes on several machines.

Each thread's keys lie in one slot, and a script changes them in one step; a transaction never spans two threads. So the store
works on one server, on a primary with replicas, and in a cluster (``?cluster=yes``).
What was acknowledged is as durable as the server makes it: with ``appendonly yes`` and ``appendfsync always`` it survives
a power cut, with ``everysec`` all but the last second, without ``appendonly`` only as much as the last snapshot holds. A server
that came back empty shows as a conflict to a writer that goes on, never as a thread to begin anew. A ``maxmemory-policy`` that
evicts would drop threads whenever memory is short: only ``noeviction`` is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import ConfigurationError, NotStorable, UmbelError
from ...protocol.messages import NOTHING
from ...protocol.storage import (
    CallsRecorded,
    CollectGarbage,
    GarbageCollected,
    LeaseReleased,
    LeaseTaken,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
    ThreadDeleted,
    ThreadInfo,
    ThreadsListed,
)
from . import redis_scripts as scripts
from .lease import Lease
from .loop_thread import LoopThread
from .redis_client import RedisClient
from .redis_garbage import RedisGarbage
from .redis_keys import Fact, decode_text, encode_text, read_checkpoint, read_info, read_journal, read_lease, write_arguments
from .static_parts import references
from .store import (
    MAX_STATE_BYTES,
    RecordOutcome,
    SaveOutcome,
    Store,
    Write,
    WriteOutcome,
    by_number,
    check_id,
    conflict,
    has_values,
    misplaced,
)
from .url import StoreUrl

_PAGE = 100


class RedisStore(Store):
    """A store in Redis 7 or newer, or in Valkey. Its URL is ``redis://user:password@host:port/number``, with TLS ``rediss://``.

    Args:
        url: of the server, or of any node of a cluster, without our options.
        prefix: of every key.
        timeout: seconds to wait for a connection, and for an answer.
        cluster: the server is a node of a cluster.
        max_bytes: the largest state that one checkpoint may hold.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "umbel:",
        timeout: float = 10.0,
        cluster: bool = False,
        max_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        super().__init__(max_bytes=max_bytes)
        if "{" in prefix or "}" in prefix:
            raise ConfigurationError(
                f"redis:// option prefix={prefix!r} must not contain braces, which name a slot of a cluster"
            )
        self._client = RedisClient(url, prefix=prefix, timeout=timeout, cluster=cluster)
        self.place = self._client.place
        self._garbage = RedisGarbage(self._client)
        self._thread = LoopThread(self.place)

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        """The store of a URL; options are ``prefix``, ``timeout``, ``cluster`` (yes or no), ``max_bytes``, and for TLS
        ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile`` (paths of PEM files).
        """  # noqa: D205 - the options belong together
        parsed = StoreUrl.parse(url)
        tls = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") if parsed.scheme == "rediss" else ()
        parsed.expect("prefix", "timeout", "cluster", "max_bytes", *tls)
        files = "&".join(f"{name}={quote(parsed.options[name])}" for name in tls if name in parsed.options)
        return cls(
            f"{parsed.scheme}://{parsed.place}" + (f"?{files}" if files else ""),
            prefix=parsed.options.get("prefix", "umbel:"),
            timeout=parsed.number("timeout", 10.0),
            cluster=parsed.choice("cluster", "no", ("yes", "no")) == "yes",
            max_bytes=int(parsed.number("max_bytes", MAX_STATE_BYTES)),
        )

    async def open(self) -> None:
        """See :meth:`Store.open`."""
        await self._thread.run(self._client.facts())

    async def warnings(self) -> list[str]:
        """See :meth:`Store.warnings`."""
        facts = await self._thread.run(self._client.facts())
        found = []
        if str(facts.get("aof_enabled", "1")) == "0":
            found.append(
                f"Redis at {self.place} has appendonly off: a restart loses what came after its last snapshot;"
                " set appendonly yes, and appendfsync always to survive a power cut"
            )
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            found.append(
                f"Redis at {self.place} has maxmemory-policy {policy}: it drops threads when memory is short;"
                " set maxmemory-policy noeviction"
            )
        return found

    async def save(self, saves: Sequence[SaveCheckpoint]) -> list[SaveOutcome]:
        """See :meth:`Store.save`."""
        return await self.commit(saves)  # type: ignore[return-value]  # a save's outcome is never CallsRecorded

    async def record(self, records: Sequence[RecordCalls]) -> list[RecordOutcome]:
        """See :meth:`Store.record`."""
        return await self.commit(records)  # type: ignore[return-value]  # a record's outcome is never CheckpointSaved

    async def commit(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """See :meth:`Store.commit`: one script a thread, all of them on their way at once."""
        outcomes: dict[int, WriteOutcome] = {}
        batch: dict[str, list[Any]] = {}
        numbers: dict[str, list[int]] = {}
        for number, write in enumerate(writes):
            try:
                arguments = write_arguments(write, self.max_bytes)
            except NotStorable as error:
                outcomes[number] = error
                continue
            batch.setdefault(write.thread_id, [write.thread_id]).extend(arguments)
            numbers.setdefault(write.thread_id, []).append(number)
        sound = [write for number, write in enumerate(writes) if number not in outcomes]
        answers = await self._thread.run(self._write(batch, sound))
        self.commits += 1
        pairs = zip(numbers.values(), answers, strict=True)
        read = [
            answer
            if isinstance(answer, UmbelError)
            else [_outcome(writes[number], part) for number, part in zip(mine, answer, strict=True)]
            for mine, answer in pairs
        ]
        outcomes |= by_number(numbers.values(), read)
        return [outcomes[number] for number in range(len(writes))]

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        check_id(thread_id)
        check_id(checkpoint_id or "")
        return await self._thread.run(self._load(thread_id, "" if checkpoint_id is None else f"={checkpoint_id}"))

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        check_id(thread_id)
        rows = await self._one(scripts.HISTORY, thread_id, max(0, limit))
        where = f"thread {thread_id!r} in Redis at {self.place}"
        return [Fact.unpack(fact, where).loaded(int(position)) for position, fact in rows]

    async def lease(self, request: TakeLease) -> LeaseTaken:
        """See :meth:`Store.lease`. The clock is the server's."""
        check_id(request.thread_id)
        check_id(request.owner)
        Lease().taken(request, 0.0)  # refuses a request that makes no sense
        arguments = (request.thread_id, request.owner, round(request.seconds * 1000), "1" if request.steal else "")
        kind, *answer = await self._one(scripts.LEASE, request.thread_id, *arguments)
        lease, now = read_lease(answer)
        return lease.answer() if kind == b"taken" else lease.taken(request, now).answer()

    async def release(self, request: ReleaseLease) -> LeaseReleased:
        """See :meth:`Store.release`."""
        check_id(request.thread_id)
        check_id(request.owner)
        await self._one(scripts.RELEASE, request.thread_id, request.owner, request.token)
        return LeaseReleased()

    async def threads(self, request: ListThreads) -> ThreadsListed:
        """See :meth:`Store.threads`."""
        check_id(request.prefix)
        check_id(request.after)
        return ThreadsListed(threads=tuple(await self._thread.run(self._list(request))))

    async def delete(self, thread_id: str) -> ThreadDeleted:
        """See :meth:`Store.delete`."""
        check_id(thread_id)
        count, _ = await self._thread.run(self._garbage.delete(thread_id))
        return ThreadDeleted(existed=count > 0)

    async def collect(self, request: CollectGarbage) -> GarbageCollected:
        """See :meth:`Store.collect`. Also repairs the list of threads."""
        return await self._thread.run(self._garbage.collect(request))

    async def close(self) -> None:
        """See :meth:`Store.close`."""
        await self._thread.close(self._client.close())

    # What follows runs in the store's own loop.

    async def _one(self, script: scripts.Script, thread_id: str, *arguments: Any) -> Any:
        [answer] = await self._thread.run(self._client.call([self._client.about(script, thread_id, *arguments)]))
        return answer

    async def _write(self, batch: dict[str, list[Any]], writes: Sequence[Write]) -> list[Any]:
        """The answers for the threads of ``batch``, or errors."""
        saves = [write for write in writes if isinstance(write, SaveCheckpoint)]
        texts = {digest: text for save in saves for digest, text in save.statics.items()}
        await self._put(texts)
        # Listed before it is there: a crash in between leaves a name that lists as nothing, not a thread that nobody finds.
        if begun := sorted({save.thread_id for save in saves if save.parent_id is None}):
            await self._client.command("ZADD", self._client.index, *(part for name in begun for part in (0, name)))
        about = self._client.about
        answers = await self._client.attempt([about(scripts.WRITE, thread_id, *rest) for thread_id, rest in batch.items()])
        if not all(isinstance(answer, UmbelError) for answer in answers):
            await self._put(texts)
        return answers

    async def _put(self, texts: Mapping[str, str]) -> None:
        """Store texts, before the saves that refer to them and again after: a collector may have been between the two."""
        about = self._client.about_text
        await self._client.call([about(scripts.PUT, digest, encode_text(text)) for digest, text in texts.items()])

    async def _load(self, thread_id: str, wanted: str) -> CheckpointLoaded:
        [answer] = await self._client.call([self._client.about(scripts.LOAD, thread_id, wanted)])
        where = f"thread {thread_id!r} in Redis at {self.place}"
        token, noted = int(answer[0]), read_journal(answer[1], where)
        if len(answer) == 2:
            return CheckpointLoaded(journal=noted, token=token)
        loaded = read_checkpoint(answer[2:], where)
        digests = sorted(references(loaded.state or b"") & {digest.decode() for digest in answer[5]})
        texts = [await self._client.text(digest) for digest in digests]
        statics = {digest: decode_text(text) for digest, text in zip(digests, texts, strict=True) if text is not None}
        return loaded.evolve(journal=noted, token=token, statics=statics or NOTHING)

    async def _list(self, request: ListThreads) -> list[ThreadInfo]:
        page: list[ThreadInfo] = []
        after = request.after
        while len(page) < request.limit:
            names = await self._names(request.prefix, after)
            answers = await self._client.call([self._client.about(scripts.INFO, name) for name in names])
            infos = [read_info(answer, self.place) for answer in answers if answer]
            page += [info for info in infos if has_values(info.metadata, request.where)]
            if len(names) < _PAGE:
                break
            after = names[-1]
        return page[: request.limit]

    async def _names(self, prefix: str, after: str) -> list[str]:
        """The next listed ids that begin with ``prefix``. Redis orders bytes, which is the order of characters in UTF-8."""
        start = f"({after}" if after and after >= prefix else f"[{prefix}"
        names = await self._client.command("ZRANGEBYLEX", self._client.index, start, "+", "LIMIT", 0, _PAGE)
        return [name for name in (name.decode() for name in names) if name.startswith(prefix)]


def _outcome(write: Write, answer: Sequence[Any]) -> WriteOutcome:
    kind, *rest = answer
    if kind == b"conflict":
        assert isinstance(write, SaveCheckpoint)
        return conflict(write, rest[0].decode() if rest and rest[0] is not None else None)
    if kind == b"misplaced":
        assert isinstance(write, SaveCheckpoint)
        return misplaced(write)
    if kind == b"stale":
        lease, now = read_lease(rest)
        refusal = lease.refusal(write.thread_id, write.token, now)
        assert refusal is not None
        return refusal
    return CheckpointSaved(checkpoint_id=write.checkpoint_id) if isinstance(write, SaveCheckpoint) else CallsRecorded()
