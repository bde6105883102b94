"""Tool calls that a server failed to take out of the text: the markup of six model families, read strictly.

Reading takes time linear in the text, whatever that holds: no pattern here can backtrack over more than one tag, no
value may hold the tag that opens it, and only so many blocks are tried.

Source: spec LOOP-55, LOOP-58; the chat templates that the families' models are published with.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ....protocol.errors import ConfigurationError
from ....protocol.json_text import read_json_at
from .offers import Offers, TextCall

_BAR, _LOW = "[|\uff5c]", "[_\u2581]"  # DeepSeek writes its special tokens with wide bars and block underscores
_END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end|>",
    "<|user|>",
    "<|observation|>",
    "</s>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[EOS]",
)
MAX_BLOCKS = 100  # so many openings are tried, the last ones, as each may cost a look at the whole text; so many calls are none
_CUT_TAG = re.compile(r"<[^<>]*$")
_SPACE = re.compile(r"\s*")
_NAME = r"([^\s<>{}\"'`]{1,200})"


@dataclass(frozen=True, slots=True)
class Leak:
    """Call markup at the end of a text.

    Attributes:
        start: where it begins; what stands before is prose.
        calls: in order; empty when the markup is not closed.
        unfinished: the markup was opened and never closed.
    """

    start: int
    calls: tuple[TextCall, ...] = ()
    unfinished: bool = False


class _Cursor:
    """A place in a text that moves on as tags are taken."""

    def __init__(self, text: str, position: int, offers: Offers) -> None:
        self.text = text
        self.position = position
        self.offers = offers

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The tag that comes next, after white space."""
        found = pattern.match(self.text, self._after_space())
        if found is not None:
            self.position = found.end()
        return found

    def value(self, border: re.Pattern[str]) -> str | None:
        """The text up to the closing tag (group 1 of ``border``), which is taken; None when an opening one comes first."""
        found = border.search(self.text, self.position)
        if found is None or found.group(1) is None:
            return None
        value = self.text[self.position : found.start()]
        self.position = found.end()
        return value

    def json(self) -> Any:
        """The JSON value that comes next.

        Raises:
            ValueError: there is none.
        """
        value, self.position = read_json_at(self.text, self._after_space())
        return value

    def _after_space(self) -> int:
        found = _SPACE.match(self.text, self.position)
        return found.end() if found else self.position


Reader = Callable[[_Cursor], list[TextCall] | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """How one family marks calls, or one of its ways to do so.

    Attributes:
        opening: the tag that begins a block.
        closing: the tag that ends it.
        inner: what a block holds first, to tell an unfinished block from a tag that prose mentions.
        read: the calls of the block at a cursor, or None.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    inner: re.Pattern[str]
    read: Reader


def find_leak(text: str, formats: Iterable[str], offers: Offers) -> Leak | None:
    """The markup that ``text`` ends with, in the first of ``formats`` that reads it; white space and end tokens may follow.

    Args:
        text: a reply's body or reasoning.
        formats: names out of :data:`FORMATS`.
        offers: the tools on offer; not judged here, but argument types come from them.
    """
    text = _without_end_tokens(text)
    unfinished: Leak | None = None
    for family in (family for name in formats for family in _FAMILIES[name]):
        leak = _scan(family, text, offers)
        if leak is not None and not leak.unfinished:
            return leak
        unfinished = unfinished or leak
    return unfinished


def check_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """``formats`` as a tuple.

    Raises:
        ConfigurationError: one of them is unknown; the message lists those that are known.
    """
    if isinstance(formats, str):
        formats = (formats,)
    formats = tuple(formats)
    unknown = [name for name in formats if name not in _FAMILIES]
    if unknown:
        raise ConfigurationError(
            f"unknown leaked_tool_call_formats {unknown}; choose from {', '.join(FORMATS)}, or [] for none"
        )
    return formats


def family_of(model: str) -> str | None:
    """The model family that a model's name tells: ``deepseek``, ``qwen``, ``hermes``, ``kimi``, ``glm``, or None."""
    name = model.lower()
    return next((family for word, family in _FAMILY_BY_WORD if word in name), None)


def formats_of(family: str | None) -> tuple[str, ...]:
    """The formats that a family's models may leak, likeliest first."""
    return _FORMATS_BY_FAMILY.get(family or "", ())


def _scan(family: _Family, text: str, offers: Offers) -> Leak | None:
    calls: list[TextCall] = []
    start = end = position = 0
    failed: list[int] = []
    for opening in deque(family.opening.finditer(text), maxlen=MAX_BLOCKS):
        if opening.start() < position:  # inside a block that was read
            continue
        cursor = _Cursor(text, opening.start(), offers)
        found = family.read(cursor)
        if not found:
            failed.append(opening.start())
            continue
        if not calls or text[end : opening.start()].strip():
            calls, start = [], opening.start()
        calls += found
        end = position = cursor.position
    if calls and end == len(text):
        return Leak(start, tuple(calls)) if len(calls) < MAX_BLOCKS else None
    cut = _unfinished(family, text, [place for place in failed if place >= end], offers)
    if cut is None:
        return None
    return Leak(start if calls and not text[end:cut].strip() else cut, unfinished=True)


def _unfinished(family: _Family, text: str, openings: list[int], offers: Offers) -> int | None:
    """Where a block begins that is open to the end of the text."""
    closed = max((found.end() for found in family.closing.finditer(text)), default=0)
    place = next((place for place in openings if place >= closed), None)
    if place is None or text[:place].endswith(("`", '"', "'")):  # a tag that prose quotes
        return None
    opening = family.opening.match(text, place)
    rest = _CUT_TAG.sub("", text[opening.end() :]).strip() if opening else ""
    if rest:
        return place if family.inner.match(rest) or offers.begins(rest) else None
    return place if not text[:place].rpartition("\n")[2].strip() else None


def _without_end_tokens(text: str) -> str:
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in _END_TOKENS if text.endswith(token, 0, end)), None)
        if token is None:
            return text[:end]
        end -= len(token)


# --- hermes, qwen_xml and glm share a tag -----------------------------------------------------------------------------

_CALL_OPEN, _CALL_CLOSE = re.compile("<tool_call>"), re.compile("</tool_call>")
_BARE_OPEN = re.compile(r"(?<!<tool_call>)(?<!<tool_call>\n)<function=")
_FUNCTION_OPEN, _FUNCTION_CLOSE = re.compile(f"<function={_NAME}>"), re.compile("</function>")
_PARAMETER_OPEN = re.compile(f"<parameter={_NAME}>")
_PARAMETER_BORDER = re.compile("(</parameter>)|<parameter=|<function=|<tool_call>")
_GLM_NAME = re.compile(_NAME)
_KEY = re.compile(f"<arg_key>{_NAME}</arg_key>")
_VALUE_OPEN, _VALUE_BORDER = re.compile("<arg_value>"), re.compile("(</arg_value>)|<arg_value>|<arg_key>|<tool_call>")


def _hermes(cursor: _Cursor) -> list[TextCall] | None:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""
    cursor.take(_CALL_OPEN)
    try:
        value = cursor.json()
    except ValueError:
        return None
    if not isinstance(value, dict) or not value.keys() <= {"name", "arguments", "id"} or not isinstance(value.get("name"), str):
        return None
    return [TextCall(value["name"], value.get("arguments"))] if cursor.take(_CALL_CLOSE) else None


def _qwen_xml(cursor: _Cursor) -> list[TextCall] | None:
    """``<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>``; the outer tags may be missing."""
    wrapped = cursor.take(_CALL_OPEN)
    function = cursor.take(_FUNCTION_OPEN)
    if function is None:
        return None
    name, arguments = function.group(1), {}
    while (parameter := cursor.take(_PARAMETER_OPEN)) is not None:
        value = cursor.value(_PARAMETER_BORDER)
        if value is None or parameter.group(1) in arguments:
            return None
        value = value.removeprefix("\n").removesuffix("\n")
        arguments[parameter.group(1)] = cursor.offers.decode(name, parameter.group(1), value)
    if not cursor.take(_FUNCTION_CLOSE):
        return None
    return [TextCall(name, arguments)] if cursor.take(_CALL_CLOSE) or not wrapped else None


def _glm(cursor: _Cursor) -> list[TextCall] | None:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>``."""
    cursor.take(_CALL_OPEN)
    called = cursor.take(_GLM_NAME)
    if called is None:
        return None
    name, arguments = called.group(1), {}
    while (key := cursor.take(_KEY)) is not None:
        value = cursor.value(_VALUE_BORDER) if cursor.take(_VALUE_OPEN) else None
        if value is None or key.group(1) in arguments:
            return None
        arguments[key.group(1)] = cursor.offers.decode(name, key.group(1), value)
    return [TextCall(name, arguments)] if cursor.take(_CALL_CLOSE) else None


# --- kimi, deepseek and dsml put a section around all calls -----------------------------------------------------------

_KIMI_OPEN = re.compile(r"<\|tool_calls_section_begin\|>")
_KIMI_CLOSE = re.compile(r"<\|tool_calls_section_end\|>")
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>\s{0,9}(?:functions\.)?([^\s<>{}\"'`:]{1,200})(?::\d{1,9})?\s{0,9}<\|tool_call_argument_begin\|>"
)
_KIMI_CALL_CLOSE = re.compile(r"<\|tool_call_end\|>")


def _deepseek_token(words: str) -> str:
    return f"<{_BAR}{words.replace(' ', _LOW)}{_BAR}>"


_SEEK_OPEN, _SEEK_CLOSE = re.compile(_deepseek_token("tool calls begin")), re.compile(_deepseek_token("tool calls end"))
_SEEK_CALL = re.compile(
    rf"{_deepseek_token('tool call begin')}"
    rf"(?:function{_deepseek_token('tool sep')}{_NAME}\n```json\n|{_NAME}{_deepseek_token('tool sep')})"
)
_SEEK_FENCE, _SEEK_CALL_CLOSE = re.compile("```"), re.compile(_deepseek_token("tool call end"))

_DSML = f"{_BAR}DSML{_BAR}"
_DSML_OPEN = re.compile(f"<{_DSML}(?:function|tool)_calls>")
_DSML_CLOSE = re.compile(f"</{_DSML}(?:function|tool)_calls>")
_INVOKE_OPEN, _INVOKE_CLOSE = re.compile(f'<{_DSML}invoke name="{_NAME}">'), re.compile(f"</{_DSML}invoke>")
_FIELD_OPEN = re.compile(f'<{_DSML}parameter name="{_NAME}"(?: string="(true|false)")?>')
_FIELD_BORDER = re.compile(f"(</{_DSML}parameter>)|<{_DSML}(?:parameter|invoke|function_calls|tool_calls)")


def _kimi(cursor: _Cursor) -> list[TextCall] | None:
    """A section of ``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``."""
    cursor.take(_KIMI_OPEN)
    calls: list[TextCall] = []
    while (opening := cursor.take(_KIMI_CALL)) is not None:
        try:
            calls.append(TextCall(opening.group(1), cursor.json()))
        except ValueError:
            return None
        if not cursor.take(_KIMI_CALL_CLOSE):
            return None
    return calls if cursor.take(_KIMI_CLOSE) else None


def _deepseek(cursor: _Cursor) -> list[TextCall] | None:
    """A section of ``<|tool_call_begin|>NAME<|tool_sep|>{...}<|tool_call_end|>``, or the older form with a JSON fence."""
    cursor.take(_SEEK_OPEN)
    calls: list[TextCall] = []
    while (opening := cursor.take(_SEEK_CALL)) is not None:
        fenced, bare = opening.groups()
        try:
            calls.append(TextCall(fenced or bare, cursor.json()))
        except ValueError:
            return None
        if (fenced and not cursor.take(_SEEK_FENCE)) or not cursor.take(_SEEK_CALL_CLOSE):
            return None
    return calls if cursor.take(_SEEK_CLOSE) else None


def _dsml(cursor: _Cursor) -> list[TextCall] | None:
    """A section of ``<|DSML|invoke name="NAME">``, each with ``<|DSML|parameter name="KEY" string="true|false">`` inside."""
    cursor.take(_DSML_OPEN)
    calls: list[TextCall] = []
    while (invoke := cursor.take(_INVOKE_OPEN)) is not None:
        arguments = _dsml_arguments(cursor, invoke.group(1))
        if arguments is None or not cursor.take(_INVOKE_CLOSE):
            return None
        calls.append(TextCall(invoke.group(1), arguments))
    return calls if cursor.take(_DSML_CLOSE) else None


def _dsml_arguments(cursor: _Cursor, name: str) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {}
    while (field := cursor.take(_FIELD_OPEN)) is not None:
        key, is_text = field.groups()
        value = cursor.value(_FIELD_BORDER)
        if value is None or key in arguments:
            return None
        arguments[key] = value if is_text == "true" else cursor.offers.decode(name, key, value)
    return arguments


_FAMILIES: dict[str, tuple[_Family, ...]] = {
    "dsml": (_Family(_DSML_OPEN, _DSML_CLOSE, re.compile(f"<{_DSML}invoke"), _dsml),),
    "deepseek": (_Family(_SEEK_OPEN, _SEEK_CLOSE, re.compile(_deepseek_token("tool call begin")), _deepseek),),
    "hermes": (_Family(_CALL_OPEN, _CALL_CLOSE, re.compile(r"\{"), _hermes),),
    "qwen_xml": (
        _Family(_CALL_OPEN, _CALL_CLOSE, re.compile("<function="), _qwen_xml),
        _Family(_BARE_OPEN, _FUNCTION_CLOSE, re.compile(rf"{_NAME}>\s*(?:<parameter=|$)"), _qwen_xml),
    ),
    "kimi": (_Family(_KIMI_OPEN, _KIMI_CLOSE, re.compile(r"<\|tool_call_begin\|>"), _kimi),),
    "glm": (_Family(_CALL_OPEN, _CALL_CLOSE, re.compile(rf"{_NAME}\s*<arg_key>"), _glm),),
}
FORMATS = tuple(_FAMILIES)
_FAMILY_BY_WORD = (
    ("deepseek", "deepseek"),
    ("qwen", "qwen"),
    ("qwq", "qwen"),
    ("hermes", "hermes"),
    ("kimi", "kimi"),
    ("glm", "glm"),
)
_FORMATS_BY_FAMILY: dict[str, tuple[str, ...]] = {
    "deepseek": ("dsml", "deepseek"),
    "qwen": ("hermes", "qwen_xml"),
    "hermes": ("hermes",),
    "kimi": ("kimi",),
    "glm": ("glm",),
}
