"""Anthropic's Messages API: requests out of conversations, replies out of JSON. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....protocol.errors import MalformedResponse
from ....protocol.messages import FinishReason, Message, ModelResponse, ToolCall, Usage, clean_text, clean_value
from .endpoint import Endpoint
from .failures import from_payload
from .history import paired
from .wire import NOTE_MARK, as_text, count_of, decode_call, wire_id

THINKING = "anthropic_thinking"
"""Key of a message's metadata: its thinking blocks as they came, signed; the API wants them back unchanged."""
ANSWER_TOOL = "final_answer"
CONTINUED = "(conversation continued)"
_CACHED = {"type": "ephemeral"}
_THINKING_TYPES = frozenset({"thinking", "redacted_thinking"})
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_TOOL_CHOICES = {"auto": "auto", "required": "any", "any": "any", "none": "none"}

Block = dict[str, Any]


# --- requests ---------------------------------------------------------------------------------------------------------


def encode_conversation(messages: Sequence[Message]) -> tuple[list[Block], list[Block]]:
    """The ``system`` and ``messages`` fields of a request.

    Leading system messages are system blocks, later ones marked user notes. Turns alternate and the first is the
    user's; the results of one batch are in one user message, in front of whatever else it says. Nothing empty is sent.

    Source: spec LOOP-43; BUG-23, BUG-31, BUG-32; public cases 6 and 13.
    """
    history = paired(messages)
    leading = next((place for place, message in enumerate(history) if message.role != "system"), len(history))
    system = [block for message in history[:leading] for block in _text(message.content)]
    turns: list[Block] = []
    used: set[str] = set()
    ids: Iterator[str] = iter(())
    for message in history[leading:]:
        if message.role == "assistant":
            batch = [wire_id(call, used, "word") for call in message.tool_calls]
            ids = iter(batch)
            _add(turns, "assistant", _assistant_blocks(message, batch))
        elif message.role == "tool":  # right behind its call, so ids go by position
            _add(turns, "user", [_result(message, next(ids))])
        else:
            mark = NOTE_MARK if message.role == "system" else ""
            _add(turns, "user", _text(message.content, mark))
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": _text(CONTINUED)})
    return system, turns


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The ``tools`` field."""
    encoded: list[Block] = []
    for tool in tools:
        function = tool["function"]
        entry: Block = {"name": function["name"], "input_schema": {"type": "object", **(function.get("parameters") or {})}}
        if function.get("description"):
            entry["description"] = function["description"]
        encoded.append(entry)
    return encoded


def encode_tool_choice(choice: Any, parallel: Any) -> Block | None:
    """The ``tool_choice`` field out of OpenAI's words (``required``, a named function) or Anthropic's own.

    Args:
        choice: None leaves it to the provider.
        parallel: False allows one call at a time.
    """
    if isinstance(choice, str):
        choice = {"type": _TOOL_CHOICES.get(choice, choice)}
    elif isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "tool", "name": (choice.get("function") or choice).get("name")}
    encoded = dict(choice) if choice else None
    if parallel is False and (encoded is None or encoded.get("type") != "none"):
        encoded = {"type": "auto", **(encoded or {}), "disable_parallel_tool_use": True}
    return encoded


def mark_cached(body: dict[str, Any]) -> None:
    """Mark the end of the tools and the system prompt, and the end of the conversation, as worth caching."""
    for prefix in (body.get("system"), body.get("tools")):
        if prefix:
            prefix[-1] = prefix[-1] | {"cache_control": _CACHED}
            break
    last = body["messages"][-1]["content"]
    if last[-1]["type"] not in _THINKING_TYPES:
        last[-1] = last[-1] | {"cache_control": _CACHED}


def may_think(turns: Sequence[Block]) -> bool:
    """Whether thinking may be on: not in the middle of calls that were made without it, by another model for example."""
    if turns[-1]["content"][0]["type"] != "tool_result":
        return True
    return turns[-2]["content"][0]["type"] in _THINKING_TYPES


def answer_tool(schema: Mapping[str, Any]) -> Block:
    """The tool that a model is made to call when its answer must fit ``schema``."""
    return {"name": ANSWER_TOOL, "description": "Gives the final answer.", "input_schema": dict(schema)}


def _add(turns: list[Block], role: str, blocks: list[Block]) -> None:
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": role, "content": blocks})


def _text(text: str | None, mark: str = "") -> list[Block]:
    """A text block; none for blank text, which the API refuses."""
    return [{"type": "text", "text": f"{mark}{text}"}] if text and text.strip() else []


def _assistant_blocks(message: Message, ids: list[str]) -> list[Block]:
    thinking = message.metadata.get(THINKING)
    blocks = [dict(block) for block in thinking] if isinstance(thinking, list) else []
    said = _text((message.content or "").rstrip())  # refused at the very end, and of no use elsewhere
    calls = [
        {"type": "tool_use", "id": call_id, "name": _tool_name(call.name), "input": _input(call)}
        for call_id, call in zip(ids, message.tool_calls, strict=True)
    ]
    return [*blocks, *said, *calls] if said or calls else []


def _result(message: Message, call_id: str) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": call_id}
    return block | {"content": message.content} if message.content and message.content.strip() else block


def _input(call: ToolCall) -> dict[str, Any]:
    return call.arguments if call.malformed_arguments is None else {"malformed_arguments": call.malformed_arguments}


def _tool_name(name: str) -> str:
    """``name`` as the API accepts it in a history: a name that the model made up must not fail every later request."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:128] or "unknown"


# --- replies ----------------------------------------------------------------------------------------------------------


def decode_message(endpoint: Endpoint, data: Any, answering: bool = False) -> ModelResponse:
    """The reply that the JSON of an unstreamed response holds.

    Args:
        endpoint: who was asked.
        data: the decoded JSON.
        answering: the answer was asked for as a call of :data:`ANSWER_TOOL`.

    Raises:
        MalformedResponse: it is not a message.
        ModelError: it is an error in the clothes of a 200.
    """
    if isinstance(data, dict) and (data.get("type") == "error" or data.get("error")):
        raise from_payload(endpoint, data)
    blocks = data.get("content") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(blocks, list):
        raise endpoint.error(MalformedResponse, "the reply holds no content; is this a Messages API endpoint?")
    return build_reply(
        [block for block in blocks if isinstance(block, dict)],
        stop_reason=data.get("stop_reason"),
        usage=data.get("usage"),
        model=data.get("model"),
        answering=answering,
    )


def build_reply(
    blocks: Sequence[Mapping[str, Any]], *, stop_reason: Any, usage: Any, model: Any, answering: bool
) -> ModelResponse:
    """The reply that whole content blocks are. An answer that came as a call becomes text."""
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
    used = [block for block in blocks if block.get("type") == "tool_use"]
    calls = tuple(decode_call(block.get("id"), block.get("name"), block.get("input")) for block in used)
    finish = decode_stop_reason(stop_reason)
    answer = next((call for call in calls if answering and call.name == ANSWER_TOOL), None)
    if answer is not None:
        text = answer.malformed_arguments or json.dumps(answer.arguments, ensure_ascii=False, separators=(",", ":"))
        calls, finish = (), "stop" if finish == "tool_calls" else finish
    return ModelResponse(
        message=Message.assistant(text or None, tool_calls=calls, **thinking_metadata(blocks)),
        usage=decode_usage(usage),
        stop_reason=finish,
        reasoning="".join(as_text(block.get("thinking")) for block in blocks if block.get("type") == "thinking") or None,
        model=clean_text(as_text(model)) or None,
    )


def thinking_metadata(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a message must carry so that its thinking can be sent back. Unsigned thinking is not taken back by the API."""
    kept = [
        clean_value(dict(block))
        for block in blocks
        if block.get("type") == "redacted_thinking" or (block.get("type") == "thinking" and block.get("signature"))
    ]
    return {THINKING: kept} if kept else {}


def decode_stop_reason(value: Any) -> FinishReason:
    """A stop reason in Umbel's words; anything outside the known set is ``unknown``."""
    return _FINISH.get(value, "unknown") if isinstance(value, str) else "unknown"


def decode_usage(data: Any) -> Usage | None:
    """Tokens as reported; what was written to and read from the prompt cache is counted beside the prompt."""
    if not isinstance(data, Mapping):
        return None
    return Usage(
        prompt_tokens=count_of(data, "input_tokens"),
        completion_tokens=count_of(data, "output_tokens"),
        cache_creation_tokens=count_of(data, "cache_creation_input_tokens"),
        cache_read_tokens=count_of(data, "cache_read_input_tokens"),
    )
