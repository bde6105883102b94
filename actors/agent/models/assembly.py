"""Puts a streamed reply together: text goes on at once, tool calls are held until they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....protocol.errors import MalformedResponse
from ....protocol.messages import ModelChunk, ToolCall, Usage, clean_text
from .endpoint import Endpoint
from .failures import from_payload
from .wire import as_text, decode_call, decode_cost, decode_finish, decode_usage, parse_object, reasoning_of, split_content


class SplitPairs:
    """Joins surrogate pairs that a server cut between two pieces of text."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """``text`` without a trailing first half, which waits for the second."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text

    def rest(self) -> str:
        """The half that never found its other one."""
        half, self._half = self._half, ""
        return half


@dataclass(slots=True)
class _Draft:
    """A tool call while it arrives."""

    index: Any
    id: str
    name: str
    arguments: str | dict[str, Any] = ""

    def is_whole(self) -> bool:
        if isinstance(self.arguments, dict):
            return True
        return bool(self.arguments) and parse_object(self.arguments) is not None

    def add(self, arguments: Any) -> None:
        if isinstance(arguments, dict):
            self.arguments = arguments
        elif isinstance(self.arguments, str):
            self.arguments += as_text(arguments)


class ReplyAssembly:
    """One streamed reply in the making."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._text = SplitPairs()
        self._reasoning = SplitPairs()
        self._refusal: list[str] = []
        self._has_text = False
        self._drafts: list[_Draft] = []
        self._legacy: _Draft | None = None
        self.is_empty = True
        self.has_ended = False  # the end is a line of its own, no event
        self._finish: Any = None
        self._usage: Usage | None = None
        self._cost: float | None = None
        self._model: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why it stopped."""
        return self._finish is not None

    def feed(self, event: Any) -> ModelChunk | None:
        """Take one event; returns the text that may go on, if any.

        Raises:
            MalformedResponse: the event is not a chunk of a chat completion.
            ModelError: the event reports an error.
        """
        self.is_empty = False
        if not isinstance(event, dict):
            raise self._endpoint.error(MalformedResponse, "the stream holds an event that is not a JSON object")
        if event.get("error"):
            raise from_payload(self._endpoint, event)
        self._note(event)
        choices = event.get("choices")
        chunk: ModelChunk | None = None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                chunk = self._choose(choice)
        return chunk

    def finish(self) -> list[ModelChunk]:
        """What remains: held text, the whole calls, then usage and stop reason."""
        text, reasoning = self._text.rest(), self._reasoning.rest()
        if not self._has_text and not text:
            text = "".join(self._refusal)
        chunks = [ModelChunk(content=text or None, reasoning=reasoning or None)] if text or reasoning else []
        calls = self._calls()
        if calls:
            chunks.append(ModelChunk(tool_calls=calls))
        chunks.append(
            ModelChunk(
                done=True,
                usage=self._usage,
                stop_reason=decode_finish(self._finish),
                cost_usd=self._cost,
                model=self._model,
            )
        )
        return chunks

    def _note(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        if not isinstance(usage, dict) and isinstance(event.get("x_groq"), dict):
            usage = event["x_groq"].get("usage")
        if isinstance(usage, dict):
            self._usage = decode_usage(usage)
            self._cost = decode_cost(usage)
        self._model = clean_text(as_text(event.get("model"))) or self._model

    def _choose(self, choice: Mapping[str, Any]) -> ModelChunk | None:
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return None
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else ():
            if isinstance(entry, dict):
                self._draft(entry)
        if isinstance(delta.get("function_call"), dict):
            self._draft_legacy(delta["function_call"])
        self._refusal.append(as_text(delta.get("refusal")))
        text, thoughts = split_content(delta.get("content"))
        text = self._text.feed(text)
        reasoning = self._reasoning.feed(thoughts + reasoning_of(delta))
        self._has_text = self._has_text or bool(text)
        return ModelChunk(content=text or None, reasoning=reasoning or None) if text or reasoning else None

    def _draft(self, entry: Mapping[str, Any]) -> None:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        index, call_id, name = entry.get("index"), as_text(entry.get("id")), as_text(function.get("name"))
        draft = self._open_draft(index)
        if draft is None or _begins_another(draft, call_id, name, function.get("arguments")):
            draft = _Draft(index, call_id, name)
            self._drafts.append(draft)
        draft.id = draft.id or call_id
        draft.name = draft.name or name
        draft.add(function.get("arguments"))

    def _open_draft(self, index: Any) -> _Draft | None:
        """The newest call with that index; without an index, the newest of all."""
        return next((draft for draft in reversed(self._drafts) if index is None or draft.index == index), None)

    def _draft_legacy(self, function: Mapping[str, Any]) -> None:
        if self._legacy is None:
            self._legacy = _Draft(None, "", "")
        self._legacy.name = self._legacy.name or as_text(function.get("name"))
        self._legacy.add(function.get("arguments"))

    def _calls(self) -> tuple[ToolCall, ...]:
        drafts = self._drafts or ([self._legacy] if self._legacy else [])
        return tuple(decode_call(draft.id, draft.name, draft.arguments) for draft in drafts)


def _begins_another(draft: _Draft, call_id: str, name: str, arguments: Any) -> bool:
    """Whether a named piece is a new call: servers reuse indexes, omit them, or repeat id and name in every piece."""
    if not name:
        return False
    if call_id and draft.id and call_id != draft.id:
        return True
    return bool(arguments) and draft.is_whole()
