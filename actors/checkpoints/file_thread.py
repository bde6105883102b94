"""A thread's folder in a file store: a file for each checkpoint, and ``thread.json`` that says which of them count.

A save writes its checkpoint first and ``thread.json`` last; only then it has happened. A file behind the newest checkpoint
comes from a save that never ended, and is removed by the next one. Positions only grow: a save that supersedes others says
in ``thread.json`` where that leaves a gap, and then removes the files in it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from pydantic_core import from_json

from ...protocol.codec import to_json
from ...protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from ...protocol.errors import CheckpointError, NotStorable
from ...protocol.messages import NOTHING
from ...protocol.storage import CallsRecorded, CollectGarbage, GarbageCollected, RecordCalls, ThreadInfo
from .delta import fold
from .durable_file import TEMPORARY, DurableFiles, read_whole
from .file_record import RECORD, ThreadRecord
from .file_texts import TextFolder
from .lease import Lease
from .static_parts import references
from .store import (
    RecordOutcome,
    SaveOutcome,
    Write,
    WriteOutcome,
    conflict,
    encode_entries,
    encode_metadata,
    misplaced,
)

LOCK = "lock"
SUFFIX = ".checkpoint"
_CHECKPOINT = re.compile(r"(\d{8,})-[0-9a-f]{40}\.checkpoint")


class ThreadFolder:
    """One thread. Its methods block, and may be called by any thread of any process.

    Args:
        folder: where it is, or will be.
        thread_id: the thread.
        texts: the store's texts.
        files: how its files are written.
        max_bytes: the largest state.
    """

    def __init__(self, folder: Path, thread_id: str, texts: TextFolder, files: DurableFiles, max_bytes: int) -> None:
        self._folder = folder
        self._thread_id = thread_id
        self._texts = texts
        self._files = files
        self._max_bytes = max_bytes

    def write(self, writes: Sequence[Write], now: float) -> list[WriteOutcome]:
        """Saves and records, in order; all of them count from one moment on."""
        with self._locked(), ExitStack() as stack:
            if any(isinstance(write, SaveCheckpoint) and write.statics for write in writes):
                stack.enter_context(self._texts.in_use())
            before = record = self._open()
            names = self._clean(record)
            record = record.evolve(gaps=()) if record.gaps else record
            outcomes: list[WriteOutcome] = []
            for write in writes:
                outcome: WriteOutcome
                if isinstance(write, SaveCheckpoint):
                    record, outcome = self._save(record, names, write, now)
                else:
                    record, outcome = self._record(record, write, now)
                outcomes.append(outcome)
            if record is not before:
                self._put(record)
            if record.gaps:
                self._clean(record)
            return outcomes

    def change_lease(self, change: Callable[[Lease], Lease]) -> Lease:
        """Replace the lease by what ``change`` makes of it; what it raises leaves it as it is."""
        with self._locked():
            record = self._read() or ThreadRecord(thread_id=self._thread_id)
            lease = change(record.lease)
            if lease != record.lease:
                self._put(record.with_lease(lease))
            return lease

    def load(self, checkpoint_id: str | None) -> CheckpointLoaded:
        """See :meth:`Store.load`."""
        with self._shared() as record:
            if record is None:
                return CheckpointLoaded()
            names = self._names(record)
            journal = record.journal if checkpoint_id is None else ()
            position = record.newest if checkpoint_id is None else _find(names, checkpoint_id)
            if not position:
                return CheckpointLoaded(journal=journal, token=record.token)
            facts, state, depth = self._fold(record, names, position)
            texts = self._texts.read(set(record.statics) & references(state))
            return _loaded(facts, depth, state).evolve(journal=journal, statics=texts or NOTHING, token=record.token)

    def history(self, limit: int) -> list[CheckpointLoaded]:
        """See :meth:`Store.history`."""
        with self._shared() as record:
            if record is None or limit < 1:
                return []
            names = self._names(record)
            older = {position: number for number, position in enumerate(sorted(names))}
            found: list[CheckpointLoaded] = []
            position = record.newest
            while position >= record.first and len(found) < limit:
                facts, _ = self._checkpoint(names, position)
                found.append(_loaded(facts, min(facts["depth"], older[position]), None))
                position = _below(facts, position)
            return found

    def info(self, now: float) -> ThreadInfo | None:
        """What a list tells of the thread; None when it holds nothing."""
        with self._shared() as record:
            if record is None or record.checkpoint_id is None:
                return None
            names = self._names(record)
            return ThreadInfo(
                thread_id=record.thread_id,
                checkpoint_id=record.checkpoint_id,
                checkpoints=len(names),
                bytes=self._size(names),
                created_at=record.created_at,
                updated_at=record.updated_at,
                metadata=record.metadata,
                owner=record.lease.holder(now),
            )

    def delete(self, now: float) -> bool:
        """Delete everything but the tombstone; whether there was a checkpoint."""
        with self._locked():
            record = self._read() or ThreadRecord(thread_id=self._thread_id)
            self._delete(record, now)
            return record.newest > 0

    def collect(self, request: CollectGarbage, now: float) -> GarbageCollected:
        """Free what the thread has to free, unless somebody holds it."""
        with self._locked():
            record = self._read()
            if record is None or record.lease.holder(now) is not None:
                return GarbageCollected()
            names = self._clean(record)
            threads = checkpoints = tombstones = 0
            before = self._size(names)
            limit, keep = request.limit(self._thread_id), request.kept(self._thread_id)
            if record.newest and limit is not None and record.updated_at < now - limit:
                threads, checkpoints = 1, len(names)
                self._delete(record, now)
            elif record.newest and keep is not None:
                checkpoints = self._keep(record, names, keep)
            elif record.lease.is_forgotten(request.tombstones, now) and not record.journal:
                tombstones = 1
                self._forget()
            freed = before - self._size(self._names(self._read() or record.evolve(newest=0)))
            return GarbageCollected(threads=threads, checkpoints=checkpoints, tombstones=tombstones, bytes=max(0, freed))

    def _save(
        self, record: ThreadRecord, names: dict[int, str], save: SaveCheckpoint, now: float
    ) -> tuple[ThreadRecord, SaveOutcome]:
        try:
            metadata = from_json(encode_metadata(save, self._max_bytes))
            encode_entries(save.thread_id, save.entries, self._max_bytes)
        except NotStorable as error:
            return record, error
        if _find(names, save.checkpoint_id):
            return record, CheckpointSaved(checkpoint_id=save.checkpoint_id)
        refusal = record.lease.refusal(save.thread_id, save.token, now)
        if refusal is not None:
            return record, refusal
        if save.parent_id != record.checkpoint_id:
            return record, conflict(save, record.checkpoint_id)
        if save.supersedes:
            way = self._make_way(record, names, save)
            if way is None:
                return record, misplaced(save)
            record = way
        position = record.newest + 1
        depth = record.depth + 1 if save.kind == "delta" else 0
        facts = {
            "checkpoint_id": save.checkpoint_id,
            "parent_id": save.below,
            "below": max(names, default=0),
            "depth": depth,
            "base": save.base,
            "created_at": save.created_at,
            "metadata": metadata,
        }
        names[position] = _name(position, save.checkpoint_id)
        self._put_checkpoint(names[position], facts, save.state)
        self._texts.write(save.statics)
        record = record.evolve(
            newest=position,
            checkpoint_id=save.checkpoint_id,
            depth=depth,
            created_at=save.created_at if len(names) == 1 else record.created_at,
            updated_at=save.created_at,
            metadata=metadata,
            statics=tuple(sorted({*record.statics, *save.statics})),
        )
        record = record.with_lease(record.lease.begun()).with_entries(save.entries, settles=save.settles)
        return record, CheckpointSaved(checkpoint_id=save.checkpoint_id)

    def _make_way(self, record: ThreadRecord, names: dict[int, str], save: SaveCheckpoint) -> ThreadRecord | None:
        """The record without what ``save`` supersedes, as are ``names``; None when that does not stand where it says."""
        positions = sorted(names)
        gone = positions[-save.supersedes :] or [0]
        onto = positions[-save.supersedes - 1] if len(positions) > save.supersedes else 0
        if (_find(names, save.onto) if save.onto is not None else 0) != onto:
            return None
        depth = min(self._checkpoint(names, onto)[0]["depth"], positions.index(onto)) if onto else 0
        for position in gone:
            names.pop(position, None)
        first = record.first if onto else record.newest + 1
        return record.evolve(first=first, depth=depth, gaps=(*record.gaps, (gone[0], gone[-1])))

    def _record(self, record: ThreadRecord, calls: RecordCalls, now: float) -> tuple[ThreadRecord, RecordOutcome]:
        try:
            encode_entries(calls.thread_id, calls.entries, self._max_bytes)
        except NotStorable as error:
            return record, error
        refusal = record.lease.refusal(calls.thread_id, calls.token, now)
        return (record, refusal) if refusal is not None else (record.with_entries(calls.entries), CallsRecorded())

    def _delete(self, record: ThreadRecord, now: float) -> None:
        names = self._names(record)
        self._put(ThreadRecord(thread_id=record.thread_id).with_lease(record.lease.deleted(now)))
        for name in names.values():
            (self._folder / name).unlink()

    def _forget(self) -> None:
        """Remove the folder at once: whoever waits for its lock makes a new one."""
        away = self._folder.with_name(f"{self._folder.name}.{uuid4().hex}{TEMPORARY}")
        self._folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)  # what stays, the next collection sweeps

    def _keep(self, record: ThreadRecord, names: dict[int, str], count: int) -> int:
        """Fold all but the newest ``count`` checkpoints into the oldest that stays, and say how many those were."""
        positions = sorted(names)
        if len(positions) <= count:
            return 0
        first = positions[-count]
        facts, state, _ = self._fold(record, names, first)
        # Until thread.json says so, it stands in for the chain that it was folded from: nothing changes for who loads.
        self._put_checkpoint(names[first], {**facts, "depth": 0, "base": 0, "parent_id": None}, state)
        kept = {position: name for position, name in names.items() if position >= first}
        used = set().union(*(references(self._checkpoint(kept, position)[1]) for position in kept))
        depth = min(record.depth, count - 1)
        statics = tuple(digest for digest in record.statics if digest in used)
        self._put(record.evolve(first=first, depth=depth, created_at=facts["created_at"], statics=statics))
        for position in names.keys() - kept.keys():
            (self._folder / names[position]).unlink()
        return len(names) - len(kept)

    def _fold(self, record: ThreadRecord, names: dict[int, str], position: int) -> tuple[dict[str, Any], bytes, int]:
        """The facts of a checkpoint, its whole state, and how many deltas that took."""
        facts, state = self._checkpoint(names, position)
        deltas: list[tuple[int, bytes]] = []
        below, depth = position, facts["depth"]
        first, snapshot = facts, state
        while depth > 0:
            deltas.append((first["base"], snapshot))
            below = _below(first, below)
            first, snapshot = self._checkpoint(names, below)
            depth = first["depth"]
        where = f"checkpoint {facts['checkpoint_id']!r} of thread {record.thread_id!r} in {self._folder}"
        return facts, fold(snapshot, deltas[::-1], where=where), len(deltas)

    def _checkpoint(self, names: dict[int, str], position: int) -> tuple[dict[str, Any], bytes]:
        payload = read_whole(self._folder / names[position]) if position in names else None
        if payload is None:
            raise CheckpointError(
                f"thread {self._thread_id!r} is damaged: checkpoint number {position} is missing in {self._folder};"
                " restore a backup"
            )
        facts, _, state = payload.partition(b"\n")
        return json.loads(facts), state

    def _put_checkpoint(self, name: str, facts: dict[str, Any], state: bytes) -> None:
        self._files.write(self._folder / name, json.dumps(facts).encode() + b"\n" + state)

    def _open(self) -> ThreadRecord:
        """The record, which is written before anything else: without it the folder's checkpoints would seem lost."""
        record = self._read()
        if record is None:
            record = ThreadRecord(thread_id=self._thread_id)
            self._put(record)
        return record

    def _read(self) -> ThreadRecord | None:
        payload = read_whole(self._folder / RECORD)
        if payload is None:
            if any(self._folder.glob(f"*{SUFFIX}")):
                raise CheckpointError(f"thread {self._thread_id!r} is damaged: {self._folder / RECORD} is missing")
            return None
        try:
            return ThreadRecord.model_validate_json(payload)
        except ValidationError as error:
            raise CheckpointError(f"{self._folder / RECORD} is damaged: {error.errors()[0]['msg']}") from None

    def _put(self, record: ThreadRecord) -> None:
        self._files.write(self._folder / RECORD, to_json(record))

    def _names(self, record: ThreadRecord) -> dict[int, str]:
        """The names of the files that count, by position."""
        found: dict[int, str] = {}
        for path in self._folder.glob(f"*{SUFFIX}") if self._folder.is_dir() else ():
            match = _CHECKPOINT.fullmatch(path.name)
            position = int(match[1]) if match else 0
            gone = any(start <= position <= end for start, end in record.gaps)
            if match and record.first <= position <= record.newest and not gone:
                found[position] = path.name
        return found

    def _clean(self, record: ThreadRecord) -> dict[int, str]:
        """Remove what writers that were killed have left, and return what :meth:`_names` does."""
        names = self._names(record)
        known = {*names.values(), RECORD, LOCK}
        for path in list(self._folder.iterdir()):
            if path.name not in known and (path.suffix == TEMPORARY or _CHECKPOINT.fullmatch(path.name)):
                path.unlink()
        return names

    def _size(self, names: dict[int, str]) -> int:
        return sum((self._folder / name).stat().st_size for name in names.values())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else is in the folder."""
        while True:
            self._files.make_folder(self._folder)
            with ExitStack() as stack:
                try:
                    stack.enter_context(self._files.locked(self._folder / LOCK))
                except FileNotFoundError:  # it was forgotten in between
                    continue
                yield
                return

    @contextmanager
    def _shared(self) -> Iterator[ThreadRecord | None]:
        """Nobody writes in the folder, and this is its record; None where there is none."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._files.locked(self._folder / LOCK, shared=True))
            except FileNotFoundError:
                yield None
                return
            yield self._read()


def _below(facts: dict[str, Any], position: int) -> int:
    """The position of the checkpoint under the one at ``position``."""
    return int(facts.get("below", position - 1))


def _name(position: int, checkpoint_id: str) -> str:
    return f"{position:08d}-{_digest(checkpoint_id)}{SUFFIX}"


def _digest(checkpoint_id: str) -> str:
    return sha256(checkpoint_id.encode()).hexdigest()[:40]


def _find(names: dict[int, str], checkpoint_id: str) -> int:
    """The position of a checkpoint, 0 when it is not there."""
    ending = f"-{_digest(checkpoint_id)}{SUFFIX}"
    return next((position for position, name in names.items() if name.endswith(ending)), 0)


def _loaded(facts: dict[str, Any], depth: int, state: bytes | None) -> CheckpointLoaded:
    return CheckpointLoaded(
        checkpoint_id=facts["checkpoint_id"],
        parent_id=facts["parent_id"],
        metadata=facts["metadata"],
        created_at=facts["created_at"],
        depth=depth,
        state=state,
    )
