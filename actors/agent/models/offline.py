"""The built-in offline model: fixed rules in place of a language model, so that demos and first steps need no key.

It is no language model and understands nothing: it matches words and fills arguments by name. What it does is real, though:
it is driven by the conversation alone, chooses among the tools on offer, calls them with arguments taken from the task and
from earlier results, and answers with facts out of those results. The same conversation always gives the same reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from ....protocol.errors import ConfigurationError
from ....protocol.markers import AUTOMATED
from ....protocol.messages import FinishReason, Message, ModelChunk, ModelResponse, ToolCall, Usage

MAX_CALLS = 16
MAX_LIST = 3
_PATH = re.compile(
    r"(?<![\w.~@+-])[\w.~@+-]{0,100}(?:/[\w.~@+-]{0,200}){1,40}"
    r"|\b[\w-]{1,100}\.(?:py|pyi|md|txt|json|jsonl|csv|toml|ya?ml|rst|html|js|ts|c|h)\b"
)
_URL = re.compile(r"\bhttps?://[^\s\"'<>)]+")
_QUOTED = re.compile(r"\"([^\"\n]{1,1000})\"|\B'([^'\n]{1,1000})'\B|`([^`\n]{1,1000})`")
_NUMBER = re.compile(r"(?<![\w.,/:-])-?\d+(?:\.\d+)?(?![\w/:-]|\.\d)")
_NAMED = re.compile(r"\b([A-Za-z_]\w*)\s*[=:]\s*([^\s,;]+)")
_WORD = re.compile(r"[a-z]+")
# fmt: off
_STOP_WORDS = frozenset(
    [
        "a", "all", "an", "and", "any", "are", "as", "at", "be", "by", "each", "find", "for", "from", "get", "has", "in",
        "is", "it", "its", "of", "on", "one", "or", "run", "set", "that", "the", "this", "to", "with",
    ]
)
_CHANGING = frozenset(
    [
        "add", "clear", "create", "delete", "drop", "execute", "insert", "kill", "move", "post", "publish", "purge", "put",
        "remove", "reset", "send", "set", "update", "write",
    ]
)
# fmt: on


class OfflineModel:
    """A deterministic model of fixed rules; ``model="offline:reviewer"``. It keeps no state.

    A turn goes like this. A tool is wanted if the task names it, or shares a word with its name (for tools that change
    things, the very verb). A wanted tool is called as soon as every required argument is known: from paths, URLs, numbers,
    ``name=value`` pairs and quoted texts in the task, or from fields of the same name in earlier results. When nothing is
    left to call it answers with what the results say, as JSON if the task mentions JSON.

    Args:
        name: ``reviewer``, the one set of rules there is.
        **settings: accepted for symmetry with other models, without effect.

    Raises:
        ConfigurationError: another name.
    """

    def __init__(self, name: str = "reviewer", **settings: Any) -> None:
        if name != "reviewer":
            raise ConfigurationError(f"there is no offline model {name!r}; the one that exists is 'offline:reviewer'")
        self.name = name

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The reply to the conversation; ``kwargs`` have no effect."""
        turn = _Turn(messages)
        calls = tuple(turn.next_calls(tools or []))
        message = Message.assistant(_announce(calls) if calls else turn.answer(), tool_calls=calls)
        stop_reason: FinishReason = "tool_calls" if calls else "stop"
        return ModelResponse(
            message=message, usage=_usage(messages, tools, message), stop_reason=stop_reason, model=f"offline:{self.name}"
        )

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncIterator[ModelChunk]:
        """The same reply word by word."""
        response = await self.complete(messages, tools, **kwargs)
        for word in re.findall(r"\S+\s*|\s+", response.content or ""):
            yield ModelChunk(content=word)
        if response.tool_calls:
            yield ModelChunk(tool_calls=response.tool_calls)
        yield ModelChunk(done=True, usage=response.usage, stop_reason=response.stop_reason, model=response.model)


class _Turn:
    """What the conversation says since the user's last message."""

    def __init__(self, messages: Sequence[Message]) -> None:
        start = _last_task(messages)
        self.task = (messages[start].content or "") if messages else ""
        self.length = len(messages)
        since = messages[start + 1 :]
        self.calls = [call for message in since for call in message.tool_calls]
        self.results = {message.tool_call_id: message.content or "" for message in since if message.role == "tool"}
        self.facts = [(call, _parse(self.results[call.id])) for call in self.calls if call.id in self.results]

    def next_calls(self, tools: list[dict[str, Any]]) -> Iterator[ToolCall]:
        """Calls that are wanted, possible and not made yet."""
        made = {_key(call.name, call.arguments) for call in self.calls}
        left = MAX_CALLS - len(self.calls)
        for tool in tools:
            function = tool.get("function", tool)
            if not _is_wanted(function["name"], self.task):
                continue
            for arguments in self._fill(function.get("parameters") or {}):
                key = _key(function["name"], arguments)
                if key in made or left <= 0:
                    continue
                made.add(key)
                left -= 1
                yield ToolCall(id=self._call_id(key), name=function["name"], arguments=arguments)

    def _call_id(self, key: str) -> str:
        return "call_" + blake2b(f"{self.length}:{key}".encode(), digest_size=6).hexdigest()

    def _fill(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Arguments for one call, or for one call a path when the task names several. None when one is unknown."""
        properties: dict[str, Any] = schema.get("properties") or {}
        required = [name for name in schema.get("required") or [] if name in properties]
        plural = next((name for name in required if _is_path(name)), None)
        for path in _paths(self.task) if plural else [None]:
            arguments = {name: path if name == plural else self._value(name, properties[name], path) for name in required}
            if None not in arguments.values():
                named = {name: self._named(name, properties[name]) for name in properties if name not in required}
                yield arguments | {name: value for name, value in named.items() if value is not None}

    def _value(self, name: str, schema: dict[str, Any], path: str | None) -> Any:
        for value in (self._named(name, schema), self._from_results(name, path), self._from_text(name, schema)):
            if value is not None:
                return value
        return None

    def _named(self, name: str, schema: dict[str, Any]) -> Any:
        """The value of ``name=value`` in the task."""
        for found, text in _NAMED.findall(self.task):
            if found.lower() == name.lower():
                return _cast(text.strip("\"'`."), schema)
        return None

    def _from_results(self, name: str, path: str | None) -> Any:
        """A field of that name in a result; where calls are about paths, in a result about the same path."""
        for call, fact in self.facts:
            if path is None or path in call.arguments.values():
                value = _find(fact, name)
                if value is not None:
                    return value
        return None

    def _from_text(self, name: str, schema: dict[str, Any]) -> Any:
        if "enum" in schema:
            return next((value for value in schema["enum"] if str(value).lower() in self.task.lower()), None)
        if schema.get("type") in ("integer", "number"):
            numbers = _NUMBER.findall(_without_paths(self.task))
            return _cast(numbers[0], schema) if numbers else None
        if schema.get("type") != "string":
            return None
        if "url" in name.lower():
            return next(iter(_URL.findall(self.task)), None)
        quoted = _quotes(self.task)
        if quoted and not _is_path(name):
            return quoted[0]
        return (
            self.task
            if name.lower() in ("prompt", "query", "question", "request", "task", "text", "input", "message")
            else None
        )

    def answer(self) -> str:
        """What the results say."""
        if not self.facts:
            return f"No tool on offer fits this task, and without tools a model of fixed rules knows nothing: {self.task[:200]}"
        if "json" in self.task.lower():
            return json.dumps(self._merged(), ensure_ascii=False)
        return " ".join(f"{call.name}({_brief_arguments(call)}): {_say(fact)}." for call, fact in self.facts)

    def _merged(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for call, fact in self.facts:
            merged.update(fact if isinstance(fact, dict) else {call.name: _say(fact)})
        return merged


def _last_task(messages: Sequence[Message]) -> int:
    """Where the user's last message is; notes that the runtime adds in the user's name are marked and don't count."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    own = [index for index in users if not messages[index].metadata.get(AUTOMATED)]
    return (own or users or [len(messages) - 1])[-1]


def _is_wanted(name: str, task: str) -> bool:
    text = task.lower()
    if re.search(rf"\b{re.escape(name.lower())}\b", text):
        return True
    said = {_stem(word) for word in _WORD.findall(text)} - _STOP_WORDS
    words = [word for word in _WORD.findall(name.lower()) if word not in _STOP_WORDS or word in _CHANGING]
    verbs = [word for word in words if word in _CHANGING]
    if verbs:
        return all(_stem(verb) in said for verb in verbs)
    return any(_stem(word) in said for word in words)


def _stem(word: str) -> str:
    for ending in ("ing", "es", "s", "ed", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _is_path(name: str) -> bool:
    return any(part in ("path", "file", "filename", "filepath") for part in name.lower().split("_"))


def _paths(task: str) -> list[str]:
    """Paths in the task; one with spaces must be in quotes."""
    text = _URL.sub(" ", task)
    quoted = [quote for quote in _quotes(text) if "/" in quote]
    for quote in quoted:
        text = text.replace(quote, " ")
    bare = [match.rstrip("./~@+-") for match in _PATH.findall(text)]
    return list(dict.fromkeys(path for path in (*quoted, *bare) if path))


def _without_paths(task: str) -> str:
    for path in _paths(task):
        task = task.replace(path, " ")
    return _URL.sub(" ", task)


def _quotes(text: str) -> list[str]:
    return [next(filter(None, groups)) for groups in _QUOTED.findall(text)]


def _cast(text: str, schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    try:
        if kind == "integer":
            return int(float(text))
        if kind == "number":
            return float(text)
    except (ValueError, OverflowError):
        return None
    if kind == "boolean":
        return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
    return text if kind == "string" else None


def _key(name: str, arguments: dict[str, Any]) -> str:
    return name + json.dumps(arguments, sort_keys=True, default=str)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _find(fact: Any, name: str) -> Any:
    """The first scalar called ``name``, the outermost first."""
    if not isinstance(fact, dict):
        return None
    if isinstance(fact.get(name), str | int | float):
        return fact[name]
    return next((found for value in fact.values() if (found := _find(value, name)) is not None), None)


def _announce(calls: Sequence[ToolCall]) -> str:
    return "Calling " + ", ".join(dict.fromkeys(call.name for call in calls)) + "."


def _brief_arguments(call: ToolCall) -> str:
    return ", ".join(f"{name}={str(value)[:120]}" for name, value in call.arguments.items())


def _say(fact: Any) -> str:
    """A result as one line of facts."""
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_say(value)}" for name, value in fact.items()) or "nothing"
    if isinstance(fact, list):
        head = "; ".join(_say(value) for value in fact[:MAX_LIST])
        more = f"; and {len(fact) - MAX_LIST} more" if len(fact) > MAX_LIST else ""
        return f"{len(fact)} ({head}{more})" if fact else "none"
    if fact is None or isinstance(fact, bool):
        return {None: "none", True: "yes", False: "no"}[fact]
    text = " ".join(str(fact).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _usage(messages: Sequence[Message], tools: list[dict[str, Any]] | None, reply: Message) -> Usage:
    """About what a language model would have counted: a token for every four characters."""
    offered = len(json.dumps(tools, default=str)) if tools else 0
    prompt = offered + sum(_size(message) for message in messages)
    return Usage(prompt_tokens=(prompt + 3) // 4, completion_tokens=(_size(reply) + 3) // 4)


def _size(message: Message) -> int:
    calls = sum(len(call.name) + len(json.dumps(call.arguments, default=str)) for call in message.tool_calls)
    return len(message.content or "") + calls
