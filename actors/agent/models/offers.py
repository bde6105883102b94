"""The tools on offer in one model call, as a judge of calls that a model wrote as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ....protocol.json_text import is_plain, read_json


class TextCall(NamedTuple):
    """A call as text spells it: a name, and arguments that may be anything."""

    name: str
    arguments: Any


class Offers:
    """The tools that a recovered call may name.

    Args:
        tools: schemas as models get them: ``{"type": "function", "function": {"name", "parameters"}}``.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._parameters: dict[str, Mapping[str, Any]] = {f["name"]: f.get("parameters") or {} for f in functions}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def begins(self, text: str) -> bool:
        """Whether a name on offer begins with ``text``."""
        return any(name.startswith(text) for name in self._parameters)

    def accept(self, calls: Iterable[TextCall]) -> bool:
        """Whether every call names a tool on offer, with declared arguments only and with every required one.

        Source: spec LOOP-55.
        """
        return all(self._accepts(call) for call in calls)

    def _accepts(self, call: TextCall) -> bool:
        parameters = self._parameters.get(call.name)
        if parameters is None or not isinstance(call.arguments, dict):
            return False
        declared = parameters.get("properties") or {}
        unknown = call.arguments.keys() - declared.keys()
        missing = set(parameters.get("required") or ()) - call.arguments.keys()
        return not missing and (not unknown or bool(parameters.get("additionalProperties"))) and is_plain(call.arguments)

    def decode(self, name: str, key: str, text: str) -> Any:
        """The value of an argument that came as bare text: as it is for texts, else what it means as JSON."""
        properties = self._parameters.get(name, {}).get("properties") or {}
        schema = properties.get(key)
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return text
        try:
            return read_json(text)
        except ValueError:
            return text
