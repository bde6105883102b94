"""Think: one model call for a run, made by its agent actor."""

from __future__ import annotations

from typing import Any

from ...protocol.commands import ThinkReply, ThinkRequest
from ...protocol.errors import PeerLost
from ...protocol.events import ModelChunkEvent, ModelRetryEvent, ThinkEvent
from ...protocol.messages import ModelChunk, ModelResponse
from .run import Run

ATTEMPTS = 4  # agent actors tried before the loss of one ends the run


async def think(run: Run) -> ModelResponse:
    """Call the model on the conversation, append its reply, count it, and tell the subscriber."""
    response = await call_model(run, stream=run.request.stream_tokens)
    message = run.adopt_calls(response)
    if message is not response.message:
        response = response.evolve(message=message)
    run.state = run.state.with_message(message)
    run.emit(
        ThinkEvent,
        iteration=run.state.iteration,
        reasoning=response.reasoning or message.content,
        tool_calls=message.tool_calls,
    )
    return response


async def call_model(run: Run, *, use_tools: bool = True, auxiliary: bool = False, stream: bool = False) -> ModelResponse:
    """One counted model call. Only new messages travel; an agent actor that dies is replaced by the next one."""
    attempt = 0
    base = run.sent
    messages = run.state.messages
    run.partial_text = ""
    heard = (lambda part: partial(run, part)) if run.watched else None
    while True:
        channel = run.agent_channel if base and run.agent_channel is not None else run.peers.agent(run.agent, run.id, attempt)
        run.agent_channel = channel
        channel.define(run.request.definition, run.peers.blob)
        asked = channel.request(
            ThinkRequest.trusted(
                run_id=run.id,
                definition=run.request.definition,
                base=base,
                messages=messages[base:],
                use_tools=use_tools,
                auxiliary=auxiliary,
                stream=stream,
                model_kwargs=run.request.model_kwargs,
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
    run.sent = len(messages)
    run.partial_text = ""
    run.count(reply.response.usage, reply.response.cost_usd)
    return reply.response


def partial(run: Run, part: Any) -> None:
    """A chunk of a streamed reply, or the news that the provider is being tried again."""
    if isinstance(part, ModelChunk):
        run.partial_text += part.content or ""
        run.emit(ModelChunkEvent, **{name: getattr(part, name) for name in ModelChunk.model_fields})
    elif isinstance(part, ModelRetryEvent):
        run.emit(ModelRetryEvent, **{name: getattr(part, name) for name in RETRY_FIELDS})


RETRY_FIELDS = ("attempt", "delay_seconds", "reason", "status_code", "error", "from_retry_after")
