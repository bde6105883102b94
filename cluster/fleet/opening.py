"""Opening the ledger of a fleet with a name: become its only writer, learn what is done, bring its files up to date."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...actors.checkpoints.registry import open_store
from ...actors.checkpoints.store import Store
from ...actors.checkpoints.url import shown
from ...protocol.errors import ConfigurationError, ThreadBusy
from ...protocol.storage import LeaseTaken, TakeLease
from ..job_context import current_job_id
from .fleets import default_store, load_record
from .holder import describe_holder, holder_name, is_gone
from .ledger import id_hash
from .record import FleetRecord, thread_of
from .results_file import OUT_EXISTS, ResultsFile, read_ids
from .sinks import PARQUET, JsonLinesSink, ParquetSink, Sink, check_kind, write_file
from .store_ledger import LEASE_SECONDS, OUTAGE_SECONDS, StoreLedger
from .stored import Stored, newest_lines, read_stored

_LOOK_SECONDS = 0.5
_MAX_NAME = 200


async def open_ledger(
    name: str,
    store: str | Store | None = None,
    *,
    out: Sequence[Path] = (),
    resume: bool = False,
    overwrite: bool = False,
    spec: Mapping[str, Any] | None = None,
    outage: float = OUTAGE_SECONDS,
    clock: Callable[[], float] = time.time,
) -> StoreLedger:
    """The ledger of that fleet, for a new session of it.

    Args:
        name: of the fleet.
        store: URL, or an open store, which the ledger closes; default is ``fleets.sqlite`` in ``UMBEL_HOME``.
        out: files that get the results, too.
        resume: go on with a fleet that is there.
        overwrite: delete a fleet that is there, and its files.
        spec: for the record: what the fleet is started from, without secrets.
        outage: seconds that the store may be away before the fleet is ended.
        clock: seconds since the epoch.

    Raises:
        ConfigurationError: the fleet or a file is there and neither was asked for; somebody runs the fleet now; a name or a
            file that cannot be.
        StoreUnavailable: the store cannot be reached.
    """
    if resume and overwrite:
        raise ConfigurationError("resume goes on with a fleet and overwrite begins it anew; choose one")
    check_name(name)
    for path in out:
        check_kind(path)
    url = store if isinstance(store, str) else default_store()
    opened = open_store(url) if store is None or isinstance(store, str) else store
    where = f"fleet {name!r} in {shown(url) if opened is not store else type(opened).__name__}"
    owner = holder_name()
    try:
        await opened.open()
        taken = await _take(opened, name, owner)
        try:
            return await _opened(opened, name, owner, taken, where, out, resume, overwrite, spec or {}, outage, clock)
        except BaseException:  # also an interrupt: the next one must not have to wait; it is raised again
            await _give_back(opened, name, owner, taken.token)
            raise
    except BaseException:  # whatever it was, the store is closed; it is raised again
        await opened.close()
        raise


def check_name(name: str) -> None:
    """Refuse names that cannot be typed or shown.

    Raises:
        ConfigurationError: see above.
    """
    if not name or len(name) > _MAX_NAME or not name.isprintable() or name != name.strip():
        raise ConfigurationError(f"a fleet's name has 1 to {_MAX_NAME} printable characters, not {name[:80]!r}")


async def _opened(
    store: Store,
    name: str,
    owner: str,
    taken: LeaseTaken,
    where: str,
    out: Sequence[Path],
    resume: bool,
    overwrite: bool,
    spec: Mapping[str, Any],
    outage: float,
    clock: Callable[[], float],
) -> StoreLedger:
    earlier = await load_record(store, name)
    if earlier is not None and not (resume or overwrite):
        raise ConfigurationError(
            f"{where} is there already ({describe(earlier)}); --resume goes on with it, --overwrite begins anew"
        )
    if overwrite and earlier is not None:
        await store.delete(thread_of(name))
        taken, earlier = await _take(store, name, owner), None
    stored = Stored() if earlier is None else await read_stored(store, name)
    sinks = await _open_sinks(store, name, out, stored, resume, overwrite)
    now = clock()
    record = (earlier or FleetRecord(name=name, started_at=now, sessions=0)).evolve(
        state="running",
        reason=None,
        updated_at=now,
        host=socket.gethostname(),
        pid=os.getpid(),
        job_id=current_job_id(),
        counts=stored.counts(),
        exit_code=None,
        owner=owner,
        spec=dict(spec) or (earlier.spec if earlier is not None else {}),
    )
    record = record.evolve(sessions=record.sessions + 1)
    ledger = StoreLedger(
        store, record, owner=owner, token=taken.token, stored=stored, sinks=sinks, where=where, outage=outage, clock=clock
    )
    await ledger.begin()
    return ledger


async def _take(store: Store, name: str, owner: str) -> LeaseTaken:
    """Become the fleet's only writer. One whose process is dead is not waited for; of one elsewhere a sign of life is.

    Raises:
        ConfigurationError: somebody runs it.
    """
    seen: float | None = None
    while True:
        try:
            return await store.lease(TakeLease(store="", thread_id=thread_of(name), owner=owner, seconds=LEASE_SECONDS))
        except ThreadBusy as busy:
            holder, ends = str(busy.details.get("owner")), float(busy.details.get("expires_at") or 0.0)
        if is_gone(holder):
            steal = TakeLease(store="", thread_id=thread_of(name), owner=owner, seconds=LEASE_SECONDS, steal=True)
            return await store.lease(steal)
        if not _may_be_dead(holder) or (seen is not None and ends > seen):
            raise ConfigurationError(
                f"fleet {name!r} is being run by {describe_holder(holder)}; wait for it, stop it, or choose another name"
            )
        seen = ends
        await asyncio.sleep(_LOOK_SECONDS)


def _may_be_dead(holder: str) -> bool:
    """Whether waiting for the end of the lease may help: its process cannot be looked at from here."""
    return holder.partition("/")[0] != socket.gethostname()


async def _give_back(store: Store, name: str, owner: str, token: int) -> None:
    from ...protocol.storage import ReleaseLease

    await store.release(ReleaseLease(store="", thread_id=thread_of(name), owner=owner, token=token))


def describe(record: FleetRecord) -> str:
    """A fleet's state in a few words."""
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(record.counts.items())) or "no results yet"
    return f"{record.liveness}: {counts}"


async def _open_sinks(
    store: Store, name: str, out: Sequence[Path], stored: Stored, resume: bool, overwrite: bool
) -> list[Sink]:
    """The files, each with what the store holds. A file with results that the store does not know is not touched.

    Raises:
        ConfigurationError: a file is there and neither was asked for, or it holds what is not this fleet's.
    """
    sinks: list[Sink] = []
    try:
        for path in out:
            there = path.is_file() and path.stat().st_size > 0
            if there and not (resume or overwrite):
                raise ConfigurationError(f"{path} {OUT_EXISTS}")
            if path.suffix == PARQUET:
                sinks.append(ParquetSink(path))
                continue
            if there and resume:
                await asyncio.to_thread(_check_known, path, name, stored)
            if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
                file = ResultsFile(path, resume=True)
            else:
                ResultsFile(path, resume=resume, overwrite=overwrite).abandon()  # nobody else writes it
                await write_file(path, newest_lines(store, name))
                file = await asyncio.to_thread(ResultsFile, path, resume=True)
            sinks.append(JsonLinesSink(file))
    except BaseException:  # whatever it was, no file stays locked; it is raised again
        for sink in sinks:
            sink.abandon()
        raise
    return sinks


def _check_known(path: Path, name: str, stored: Stored) -> None:
    for task_id in read_ids(path):
        key = id_hash(task_id)
        if not stored.is_done(key) and key not in stored.others:
            raise ConfigurationError(
                f"{path} has a result for {task_id[:80]!r} that fleet {name!r} does not know: is it another fleet's? "
                "choose another file, or --overwrite"
            )
