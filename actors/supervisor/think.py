"""Think: one model call for a run, made by its agent actor."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ...protocol.commands import ThinkReply, ThinkRequest
from ...protocol.errors import PeerLost
from ...protocol.events import ModelChunkEvent, ModelRetryEvent, ThinkEvent
from ...protocol.messages import Message, ModelChunk, ModelResponse
from ..agent.conversation.tokens import reported_size
from .hooked import call_with_hooks
from .run import Run

ATTEMPTS = 4  # agent actors tried before the loss of one ends the run


async def think(run: Run) -> ModelResponse:
    """Call the model on the conversation, append its reply, count it, and tell the subscriber."""
    response = await call_model(run, stream=run.request.stream_tokens, **run.agent.step_settings)
    message = run.adopt_calls(response)
    if message is not response.message:
        response = response.evolve(message=message)
    run.state = run.state.with_message(message)
    if run.config.planning and run.state.iteration == 1 and message.content:
        run.state = run.state.with_metadata("plan", message.content)
    if run.agent.compaction is not None:
        run.memo.prompt_tokens = reported_size(response.usage) or 0
    run.emit(
        ThinkEvent,
        iteration=run.state.iteration,
        reasoning=response.reasoning or message.content,
        tool_calls=message.tool_calls,
    )
    return response


def call_model(run: Run, **options: Any) -> Awaitable[ModelResponse]:
    """One counted model call on the conversation, by way of the agent's model hooks. The options are those of :func:`ask`."""
    hooks = run.agent.hooks
    if hooks.before_model or hooks.after_model:
        return call_with_hooks(run, ask, **options)
    return ask(run, **options)


async def ask(
    run: Run,
    messages: list[Message] | None = None,
    *,
    role: str = "primary",
    use_tools: bool = True,
    stream: bool = False,
    **settings: Any,
) -> ModelResponse:
    """One counted model call. An agent actor that dies is replaced by the next one.

    Args:
        run: whose call.
        messages: the whole request; None is the conversation, of which only what is new travels.
        role: whose model (``ThinkRequest.role``).
        use_tools: offer the tools.
        stream: pass the reply on as it comes.
        **settings: of this call, on top of the run's.
    """
    attempt = 0
    base = run.sent if messages is None else 0
    run.partial_text = ""
    heard = (lambda part: partial(run, part)) if run.watched else None
    # the run's own settings are for the model that it talks to, not for the one that sums it up (LOOP-27)
    settings = {**run.request.model_kwargs, **settings} if role == "primary" else settings
    while True:
        channel = run.agent_channel if base and run.agent_channel is not None else run.peers.agent(run.agent, run.id, attempt)
        if messages is None:
            run.agent_channel = channel
        channel.define(run.request.definition, run.peers.blob)
        asked = channel.request(
            ThinkRequest.trusted(
                run_id=run.id,
                definition=run.request.definition,
                base=base,
                messages=run.state.messages[base:] if messages is None else tuple(messages),
                exact=messages is not None,
                use_tools=use_tools,
                activated=run.activated_tools() if use_tools else (),
                role=role,
                stream=stream,
                model_kwargs=settings,
                share=run.request.share,
            ),
            on_partial=heard,
        )
        try:
            reply: ThinkReply = await asked
        except PeerLost:
            attempt += 1
            if attempt >= ATTEMPTS or run.partial_text:
                raise
            base = 0
            continue
        if reply.response is not None:
            break
        base = 0
    if messages is None:
        run.sent = len(run.state.messages)
    run.partial_text = ""
    run.count(reply.response.usage, reply.response.cost_usd)
    return reply.response


async def judge(run: Run, messages: list[Message], role: str, **settings: Any) -> ModelResponse:
    """A counted call beside the conversation, without tools: for judges, summaries and repairs."""
    return await call_model(run, messages=messages, role=role, use_tools=False, **settings)


def partial(run: Run, part: Any) -> None:
    """A chunk of a streamed reply, or the news that the provider is being tried again."""
    if isinstance(part, ModelChunk):
        run.partial_text += part.content or ""
        if run.config.hold_final_answer_tokens and (part.content or part.tool_calls or part.done):
            run.memo.held.append(part)
        else:
            tell_chunk(run, part)
    elif isinstance(part, ModelRetryEvent):
        run.emit(ModelRetryEvent, **{name: getattr(part, name) for name in RETRY_FIELDS})


def tell_chunk(run: Run, chunk: ModelChunk) -> None:
    """Emit a chunk."""
    run.emit(ModelChunkEvent, **{name: getattr(chunk, name) for name in CHUNK_FIELDS})


def release(run: Run, *, text: bool = True) -> None:
    """Pass on the chunks that were held; without their ``text`` only those that carry something else."""
    if run._memo is None or not run.memo.held:
        return
    held, run.memo.held = run.memo.held, []
    for chunk in held:
        if text:
            tell_chunk(run, chunk)
        elif chunk.tool_calls or chunk.usage is not None or chunk.done:
            tell_chunk(run, chunk.evolve(content=None))


def discard(run: Run, replacement: str | None = None) -> None:
    """Drop the chunks that were held; one chunk with the ``replacement`` goes out instead, if there is one."""
    run.drop_held()
    if replacement is not None and run.request.stream_tokens:
        tell_chunk(run, ModelChunk(content=replacement))


CHUNK_FIELDS = tuple(name for name in ModelChunk.model_fields if name in ModelChunkEvent.model_fields)
RETRY_FIELDS = ("attempt", "delay_seconds", "reason", "status_code", "error", "from_retry_after")
