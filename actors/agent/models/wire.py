"""The OpenAI chat-completions format: requests out of conversations, replies out of JSON. Pure functions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from ....protocol.errors import MalformedResponse
from ....protocol.messages import FinishReason, Message, ModelResponse, ToolCall, Usage, clean_text, clean_value
from .endpoint import Endpoint
from .failures import from_payload
from .history import paired

SystemMessages = Literal["anywhere", "first_only"]
CallIds = Literal["any", "nine", "word"]

NOTE_MARK = "[System note] "
MAX_CALL_ID = 40  # OpenAI refuses longer ones
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
}


# --- requests -------------------------------------------------------------------------------------------------------


def encode_messages(
    messages: Sequence[Message], system_messages: SystemMessages = "anywhere", call_ids: CallIds = "any"
) -> list[dict[str, Any]]:
    """The ``messages`` field of a request, with pairing repaired.

    Args:
        messages: the conversation.
        system_messages: ``first_only`` joins the leading system messages and sends later ones as marked user notes,
            for servers that refuse them anywhere else.
        call_ids: ``nine`` sends ids of nine letters and digits, as Mistral wants them.
    """
    encoded: list[dict[str, Any]] = []
    used: set[str] = set()
    batch: Iterator[str] = iter(())
    for message in paired(messages):
        if message.role == "assistant":
            ids = [wire_id(call, used, call_ids) for call in message.tool_calls]
            batch = iter(ids)
            encoded.append(_encode_assistant(message, ids))
        elif message.role == "tool":  # right behind its call, so ids go by position
            encoded.append({"role": "tool", "tool_call_id": next(batch), "content": message.content or ""})
        else:
            encoded.append({"role": message.role, "content": message.content or ""})
    return _notes_as_user(encoded) if system_messages == "first_only" else encoded


def encode_body(body: dict[str, Any]) -> bytes:
    """``body`` as JSON in UTF-8, whatever its texts hold."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(clean_value(body), ensure_ascii=False, separators=(",", ":")).encode()


def _encode_assistant(message: Message, ids: list[str]) -> dict[str, Any]:
    # "" and never null: llama_cpp.server fails on null beside tool calls.
    encoded: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
    if ids:
        encoded["tool_calls"] = [
            {"id": wire_id, "type": "function", "function": {"name": call.name, "arguments": _encode_arguments(call)}}
            for wire_id, call in zip(ids, message.tool_calls, strict=True)
        ]
    return encoded


def _encode_arguments(call: ToolCall) -> str:
    # Chat templates of several servers parse these; broken JSON in the history would fail every later request.
    arguments = call.arguments if call.malformed_arguments is None else {"malformed_arguments": call.malformed_arguments}
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def wire_id(call: ToolCall, used: set[str], call_ids: CallIds) -> str:
    """The provider's own id where that is fit and free, else ours; unique within the request (``used``), equal in each.

    ``call_ids`` says what is fit: ``nine`` letters and digits, a ``word`` of letters, digits, ``_`` and ``-``, or any.
    """
    number = 0
    for candidate in (call.provider_id or "", call.id):
        if _fits(candidate, call_ids) and candidate not in used:
            break
    else:
        candidate = _short_id(call.id, number, call_ids)
        while candidate in used:
            number += 1
            candidate = _short_id(call.id, number, call_ids)
    used.add(candidate)
    return candidate


def _fits(call_id: str, call_ids: CallIds) -> bool:
    if call_ids == "nine":
        return len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
    if call_ids == "word" and not call_id.replace("_", "").replace("-", "").isalnum():
        return False
    return 0 < len(call_id) <= MAX_CALL_ID and call_id.isascii()


def _short_id(call_id: str, number: int, call_ids: CallIds) -> str:
    digest = hashlib.sha256(clean_text(f"{call_id}#{number}").encode()).hexdigest()
    return digest[:9] if call_ids == "nine" else f"call_{digest[:12]}"


def _notes_as_user(encoded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    leading = 0
    while leading < len(encoded) and encoded[leading]["role"] == "system":
        leading += 1
    head = [{"role": "system", "content": "\n\n".join(message["content"] for message in encoded[:leading])}] if leading else []
    tail = [
        {"role": "user", "content": f"{NOTE_MARK}{message['content']}"} if message["role"] == "system" else message
        for message in encoded[leading:]
    ]
    return head + tail


# --- replies --------------------------------------------------------------------------------------------------------


def decode_reply(endpoint: Endpoint, data: Any) -> ModelResponse:
    """The reply that the JSON of an unstreamed response holds.

    Raises:
        MalformedResponse: it is not a chat completion.
        ModelError: it is an error in the clothes of a 200.
    """
    if isinstance(data, dict) and data.get("error"):
        raise from_payload(endpoint, data)
    choices = data.get("choices") if isinstance(data, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise endpoint.error(MalformedResponse, "the reply holds no message; is this a chat-completions endpoint?")
    text, thoughts = split_content(message.get("content"))
    usage = data.get("usage")
    return ModelResponse(
        message=Message.assistant(text or as_text(message.get("refusal")) or None, tool_calls=tuple(_decode_calls(message))),
        usage=decode_usage(usage),
        stop_reason=decode_finish(choice.get("finish_reason")),
        reasoning=thoughts + reasoning_of(message) or None,
        cost_usd=decode_cost(usage),
        model=clean_text(as_text(data.get("model"))) or None,
    )


def decode_finish(value: Any) -> FinishReason:
    """A provider's finish reason in Umbel's words; anything outside the known set is ``unknown``."""
    return _FINISH.get(value, "unknown") if isinstance(value, str) else "unknown"


def decode_call(provider_id: Any, name: Any, arguments: Any) -> ToolCall:
    """A call with an id of our own. Arguments that are no JSON object are kept as text, never replaced by ``{}``.

    Args:
        provider_id: as the provider gave it: any value, often missing or repeated.
        name: the tool's name.
        arguments: JSON text, or an object from servers that don't encode it; no text at all is no arguments.
    """
    parsed: Any = arguments
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        parsed = {}
    elif isinstance(arguments, str):
        parsed = parse_object(arguments)
    malformed = None
    if not isinstance(parsed, dict):
        malformed = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    return ToolCall(
        id=f"call_{uuid4().hex[:12]}",
        name=clean_text(as_text(name)),
        arguments={} if malformed is not None else parsed,
        malformed_arguments=malformed,
        provider_id=clean_text(as_text(provider_id)) or None,
    )


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` holds, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def decode_usage(data: Any) -> Usage | None:
    """Tokens as reported, or None when nothing was. Reasoning that a provider counts beside the completion is added."""
    if not isinstance(data, dict):
        return None
    prompt, completion = count_of(data, "prompt_tokens"), count_of(data, "completion_tokens")
    details = data.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=max(completion, count_of(data, "total_tokens") - prompt),
        cached_tokens=count_of(details, "cached_tokens") or count_of(data, "prompt_cache_hit_tokens"),
        cache_write_tokens=count_of(details, "cache_write_tokens"),
    )


def decode_cost(usage: Any) -> float | None:
    """The provider's own figure in US dollars (``usage.cost``, as OpenRouter reports it), or None."""
    value = usage.get("cost") if isinstance(usage, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def split_content(content: Any) -> tuple[str, str]:
    """Text and reasoning of a ``content`` field: a text, or a list of parts as Mistral and others send."""
    if isinstance(content, str):
        return content, ""
    text: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict) and "thinking" in part:
            inner = part["thinking"]
            thoughts.append(split_content(inner)[0])
        elif isinstance(part, dict):
            text.append(as_text(part.get("text")))
    return "".join(text), "".join(thoughts)


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The separate reasoning channel, under either of its two names."""
    return as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))


def as_text(value: Any) -> str:
    """``value`` if it is a text, else an empty one (numbers as digits: some servers number their calls)."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _decode_calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    calls = message.get("tool_calls")
    entries = [entry for entry in calls if isinstance(entry, dict)] if isinstance(calls, list) else []
    if not entries and isinstance(message.get("function_call"), dict):  # the format before tool_calls
        entries = [{"function": message["function_call"]}]
    for entry in entries:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        yield decode_call(entry.get("id"), function.get("name"), function.get("arguments"))


def count_of(data: Mapping[str, Any], name: str) -> int:
    """A field that counts something; 0 for anything that is no number."""
    value = data.get(name)
    return max(int(value), 0) if isinstance(value, int | float) and math.isfinite(value) else 0
