"""The tool journal of a durable run: a crash must not make a side effect happen twice. Source: OURS-15, OURS-18.

A call whose tool is not idempotent leaves two entries: ``begun`` is stored before its body starts, ``done``, with the
result, after it has ended. One whose tool is idempotent leaves ``done`` only. What a recovered segment finds decides what
becomes of a call that has no result yet:

    done                  its result is taken, the body does not run
    done, without result  it asked a person, which had no effect: it runs, and asks again
    begun                 nobody knows: the model is told ``outcome_unknown`` and has to look for itself
    nothing               the body was never started, or may be repeated: it runs

That is right only because of the order of the writes, of which there are as few as can be:

1. Before a batch with a call that must not be repeated, one save stores the conversation with its open calls *and* the
   ``begun`` entries of the calls that start at once. (After a pause, and in a recovered segment, the conversation is stored
   already, and entries of the same batch must stay: then the entries are recorded by themselves.)
2. A call that starts later (behind ``max_concurrency``, or in a sequential batch) is recorded right before it starts.
3. When a body has ended, ``done`` is recorded at once (with the conversation, where that is not stored yet), unless it is the
   last of its batch and the save of the iteration follows directly: then what is told of it waits for that save, so nobody
   hears of a result that a crash takes back. In a sequential batch it travels with the next call's ``begun``.
4. The save of the iteration holds every result, and empties the journal.

So a batch of one call costs one save more than a batch without side effects, and an idempotent call alone costs nothing.
Requests of concurrent calls and runs share the store's transactions. Whoever saves less often (``durability`` "async" or
"exit", ``checkpoint_every_n_iterations``) gets fewer promises: then idempotent calls leave nothing, and run again.

A write of step 1 or 2 that fails keeps the body from starting, and ends the run with the store's error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol.errors import StaleWriter, UmbelError
from ...protocol.messages import ToolCall, ToolResult
from ...protocol.storage import JournalEntry, RecordCalls
from .asking import ask_checkpointer
from .run import Run, refuse
from .slot import Slot
from .thread import is_due, save

logger = logging.getLogger("umbel.supervisor")
UNKNOWN = "outcome unknown: the process stopped while {} ran. Verify what happened before you repeat it."
NOT_RUN = "not run: that it was about to start could not be stored ({})"


class Batch:
    """The journal's view of the batch that runs now.

    Args:
        slots: the calls whose bodies run, in call order.
        sequential: they run one by one.
        stored: the thread has the conversation with these calls.
    """

    __slots__ = ("held", "left", "opening", "sequential", "slots", "stored")

    def __init__(self, slots: Sequence[Slot], sequential: bool, stored: bool) -> None:
        self.slots = slots
        self.left = len(slots)
        self.sequential = sequential
        self.stored = stored
        self.opening: asyncio.Lock | None = None
        self.held: tuple[JournalEntry, ...] = ()

    def precedes_entry(self, slot: Slot) -> bool:
        """Whether the very next thing that happens is the ``begun`` of another call."""
        following = self.slots[self.slots.index(slot) + 1 :][:1]
        return self.sequential and bool(following) and leaves_entries(following[0])


def leaves_entries(slot: Slot) -> bool:
    """Whether a repetition of the call could do harm."""
    return not slot.tool.idempotent


def survives(run: Run, slot: Slot) -> bool:
    """Whether the call's result is to outlive a crash before the iteration is saved."""
    return leaves_entries(slot) or (run.config.durability == "sync" and is_due(run))


async def intend(run: Run, slots: Sequence[Slot], *, stored: bool) -> None:
    """Step 1: store what is about to be done.

    Args:
        run: whose calls.
        slots: the calls whose bodies are to run.
        stored: the thread has the conversation with these calls already, and maybe entries about others of the batch.

    Raises:
        UmbelError: it could not be stored; no body may start.
    """
    sequential = len(slots) == 1 or run.config.tool_execution == "sequential"
    batch = run.batch = Batch(slots, sequential, stored)
    if not any(map(leaves_entries, slots)):
        return
    first = [slot for slot in slots[: 1 if sequential else run.config.max_concurrency] if leaves_entries(slot)]
    entries = tuple(begun(run, slot) for slot in first)
    try:
        if not stored:
            await save(run, final=True, entries=entries)
            batch.stored = True
        elif entries:
            await record(run, entries)
    except UmbelError as error:
        for slot in slots:
            slot.result = refuse(slot.call, NOT_RUN.format(error.message), error.code)
        raise


async def begin(run: Run, slot: Slot) -> None:
    """Step 2: a call that is not recorded yet starts now."""
    batch: Batch = run.batch
    if slot.intended or not leaves_entries(slot):
        return
    entries, batch.held = (*batch.held, begun(run, slot)), ()
    try:
        await record(run, entries)
    except UmbelError as error:
        slot.began = False
        slot.result = refuse(slot.call, NOT_RUN.format(error.message), error.code)
        raise


async def end(run: Run, slot: Slot, result: ToolResult) -> None:
    """Step 3: a body has ended. A result that could not be recorded is still the result, unless the thread has a new owner.

    Raises:
        StaleWriter: another run has the thread now.
    """
    batch: Batch = run.batch
    batch.left -= 1
    if not survives(run, slot) or (slot.asks and slot.tool.agent is not None):
        return
    if not batch.left and is_due(run) and (slot.tool.idempotent or not run.agent.hooks.after_tool):
        slot.unsaved = run.config.durability == "sync"
        return
    kept = None if slot.asks else result
    entry = JournalEntry(run_id=run.id, call_id=slot.call.id, phase="done", result=kept, at=time.time())
    if batch.precedes_entry(slot) and not run.agent.hooks.after_tool:
        batch.held = (*batch.held, entry)
        return
    try:
        await keep(run, batch, entry)
    except StaleWriter:
        raise
    except UmbelError:
        logger.warning("run %s: the result of call %s could not be recorded", run.id, slot.call.id, exc_info=True)


async def keep(run: Run, batch: Batch, entry: JournalEntry) -> None:
    """Record the entry; the first of a batch that the thread does not know yet brings the conversation along."""
    if not batch.stored:
        batch.opening = batch.opening or asyncio.Lock()
        async with batch.opening:
            if not batch.stored:
                await save(run, final=True, entries=(entry,))
                batch.stored = True
                return
    await record(run, (entry,))


def recall(run: Run, slots: Iterable[Slot]) -> None:
    """Give the calls of a batch that a crash broke off what the journal knows of them."""
    known = run.journal or {}
    for slot in slots:
        entry = known.get(slot.call.id)
        if entry is None or slot.tool is None:
            continue
        if entry.phase == "begun":
            slot.result = unknown(slot.call) if leaves_entries(slot) else None
        elif entry.result is not None:
            slot.result = entry.result
            slot.ran = True  # hooks that look at results may not have seen it


def unknown(call: ToolCall) -> ToolResult:
    """The result of a call of which nobody knows what came of it."""
    return refuse(call, UNKNOWN.format(call.name), "outcome_unknown")


def begun(run: Run, slot: Slot) -> JournalEntry:
    """The entry that stands before a body starts."""
    slot.intended = True
    return JournalEntry(run_id=run.id, call_id=slot.call.id, phase="begun", at=time.time())


async def record(run: Run, entries: tuple[JournalEntry, ...]) -> Any:
    """Add to the thread's journal."""
    message = RecordCalls(
        store=run.config.checkpointer or "", thread_id=run.request.thread_id or "", token=run.token, entries=entries
    )
    return await ask_checkpointer(run.peers, message)
