"""Room for the next model call: in the budget, and in the model's context window."""

from __future__ import annotations

from ...protocol.events import CompactionEvent
from ...protocol.messages import Message
from ..agent.conversation.compaction import CompactionMemory, Pressure, compact, measure
from .hooked import about
from .hooks.dispatch import call
from .hooks.events import BeforeCompaction
from .run import Run
from .think import judge

WORST_REPLY_TOKENS = 4_096  # of a model whose max_tokens is not set (LOOP-37)


def crowded(run: Run) -> bool:
    """Whether this agent has to look: it has a cost budget, or its model's window is known."""
    return run.config.max_cost_usd is not None or run.agent.compaction is not None


async def make_room(run: Run) -> str | None:
    """Stop before a call that could cost too much; shorten a conversation that would not fit. Source: LOOP-37 to LOOP-41."""
    if run.config.max_cost_usd is not None and run.state.would_exceed_cost_budget(run.config.max_tokens or WORST_REPLY_TOKENS):
        return "cost_budget"
    return await compacted(run) if run.agent.compaction is not None else None


async def compacted(run: Run) -> str | None:
    """Rewrite the conversation if it has outgrown the window; ``context_exhausted`` when that is not enough."""
    memo, agent = run.memo, run.agent
    if memo.compaction is None:
        memo.compaction = CompactionMemory()
    sizes = {
        "config": agent.compaction,
        "window": agent.window,
        "tools_tokens": agent.tools_tokens,
        "reported_tokens": memo.prompt_tokens or None,
        "iteration": run.state.iteration,
        "memory": memo.compaction,
    }
    pressure = measure(run.state.messages, **sizes)
    if not pressure.is_due:
        return None
    wishes = await asked_hooks(run, pressure)
    if wishes is None:
        return None
    done = await compact(run.state.messages, instructions=wishes, summarise=lambda *asked: summary(run, *asked), **sizes)
    if done is None:
        return None
    run.emit(CompactionEvent, **done.event_fields())
    run.state = run.state.evolve(messages=done.messages)
    run.sent = 0  # the agent actor holds the conversation as it was
    memo.prompt_tokens = 0
    if not done.exhausted:
        return None
    run.last_text = done.detail or "the conversation does not fit into the model's context window any more"
    return "context_exhausted"


async def asked_hooks(run: Run, pressure: Pressure) -> str | None:
    """What hooks wish for the summary; None when one of them wants the conversation to stay as it is."""
    if not run.agent.hooks.before_compaction:
        return ""
    event = BeforeCompaction(
        **about(run),
        messages=run.state.messages,
        tokens=pressure.tokens,
        threshold=pressure.threshold,
        context_window=run.agent.window,
        iteration=run.state.iteration,
    )
    await call(run.agent.hooks.before_compaction, event)
    run.publish(event.drain())
    return None if event.cancel_reason is not None else event.instructions or ""


async def summary(run: Run, messages: list[Message], max_tokens: int) -> str | None:
    """The summary that stands for the middle of the conversation; its call counts like any other."""
    response = await judge(run, messages, "summary", max_tokens=max_tokens)
    return response.content
