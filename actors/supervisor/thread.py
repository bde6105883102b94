"""A run's thread: what it opens with, and what is saved of it."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from ...protocol.commands import CheckpointLoaded, LoadCheckpoint
from ...protocol.errors import ConfigurationError, PeerLost
from ...protocol.messages import Frozen, Message, ToolResult
from ..checkpoints.delta import Baseline, build_save, restore
from .run import Run

logger = logging.getLogger("umbel.supervisor")

ATTEMPTS = 3  # checkpointers asked before the loss of one ends the run
UNANSWERED = "outcome unknown: the process stopped before its result was kept. Verify what happened before you repeat it."


async def open_turn(run: Run) -> None:
    """Begin a conversation, or a new turn of the thread's: its messages stay, every counter starts anew."""
    if run.request.cancelled:
        run.stop("cancelled")
    system = system_message(run)
    earlier: tuple[Message, ...] = ()
    metadata = {**run.config.metadata, **run.request.metadata}
    if durable(run):
        run.checkpoint = await load(run)
        if run.checkpoint is not None:
            earlier = close_open_calls(run.checkpoint.state.messages)
            metadata = {**run.checkpoint.state.metadata, **metadata}
    if not earlier:
        earlier = (system,) if system is not None else ()
    elif earlier[0].role == "system" and system is not None:
        earlier = (system, *earlier[1:])
    prompt = Message.trusted(role="user", content=run.request.prompt)
    run.state = run.agent.blank_state.evolve(
        run_id=run.id,
        messages=(*earlier, prompt),
        metadata=metadata,
        started_at=run.started_at,
        updated_at=run.started_at,
    )


def system_message(run: Run) -> Message | None:
    """The system prompt of this turn; a callable is asked anew every time."""
    prompt = run.config.system_prompt
    if not callable(prompt):
        return run.agent.system_message  # type: ignore[no-any-return]  # made once
    text = prompt({"prompt": run.request.prompt, "metadata": dict(run.request.metadata)})
    return Message.system(str(text)) if text else None


def close_open_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Answer the calls that an earlier, killed turn left open: their outcome is unknown, they are not run again."""
    answered = {message.tool_call_id for message in messages if message.role == "tool"}
    if all(call.id in answered for message in messages for call in message.tool_calls):
        return messages
    closed: list[Message] = []
    for index, message in enumerate(messages):
        closed.append(message)
        following = messages[index + 1].role if index + 1 < len(messages) else None
        if following != "tool" or message.role == "assistant":
            lost = [call for call in message.tool_calls if call.id not in answered]
            closed += [Message.tool(ToolResult(tool_call_id=call.id, name=call.name, error=UNANSWERED)) for call in lost]
    return tuple(closed)


def durable(run: Run) -> bool:
    """Whether this run's state is stored.

    Raises:
        ConfigurationError: a thread was asked for, but the agent has no checkpointer.
    """
    if run.request.thread_id is None:
        return False
    if run.config.checkpointer is None:
        raise ConfigurationError(
            f"thread_id={run.request.thread_id!r} needs an agent with a checkpointer, e.g. 'sqlite:///umbel.db'"
        )
    return True


async def load(run: Run) -> Baseline | None:
    """The thread's newest checkpoint, None for a new thread."""
    request = LoadCheckpoint(store=run.config.checkpointer, thread_id=run.request.thread_id or "")
    loaded: CheckpointLoaded = await ask_checkpointer(run, request)
    return restore(loaded)


async def save(run: Run, *, final: bool = False, reason: str | None = None) -> None:
    """Store the state as it is now. The save names the checkpoint it continues, so two writers cannot overwrite each other."""
    if not run.is_durable or not run.opened:
        return
    message, baseline = build_save(
        run.state,
        store=run.config.checkpointer,
        thread_id=run.request.thread_id or "",
        checkpoint_id=os.urandom(16).hex(),
        created_at=time.time(),
        baseline=run.checkpoint,
        metadata={"run_id": run.id, "finished": final, "reason": reason},
    )
    await ask_checkpointer(run, message)
    run.checkpoint = baseline


async def ask_checkpointer(run: Run, message: Frozen) -> Any:
    """Ask, and ask again if the checkpointer dies over it: loads, and saves of one id, are safe to repeat."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await run.peers.checkpointer().request(message)
        except PeerLost:
            logger.info("run %s asks the restarted checkpointer again", run.id)
    return await run.peers.checkpointer().request(message)
