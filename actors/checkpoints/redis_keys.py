"""How checkpoints look in Redis: the names of a thread's keys, what scripts are handed, and what their answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from msgpack import unpackb
from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded, SaveCheckpoint
from ...protocol.errors import CheckpointError
from ...protocol.storage import JournalEntry, ThreadInfo
from .delta import fold
from .lease import Lease
from .redis_scripts import NAMES, TEXT
from .store import Write, encode_entries, encode_metadata

Argument = bytes | str | int | float


def thread_keys(prefix: str, thread_id: str) -> list[str]:
    """The keys of a thread, in the order of the scripts. Ids hold any character, so the hash tag is the id's SHA-256."""
    tag = sha256(thread_id.encode()).hexdigest()
    return [f"{prefix}{{{tag}}}:{name}" for name in NAMES]


def text_key(prefix: str, digest: str) -> str:
    """The key of a text that states share."""
    return f"{prefix}{{{digest}}}:{TEXT}"


def escape_pattern(text: str) -> str:
    """``text`` for a key pattern in which it stands for itself."""
    return "".join(f"\\{character}" if character in "*?[]\\^" else character for character in text)


@dataclass(frozen=True, slots=True)
class Fact:
    """A checkpoint without its state."""

    checkpoint_id: str
    parent_id: str | None
    root: int
    base: int
    created_at: float
    metadata: bytes
    size: int

    @classmethod
    def unpack(cls, data: bytes | None, where: str) -> Fact:
        """What the scripts packed.

        Raises:
            CheckpointError: it is not there.
        """
        if data is None:
            raise _lost(where)
        name, parent, root, base, created_at, metadata, size = unpackb(data, raw=True)
        return cls(name.decode(), parent.decode() if parent else None, root, base, float(created_at), metadata, size)

    def loaded(self, position: int, state: bytes | None = None) -> CheckpointLoaded:
        """The checkpoint at ``position``."""
        return CheckpointLoaded(
            checkpoint_id=self.checkpoint_id,
            parent_id=self.parent_id,
            state=state,
            metadata=from_json(self.metadata),
            created_at=self.created_at,
            depth=position - self.root,
        )


def write_arguments(write: Write, max_bytes: int) -> list[Argument]:
    """What the script ``WRITE`` gets for one save or record.

    Raises:
        NotStorable: no store may take it.
    """
    entries = zip(write.entries, encode_entries(write.thread_id, write.entries, max_bytes), strict=True)
    journal = [part for entry, data in entries for part in (_journal_key(entry), data)]
    noted: list[Argument] = [len(write.entries), *journal]
    if not isinstance(write, SaveCheckpoint):
        return ["", "", "record", 0, 0, "", "", 0, "", write.token, "", *noted, 0]
    metadata = encode_metadata(write, max_bytes)
    parent = "" if write.parent_id is None else f"={write.parent_id}"
    head: list[Argument] = [
        write.checkpoint_id,
        parent,
        write.kind,
        write.base,
        repr(float(write.created_at)),
        metadata,
        write.state,
        write.supersedes,
        "" if write.onto is None else f"={write.onto}",
    ]
    return [*head, write.token, "1" if write.settles else "", *noted, len(write.statics), *write.statics]


def encode_text(text: str) -> bytes:
    """A static text; a model may have written half a surrogate pair, which comes back as it was."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """The text that :func:`encode_text` was given."""
    return data.decode("utf-8", "surrogatepass")


def read_journal(values: Sequence[bytes], where: str) -> tuple[JournalEntry, ...]:
    """The entries of a journal in the order in which they came.

    Raises:
        CheckpointError: an entry is damaged.
    """
    try:
        numbered = sorted((int(number), data) for number, _, data in (value.partition(b" ") for value in values))
        return tuple(JournalEntry.model_validate_json(data) for _, data in numbered)
    except ValueError as error:
        raise CheckpointError(f"the journal of {where} is damaged: {error}") from None


def read_checkpoint(answer: Sequence[Any], where: str) -> CheckpointLoaded:
    """The whole checkpoint that ``LOAD`` found.

    Args:
        answer: position, fact, chain; only the position when the rest is missing.
        where: names the thread in errors.

    Raises:
        CheckpointError: a part of it is missing or damaged.
    """
    if len(answer) == 1 or any(base is None or state is None for base, state in answer[2]):
        raise _lost(where)
    fact = Fact.unpack(answer[1], where)
    (_, snapshot), *deltas = answer[2]
    state = fold(snapshot, [(int(base), data) for base, data in deltas], where=f"checkpoint {fact.checkpoint_id!r} of {where}")
    return fact.loaded(int(answer[0]), state)


def read_info(answer: Sequence[Any], place: str) -> ThreadInfo:
    """The thread that ``INFO`` tells of.

    Raises:
        CheckpointError: a part of it is missing.
    """
    thread_id, position, first, size, owner, newest, oldest = answer
    where = f"thread {thread_id.decode()!r} in Redis at {place}"
    fact = Fact.unpack(newest, where)
    return ThreadInfo(
        thread_id=thread_id.decode(),
        checkpoint_id=fact.checkpoint_id,
        checkpoints=int(position) - int(first) + 1,
        bytes=int(size),
        created_at=Fact.unpack(oldest, where).created_at,
        updated_at=fact.created_at,
        metadata=from_json(fact.metadata),
        owner=owner.decode() if owner else None,
    )


def read_lease(answer: Sequence[Any]) -> tuple[Lease, float]:
    """The lease that a script tells of, and the server's time in seconds since the epoch."""
    token, owner, until, deleted, now = answer
    ends = int(until) / 1000
    return Lease(int(token), owner.decode() or None, ends, int(deleted) / 1000 if deleted else None), int(now) / 1000


def _lost(where: str) -> CheckpointError:
    return CheckpointError(f"{where} is damaged: a part of it is missing; does the server evict keys?")


def _journal_key(entry: JournalEntry) -> bytes:
    return encode_text(f"{entry.phase} {entry.call_id}")
