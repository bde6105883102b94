"""Lists of threads, deletion and retention in an SQLite file. Each function runs in the store's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from pydantic_core import from_json

from ...protocol.commands import SaveCheckpoint
from ...protocol.errors import CheckpointError
from ...protocol.storage import CollectGarbage, GarbageCollected, ListThreads, ThreadDeleted, ThreadInfo, ThreadsListed
from .delta import fold
from .lease import Lease
from .static_parts import references
from .store import has_values, passing_over_damage

VACUUM_PAGES = 512  # given back in one transaction

_LEASE = "SELECT token, owner, expires_at, deleted_at FROM umbel_threads WHERE thread_id = ?"
_PUT_LEASE = "INSERT OR REPLACE INTO umbel_threads (thread_id, token, owner, expires_at, deleted_at) VALUES (?, ?, ?, ?, ?)"
_NEWEST = (
    "SELECT checkpoint_id, created_at, metadata, position FROM umbel_checkpoints WHERE thread_id = ? ORDER BY position DESC"
)
_SUMS = "SELECT count(*), sum(length(state)), min(position) FROM umbel_checkpoints WHERE thread_id = ?"
_FROM = "SELECT base, state FROM umbel_checkpoints WHERE thread_id = ? AND position BETWEEN ? AND ? ORDER BY position"
_CANDIDATES = """
SELECT thread_id FROM umbel_checkpoints GROUP BY thread_id HAVING count(*) > :keep
UNION SELECT thread_id FROM (SELECT thread_id, created_at, max(position) FROM umbel_checkpoints GROUP BY thread_id)
    WHERE created_at < :before
UNION SELECT thread_id FROM umbel_threads WHERE deleted_at < :tombstones
"""


def read_lease(connection: sqlite3.Connection, thread_id: str) -> Lease:
    """The lease of a thread, or what a thread without one has."""
    row = connection.execute(_LEASE, (thread_id,)).fetchone()
    return Lease(*row) if row is not None else Lease()


def write_lease(connection: sqlite3.Connection, thread_id: str, lease: Lease) -> None:
    """Keep the lease of a thread."""
    connection.execute(_PUT_LEASE, (thread_id, lease.token, lease.owner, lease.expires_at, lease.deleted_at))


def make_way(connection: sqlite3.Connection, save: SaveCheckpoint, newest: int) -> tuple[int, int] | None:
    """Drop what ``save`` supersedes: position and depth of the checkpoint before that, None when it is another one."""
    position = max(0, newest - save.supersedes)
    before = "SELECT checkpoint_id, depth FROM umbel_checkpoints WHERE thread_id = ? AND position <= ? ORDER BY position DESC"
    onto, depth = connection.execute(before, (save.thread_id, position)).fetchone() or (None, 0)
    if onto != save.onto:
        return None
    connection.execute("DELETE FROM umbel_checkpoints WHERE thread_id = ? AND position > ?", (save.thread_id, position))
    return position, depth


def list_threads(connection: sqlite3.Connection, request: ListThreads, now: float) -> ThreadsListed:
    """A page of threads."""
    page: list[ThreadInfo] = []
    connection.execute("BEGIN")  # one view of the file
    if request.limit > 0:
        for thread_id in _ids(connection, request.prefix, request.after):
            newest = connection.execute(_NEWEST, (thread_id,)).fetchone()
            if has_values(from_json(newest[2]), request.where):
                page.append(_info(connection, thread_id, newest, now))
                if len(page) == request.limit:
                    break
    return ThreadsListed(threads=tuple(page))


def _ids(connection: sqlite3.Connection, prefix: str, after: str) -> Iterator[str]:
    """The ids with ``prefix`` behind ``after``. Each is found by the index; the checkpoints in between are not read."""
    comparison, start = (">", after) if after >= prefix else (">=", prefix)
    while True:
        query = f"SELECT thread_id FROM umbel_checkpoints WHERE thread_id {comparison} ? ORDER BY thread_id LIMIT 1"  # noqa: S608 - one of two
        row = connection.execute(query, (start,)).fetchone()
        if row is None or not row[0].startswith(prefix):
            return
        yield row[0]
        comparison, start = ">", row[0]


def _info(connection: sqlite3.Connection, thread_id: str, newest: tuple[str, float, bytes, int], now: float) -> ThreadInfo:
    count, size, first = connection.execute(_SUMS, (thread_id,)).fetchone()
    query = "SELECT created_at FROM umbel_checkpoints WHERE thread_id = ? AND position = ?"
    return ThreadInfo(
        thread_id=thread_id,
        checkpoint_id=newest[0],
        checkpoints=count,
        bytes=size,
        created_at=connection.execute(query, (thread_id, first)).fetchone()[0],
        updated_at=newest[1],
        metadata=from_json(newest[2]),
        owner=read_lease(connection, thread_id).holder(now),
    )


def delete_thread(connection: sqlite3.Connection, thread_id: str, now: float) -> ThreadDeleted:
    """Delete a thread and leave its tombstone."""
    connection.execute("BEGIN IMMEDIATE")
    existed = _delete(connection, thread_id, now)
    connection.execute("COMMIT")
    return ThreadDeleted(existed=existed > 0)


def _delete(connection: sqlite3.Connection, thread_id: str, now: float) -> int:
    """How many checkpoints the thread had."""
    count = connection.execute("DELETE FROM umbel_checkpoints WHERE thread_id = ?", (thread_id,)).rowcount
    connection.execute("DELETE FROM umbel_journal WHERE thread_id = ?", (thread_id,))
    connection.execute("DELETE FROM umbel_static_uses WHERE thread_id = ?", (thread_id,))
    write_lease(connection, thread_id, read_lease(connection, thread_id).deleted(now))
    return count


def find_garbage(connection: sqlite3.Connection, request: CollectGarbage, now: float) -> list[str]:
    """The threads that have something to free."""
    before = None if request.older_than is None else now - request.older_than
    values = {"keep": request.keep, "before": before, "tombstones": now - request.tombstones}
    return [row[0] for row in connection.execute(_CANDIDATES, values)]


def collect_thread(connection: sqlite3.Connection, thread_id: str, request: CollectGarbage, now: float) -> GarbageCollected:
    """Free what one thread has to free, unless somebody holds it."""
    connection.execute("BEGIN IMMEDIATE")
    lease = read_lease(connection, thread_id)
    if lease.holder(now) is not None:
        return GarbageCollected()
    threads = checkpoints = tombstones = 0
    before = _size(connection, thread_id)
    newest = connection.execute(_NEWEST, (thread_id,)).fetchone()
    limit, keep = request.limit(thread_id), request.kept(thread_id)
    if newest is not None and limit is not None and newest[1] < now - limit:
        threads, checkpoints = 1, _delete(connection, thread_id, now)
    elif newest is not None and keep is not None:
        with passing_over_damage():
            checkpoints = _keep(connection, thread_id, keep)
    elif lease.is_forgotten(request.tombstones, now) and not _has_journal(connection, thread_id):
        tombstones = connection.execute("DELETE FROM umbel_threads WHERE thread_id = ?", (thread_id,)).rowcount
    freed = max(0, before - _size(connection, thread_id))
    connection.execute("COMMIT")
    return GarbageCollected(threads=threads, checkpoints=checkpoints, tombstones=tombstones, bytes=freed)


def _keep(connection: sqlite3.Connection, thread_id: str, count: int) -> int:
    """Fold all but the newest ``count`` checkpoints into the oldest that stays, and say how many those were."""
    query = "SELECT position, depth FROM umbel_checkpoints WHERE thread_id = ? ORDER BY position DESC LIMIT 1 OFFSET ?"
    first = connection.execute(query, (thread_id, count - 1)).fetchone()
    if first is None:
        return 0
    position, depth = first
    chain = connection.execute(_FROM, (thread_id, position - depth, position)).fetchall()
    if len(chain) != depth + 1:
        raise CheckpointError(f"thread {thread_id!r} is damaged: {depth + 1 - len(chain)} checkpoints of a chain are missing")
    state = fold(chain[0][1], chain[1:], where=f"thread {thread_id!r}")
    older = "DELETE FROM umbel_checkpoints WHERE thread_id = ? AND position < ?"
    dropped = connection.execute(older, (thread_id, position)).rowcount
    connection.execute(
        "UPDATE umbel_checkpoints SET state = ?, base = 0, parent_id = NULL WHERE thread_id = ? AND position = ?",
        (state, thread_id, position),
    )
    # A chain cannot begin before the oldest checkpoint any more.
    shorten = "UPDATE umbel_checkpoints SET depth = position - :first WHERE thread_id = :id AND depth > position - :first"
    connection.execute(shorten, {"first": position, "id": thread_id})
    _forget_texts(connection, thread_id)
    return dropped


def _forget_texts(connection: sqlite3.Connection, thread_id: str) -> None:
    """Let go of the texts that none of the thread's checkpoints refers to any more."""
    uses = connection.execute("SELECT digest FROM umbel_static_uses WHERE thread_id = ?", (thread_id,)).fetchall()
    unused = {digest for (digest,) in uses}
    rows = connection.execute("SELECT state FROM umbel_checkpoints WHERE thread_id = ?", (thread_id,)) if unused else ()
    for (state,) in rows:
        unused -= references(state)
    forget = "DELETE FROM umbel_static_uses WHERE thread_id = ? AND digest = ?"
    connection.executemany(forget, [(thread_id, digest) for digest in unused])


def collect_texts(connection: sqlite3.Connection) -> tuple[int, int]:
    """Delete the texts that no thread refers to, and say how many they were and how many bytes they had."""
    connection.execute("BEGIN IMMEDIATE")
    query = (
        "DELETE FROM umbel_statics WHERE NOT EXISTS"
        " (SELECT 1 FROM umbel_static_uses AS uses WHERE uses.digest = umbel_statics.digest) RETURNING length(body)"
    )
    sizes = [row[0] for row in connection.execute(query).fetchall()]
    connection.execute("COMMIT")
    return len(sizes), sum(sizes)


def give_back_pages(connection: sqlite3.Connection) -> bool:
    """Shorten the file by some of its free pages, and say whether there may be more."""
    free = _pragma(connection, "freelist_count")
    if free == 0:
        return False
    if _pragma(connection, "auto_vacuum") == 0:  # a file of schema 1: it is written anew, once
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    else:
        # It gives a row for each page, without columns: execute() would stop at the first one.
        connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return _pragma(connection, "freelist_count") < free


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(connection: sqlite3.Connection, thread_id: str) -> int:
    return int(connection.execute(_SUMS, (thread_id,)).fetchone()[1] or 0)


def _has_journal(connection: sqlite3.Connection, thread_id: str) -> bool:
    return connection.execute("SELECT 1 FROM umbel_journal WHERE thread_id = ?", (thread_id,)).fetchone() is not None
