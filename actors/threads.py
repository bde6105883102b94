"""Conversations as applications handle them: read, amended, forked, listed and deleted, wherever their store is.

A checkpoint is never changed. What amends a thread writes a new checkpoint behind the newest, under the thread's lease, so
that it cannot get in between the steps of a run; what goes on from an earlier checkpoint is a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ..protocol.commands import CheckpointLoaded, LoadCheckpoint
from ..protocol.errors import (
    CheckpointConflict,
    CheckpointNotFound,
    ConfigurationError,
    NotPaused,
    UmbelError,
)
from ..protocol.messages import Message
from ..protocol.state import AgentState
from ..protocol.storage import (
    CheckpointInfo,
    JournalEntry,
    LeaseTaken,
    LoadHistory,
    ReleaseLease,
    TakeLease,
)
from ..protocol.turn import open_calls
from .checkpoints.delta import Baseline, build_save, restore
from .checkpoints.facts import MEMBER_OF, amended, of_a_fork
from .checkpoints.url import shown
from .stray_lease import let_go
from .thread_list import ThreadList

Said = Message | Mapping[str, Any] | str
LEASE_SECONDS = 30.0
logger = logging.getLogger("umbel.threads")


class Threads(ThreadList):
    """The conversations of one store.

    Every method raises :class:`StoreUnavailable` when the store cannot be reached.

    Args:
        store: URL of the store.
        ask: sends a request to a checkpointer and gives its reply: a runtime's ``ask_checkpointer``, or a
            ``CheckpointerActor``'s ``answer`` in this process.
        clock: seconds since the epoch, UTC.
    """

    async def get_state(self, thread_id: str, checkpoint_id: str | None = None) -> AgentState:
        """A thread's newest state, or the one of a given checkpoint. Source: MEM-43.

        Raises:
            CheckpointNotFound: there is no such thread, or no such checkpoint in it (also a ``LookupError``).
        """
        return (await self._baseline(thread_id, checkpoint_id))[1].state

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointLoaded:
        """A whole checkpoint as it is stored, with what the journal says of calls in progress.

        Raises:
            CheckpointNotFound: as for :meth:`get_state`.
        """
        message = LoadCheckpoint(store=self.store, thread_id=thread_id, checkpoint_id=checkpoint_id)
        loaded: CheckpointLoaded = await self._ask(message)
        if loaded.checkpoint_id is None:
            raise missing(self.store, thread_id, checkpoint_id)
        return loaded

    async def history(self, thread_id: str, limit: int = 10) -> list[CheckpointInfo]:
        """A thread's newest ``limit`` checkpoints, newest first, without their states. Source: MEM-43.

        Raises:
            CheckpointNotFound: there is no such thread.
            ConfigurationError: ``limit`` is below 1.
        """
        found = await self._ask(LoadHistory(store=self.store, thread_id=thread_id, limit=limit))
        if not found.checkpoints:
            raise missing(self.store, thread_id)
        return list(found.checkpoints)

    async def update(
        self,
        thread_id: str,
        *,
        messages: Said | Iterable[Said] = (),
        metadata: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
    ) -> str:
        """Append to a conversation and write the result as a new checkpoint; no other is changed. Source: MEM-44.

        Args:
            thread_id: the thread.
            messages: appended in order; a text stands for a user's message.
            metadata: merged into the state's; JSON values.
            checkpoint_id: start from this earlier checkpoint instead of the newest: what came after it stays in the history
                and is no longer part of the conversation.

        Returns:
            The new checkpoint's id.

        Raises:
            CheckpointNotFound: there is no such thread or checkpoint.
            ThreadBusy: a run has the thread.
            NotPaused: messages were given, and the thread waits for an answer, which must come first.
            ConfigurationError: something in ``messages`` is no message.
            NotStorable: a value would not come back as it is.
        """
        said = read_messages(messages)

        async def change(state: AgentState) -> AgentState:
            if said and state.interrupts:
                raise NotPaused(f"thread {thread_id!r} waits for answers: resume it first, then add messages")
            return state.evolve(messages=(*state.messages, *said), metadata={**state.metadata, **(metadata or {})})

        return await self.amend(thread_id, change, checkpoint_id=checkpoint_id)

    async def amend(
        self, thread_id: str, change: Callable[[AgentState], Awaitable[AgentState]], *, checkpoint_id: str | None = None
    ) -> str:
        """Write what ``change`` makes of a thread's state as a new checkpoint, as the thread's only writer.

        Args:
            thread_id: the thread.
            change: gets the newest state, or that of ``checkpoint_id``; what it raises changes nothing.
            checkpoint_id: start from this earlier checkpoint, as for :meth:`update`.

        Returns:
            The new checkpoint's id.

        Raises:
            CheckpointNotFound: there is no such thread or checkpoint.
            ThreadBusy: a run has the thread.
        """
        async with self.lease(thread_id) as token:
            newest, head = await self._baseline(thread_id)
            loaded, source = (newest, head) if checkpoint_id is None else await self._baseline(thread_id, checkpoint_id)
            state = await change(source.state)
            facts = {**amended(loaded.metadata, state.metadata), "updated_from": loaded.checkpoint_id}
            journal = () if source.checkpoint_id == head.checkpoint_id else self._begun_since(source.state)
            return await self._save(thread_id, state, token, head, facts, journal)

    async def fork(
        self,
        thread_id: str,
        new_thread_id: str | None = None,
        *,
        checkpoint_id: str | None = None,
        member_of: str | None = None,
    ) -> str:
        """Copy one checkpoint, the newest or a given one, into a thread of its own. Source: MEM-45.

        Running on from an earlier point of a conversation is a fork of that checkpoint, and a run on it. The members of a
        pattern that is paused there are copied when they go on.

        Args:
            thread_id: the thread.
            new_thread_id: of the copy.
            checkpoint_id: default is the newest.
            member_of: the pattern's thread that the copy belongs to.

        Returns:
            The new thread's id: ``new_thread_id``, or ``<thread>-fork-<8 hex digits>``.

        Raises:
            ConfigurationError: the new thread has the old one's name (also a ``ValueError``).
            CheckpointNotFound: there is no such thread or checkpoint.
            CheckpointConflict: the new thread exists.
        """
        target = f"{thread_id}-fork-{os.urandom(4).hex()}" if new_thread_id is None else new_thread_id
        if target == thread_id:
            raise ConfigurationError(f"a fork of thread {thread_id!r} needs another name than its own")
        loaded, source = await self._baseline(thread_id, checkpoint_id)
        journal = loaded.journal
        if checkpoint_id is not None:
            newest = await self.load(thread_id)
            journal = newest.journal if newest.checkpoint_id == checkpoint_id else self._begun_since(source.state)
        facts = of_a_fork(loaded.metadata, thread_id, loaded.checkpoint_id)
        if member_of is not None:
            facts[MEMBER_OF] = member_of
        state = source.state
        if state.turn.stop_reason is None and state.run_id is not None:  # a turn that can go on is a run of its own there
            state = state.evolve(run_id=os.urandom(16).hex())
            facts["run_id"] = state.run_id
        async with self.lease(target) as token:
            if await self.exists(target):
                raise CheckpointConflict(f"thread {target!r} exists; give the fork another name", thread_id=target)
            await self._save(target, state, token, None, facts, journal)
        return target

    async def write(
        self,
        thread_id: str,
        state: AgentState,
        *,
        checkpoint_id: str | None = None,
        created_at: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        journal: tuple[JournalEntry, ...] = (),
        replace: bool = False,
    ) -> str:
        """Store a whole state that came from elsewhere.

        Args:
            thread_id: the thread.
            state: the conversation.
            checkpoint_id: of a new thread's checkpoint; default is a new id.
            created_at: the same, seconds since the epoch, UTC; default is now.
            metadata: searchable facts of the checkpoint.
            journal: calls in progress.
            replace: a thread that exists gets the state as its newest checkpoint, under a new id; its history stays.

        Returns:
            The checkpoint's id.

        Raises:
            CheckpointConflict: the thread exists, and is not to be replaced.
            ThreadBusy: a run has the thread.
        """
        async with self.lease(thread_id) as token:
            head = restore(await self._ask(LoadCheckpoint(store=self.store, thread_id=thread_id)))
            if head is not None and not replace:
                raise CheckpointConflict(f"thread {thread_id!r} exists", thread_id=thread_id)
            if head is not None:
                checkpoint_id = created_at = None
            return await self._save(
                thread_id, state, token, head, metadata or {}, journal, checkpoint_id, created_at, settles=head is not None
            )

    @contextlib.asynccontextmanager
    async def lease(self, thread_id: str) -> AsyncIterator[int]:
        """Be the thread's only writer for a moment; gives the fencing token. Source: OURS-15.

        Raises:
            ThreadBusy: somebody else is.
        """
        owner = f"threads-{os.urandom(8).hex()}"
        take = TakeLease(store=self.store, thread_id=thread_id, owner=owner, seconds=LEASE_SECONDS)
        try:
            taken: LeaseTaken = await self._ask(take)
        except asyncio.CancelledError:
            await let_go(self._ask, self.store, thread_id, owner)
            raise
        try:
            yield taken.token
        finally:
            try:
                await self._ask(ReleaseLease(store=self.store, thread_id=thread_id, owner=owner, token=taken.token))
            except UmbelError as error:  # what was done is done
                logger.warning("the lease of thread %r ends by itself in %g s: %s", thread_id, LEASE_SECONDS, error)

    async def _baseline(self, thread_id: str, checkpoint_id: str | None = None) -> tuple[CheckpointLoaded, Baseline]:
        loaded = await self.load(thread_id, checkpoint_id)
        baseline = restore(loaded)
        if baseline is None:
            raise missing(self.store, thread_id, checkpoint_id)
        return loaded, baseline

    def _begun_since(self, state: AgentState) -> tuple[JournalEntry, ...]:
        """For a journal, of the open calls of an earlier checkpoint: its thread went on, so nobody may start them again."""
        waiting = {waits.call.id for waits in state.interrupts}
        return tuple(
            JournalEntry(run_id=state.run_id or "", call_id=call.id, phase="begun", at=self._clock())
            for call in open_calls(state.messages)
            if call.id not in waiting
        )

    async def _save(
        self,
        thread_id: str,
        state: AgentState,
        token: int,
        head: Baseline | None,
        facts: Mapping[str, Any],
        journal: tuple[JournalEntry, ...] = (),
        checkpoint_id: str | None = None,
        created_at: float | None = None,
        *,
        settles: bool = False,
    ) -> str:
        checkpoint_id = checkpoint_id or os.urandom(16).hex()
        save, _ = build_save(
            state,
            store=self.store,
            thread_id=thread_id,
            checkpoint_id=checkpoint_id,
            created_at=self._clock() if created_at is None else created_at,
            baseline=head,
            metadata=dict(facts),
        )
        await self._ask(save.evolve(token=token, entries=journal, settles=settles))
        return checkpoint_id


def missing(store: str, thread_id: str, checkpoint_id: str | None = None) -> CheckpointNotFound:
    """The error for what is not there."""
    if checkpoint_id is None:
        return CheckpointNotFound(f"there is no thread {thread_id!r} in {shown(store)}", thread_id=thread_id)
    return CheckpointNotFound(
        f"thread {thread_id!r} has no checkpoint {checkpoint_id!r} in {shown(store)}; its history says which it has",
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
    )


def read_messages(said: Said | Iterable[Said]) -> tuple[Message, ...]:
    """Messages as people write them.

    Raises:
        ConfigurationError: one is no message; says which, and what is wrong with it.
    """
    items = [said] if isinstance(said, Message | Mapping | str) else list(said)
    return tuple(_message(item, number) for number, item in enumerate(items))


def _message(item: Any, number: int) -> Message:
    if isinstance(item, Message):
        return item
    if isinstance(item, str):
        return Message.user(item)
    try:
        return Message.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = ".".join(map(str, ("messages", number, *first["loc"])))
        raise ConfigurationError(f"{path}: {first['msg']}; write for example Message.user('...')") from None
