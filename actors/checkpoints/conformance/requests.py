"""The requests that the tests make, with what does not matter to them filled in."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ....protocol.commands import CheckpointSaved, SaveCheckpoint
from ....protocol.errors import ThreadBusy
from ....protocol.messages import ToolResult
from ....protocol.storage import (
    CallsRecorded,
    CollectGarbage,
    JournalEntry,
    LeaseTaken,
    ListThreads,
    RecordCalls,
    ReleaseLease,
    TakeLease,
)
from ..store import Store, WriteOutcome

STORE = "conformance://"
LONG = 600.0  # seconds of a lease that must not end during a test
BRIEF = 0.05  # seconds of one that must
PATIENCE = 30.0  # seconds until a test that waits for something gives up


def a_save(checkpoint_id: str, parent_id: str | None = None, **fields: Any) -> SaveCheckpoint:
    """A save of the thread ``thread``; ``fields`` are those of the message."""
    fields = {"store": STORE, "thread_id": "thread", "state": b'{"messages":[]}'} | fields
    return SaveCheckpoint(checkpoint_id=checkpoint_id, parent_id=parent_id, **fields)


def begun(call_id: str, **fields: Any) -> JournalEntry:
    """A call that was begun."""
    return JournalEntry(run_id="run", call_id=call_id, phase="begun", at=12.5, **fields)


def done(call_id: str, content: str = "ok") -> JournalEntry:
    """A call that is done."""
    result = ToolResult(tool_call_id=call_id, name="pay", content=content, structured_content={"n": [1, 2.5, None]})
    return JournalEntry(run_id="run", call_id=call_id, phase="done", result=result, at=13.5)


def a_record(*entries: JournalEntry, token: int = 0, thread_id: str = "thread") -> RecordCalls:
    """Entries for a thread's journal."""
    return RecordCalls(store=STORE, thread_id=thread_id, token=token, entries=entries)


async def take(
    store: Store, owner: str, seconds: float = LONG, *, steal: bool = False, thread_id: str = "thread"
) -> LeaseTaken:
    """Take a lease."""
    return await store.lease(TakeLease(store=STORE, thread_id=thread_id, owner=owner, seconds=seconds, steal=steal))


async def take_when_free(store: Store, owner: str, seconds: float = LONG, *, thread_id: str = "thread") -> LeaseTaken:
    """Take a lease once its owner's has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await take(store, owner, seconds, thread_id=thread_id)
        except ThreadBusy:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.01)


async def give_back(store: Store, owner: str, token: int, *, thread_id: str = "thread") -> None:
    """Release a lease."""
    await store.release(ReleaseLease(store=STORE, thread_id=thread_id, owner=owner, token=token))


async def saved(store: Store, *saves: SaveCheckpoint) -> None:
    """Save, and be sure that it was done."""
    outcomes = await store.save(saves)
    assert [type(outcome) for outcome in outcomes] == [CheckpointSaved] * len(saves), outcomes


async def recorded(store: Store, *records: RecordCalls) -> None:
    """Record, and be sure that it was done."""
    outcomes = await store.record(records)
    assert outcomes == [CallsRecorded()] * len(records), outcomes


async def refused(store: Store, write: SaveCheckpoint | RecordCalls) -> WriteOutcome:
    """What the store answers to one write."""
    if isinstance(write, SaveCheckpoint):
        return (await store.save([write]))[0]
    return (await store.record([write]))[0]


async def ids(store: Store, **fields: Any) -> list[str]:
    """The ids of the threads on one page."""
    return [thread.thread_id for thread in (await store.threads(ListThreads(store=STORE, **fields))).threads]


def garbage(**fields: Any) -> CollectGarbage:
    """A request to free space."""
    return CollectGarbage(store=STORE, **fields)
