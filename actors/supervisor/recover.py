"""Calls that a model wrote as text: read where the model is known to do so, asked for again where one broke off."""

from __future__ import annotations

from ...protocol.messages import Message, ModelResponse
from ..agent.models.text_calls import Recovery, recover
from .run import Run

MAX_UNFINISHED = 2  # in a row (LOOP-58)
UNFINISHED = "Your last tool call broke off before its end, so it was not run. Write the whole call again."


def repaired(run: Run, response: ModelResponse) -> ModelResponse | None:
    """The reply with the calls that stood in its text; None when a broken call was sent back. Source: LOOP-54 to LOOP-58."""
    if response.tool_calls:
        run.memo.unfinished = 0
        return response
    found = found_in(run, response)
    if found is None:
        return response
    *earlier, reply = run.state.messages
    prose = (found.prose or "").strip() or None
    if found.calls:
        run.memo.unfinished = 0
        message = run.adopt_calls(response.evolve(message=reply.evolve(content=prose, tool_calls=found.calls)))
        run.state = run.state.evolve(messages=(*earlier, message))
        return response.evolve(message=message, stop_reason="tool_calls")
    run.memo.unfinished += 1
    kept = (reply.evolve(content=prose),) if prose else ()
    run.state = run.state.evolve(messages=(*earlier, *kept, Message.user(UNFINISHED, automated=True)))
    return None


def found_in(run: Run, response: ModelResponse) -> Recovery | None:
    """The calls that stand in a reply's text, whole or broken off."""
    agent = run.agent
    if not agent.recovers_calls:
        return None
    offered = agent.schemas(run.activated_tools())
    return recover(response.content or "", response.reasoning, offered, agent.leaked_formats, agent.generic_calls)
