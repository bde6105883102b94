"""Tool calls that a model wrote as text, recovered when a reply has no structured ones.

What prose mentions is never executed: a call counts only where it is the whole message, or the labelled end of it, and
only if a tool on offer would take it.

Source: spec LOOP-54 to LOOP-58.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ....protocol.json_text import is_plain, read_json
from ....protocol.messages import ToolCall
from .leaked_calls import find_leak
from .offers import Offers, TextCall

MAX_SYNTAX_CHARS = 20_000  # longer call syntax is not parsed: Python's parser is not made for hostile text
_FENCE_LABELS = ("json", "tool_call", "tool_code")
_TAGS = ("tool_call", "tool_code", "function_call")
_CALL_START = re.compile(r"\s*[A-Za-z_][\w.-]{0,199}\(")
_SYNTAX_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found in the text of a reply.

    Attributes:
        calls: to run, in order, with ids of their own; empty when ``unfinished``.
        prose: what the assistant message keeps as its text, or None for nothing. Together with no calls that is a
            message to leave out.
        unfinished: a call was begun and not ended: neither a call nor an answer. Ask for it again.
    """

    calls: tuple[ToolCall, ...] = ()
    prose: str | None = None
    unfinished: bool = False


def recover(
    text: str | None,
    reasoning: str | None,
    tools: Iterable[Mapping[str, Any]],
    formats: Iterable[str] = (),
    generic: bool = False,
) -> Recovery | None:
    """The calls in a reply that has no structured ones, or None when there are none to run.

    Looks for leaked markup at the end of the body; without a body, at the end of the reasoning; then for generic calls.

    Args:
        text: the reply's body.
        reasoning: the separate reasoning channel.
        tools: schemas of the tools on offer, as the model got them.
        formats: leaked markup to look for (:data:`~.leaked_calls.FORMATS`).
        generic: also accept calls that follow no family's format.
    """
    formats = tuple(formats)
    if not formats and not generic:
        return None
    offers = Offers(tools)
    body = text or ""
    blank = not body.strip()
    leaked = _leaked(reasoning or "" if blank else body, formats, offers)
    if leaked is not None:
        return Recovery(leaked.calls, None if blank else leaked.prose, leaked.unfinished)
    calls = _generic(body, offers) if generic and not blank else []
    return Recovery(_numbered(calls), text) if calls else None


def _leaked(text: str, formats: tuple[str, ...], offers: Offers) -> Recovery | None:
    leak = find_leak(text, formats, offers) if formats else None
    if leak is None or not (leak.unfinished or offers.accept(leak.calls)):
        return None
    return Recovery(_numbered(leak.calls), text[: leak.start].rstrip() or None, leak.unfinished)


def _numbered(calls: Iterable[TextCall]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=f"call_{uuid4().hex[:12]}", name=call.name, arguments=call.arguments) for call in calls)


# --- generic calls ----------------------------------------------------------------------------------------------------


def _generic(text: str, offers: Offers) -> list[TextCall]:
    """The calls that the whole text is, or the labelled block that it ends with."""
    for candidate in _candidates(text.strip()):
        calls = _json_calls(candidate) or _syntax_calls(candidate)
        if calls and offers.accept(calls):
            return calls
    return []


def _candidates(text: str) -> Iterator[str]:
    yield text
    fenced = _fenced(text)
    if fenced is not None:
        yield fenced
    for tag in _TAGS:
        if text.endswith(f"</{tag}>"):
            before, opened, inside = text.removesuffix(f"</{tag}>").rpartition(f"<{tag}>")
            if opened and _fences(before.split("\n")) % 2 == 0:  # inside a fence it would be an example
                yield inside


def _fenced(text: str) -> str | None:
    """What stands in the labelled fence that ``text`` ends with."""
    *lines, last = text.split("\n")
    opening = next((place for place in reversed(range(len(lines))) if lines[place].startswith("```")), None)
    if last.strip() != "```" or opening is None or _fences(lines[:opening]) % 2:
        return None
    return "\n".join(lines[opening + 1 :]) if lines[opening][3:].strip().lower() in _FENCE_LABELS else None


def _fences(lines: list[str]) -> int:
    return sum(line.lstrip().startswith("```") for line in lines)


def _json_calls(text: str) -> list[TextCall]:
    """``{"name", "arguments"}``, ``{"name", "parameters"}``, ``{"type": "function", "function": {...}}``, or a list of such."""
    try:
        value = read_json(text)
    except ValueError:
        return []
    items = value if isinstance(value, list) else [value]
    calls = [_json_call(item) for item in items]
    return [call for call in calls if call is not None] if None not in calls else []


def _json_call(value: Any) -> TextCall | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict) and value.keys() <= {"function", "type", "id"}:
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    fields = value.keys() - {"name", "id", "type"}
    if len(fields) != 1 or not fields <= {"arguments", "parameters"}:
        return None
    return TextCall(value["name"], value[fields.pop()])


def _syntax_calls(text: str) -> list[TextCall]:
    """``name(key=literal, ...)``, nothing but such calls."""
    if len(text) > MAX_SYNTAX_CHARS or not _CALL_START.match(text) or not text.rstrip().endswith(")"):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in a model's string literals
            statements = ast.parse(text.strip()).body
        calls = [_syntax_call(statement) for statement in statements]
    except _SYNTAX_ERRORS:
        return []
    return [call for call in calls if call is not None] if None not in calls else []


def _syntax_call(statement: ast.stmt) -> TextCall | None:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name | ast.Attribute):
        return None
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        arguments[keyword.arg] = _listed(ast.literal_eval(keyword.value))
    return TextCall(ast.unparse(call.func), arguments) if is_plain(arguments) else None


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON has it."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value
