"""Fetched bytes as text that a model can read."""

from __future__ import annotations

import codecs
import re
from html import unescape

from ....protocol.messages import Frozen, Text

HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXTUAL = re.compile(r"text/.+|application/(?:.+\+)?(?:json|xml|yaml|javascript)|application/(?:x-)?(?:ndjson|yaml|toml|sh)")
_CHARSET = re.compile(rb"charset\s{0,4}=\s{0,4}[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_SNIFFED_BYTES = 2_048
_SKIPPED = frozenset({"noscript", "template", "svg", "iframe", "head"})  # and what _TOKEN leaves out by itself
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p"}
    | {"pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul"}
)
_CELLS = frozenset({"td", "th"})
_SPACES = re.compile(r"\s+")
# Linear in the length of the source: what is looked at is consumed, or ends at the next "<".
_TOKEN = re.compile(
    r"""<!--.*?(?:-->|\Z)
    | <(?P<raw>script|style)\b[^<>]*>.*?(?:</(?P=raw)\b[^<>]*>|\Z)
    | <(?P<start>[a-z][^\s/<>]*)(?:[^<>"']|"[^"<]*"|'[^'<]*')*>
    | </(?P<end>[a-z][^\s/<>]*)[^<>]*>
    | <[!?/][^<>]*>
    | (?P<text><?[^<]+|<)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
_ODD_CODECS = frozenset({"idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape", "utf_7"})


class Page(Frozen):
    """A fetched document.

    Attributes:
        url: where it was found, after redirects.
        text: its text.
        title: of an HTML page.
        content_type: media type, lower case, without parameters.
        truncated: the fetcher stopped reading at its size limit.
    """

    url: Text
    text: Text
    title: Text = ""
    content_type: Text = ""
    truncated: bool = False


def is_readable(content_type: str) -> bool:
    """Whether a media type is text of some kind."""
    return content_type in HTML or _TEXTUAL.fullmatch(content_type) is not None


def read_page(url: str, body: bytes, content_type: str, charset: str | None, truncated: bool = False) -> Page:
    """``body`` as a :class:`Page`: HTML without mark-up, everything else as it is. Never fails, whatever the bytes are."""
    decoded = _decode(body, charset)
    title, text = read_html(decoded) if content_type in HTML else ("", decoded)
    return Page(url=url, text=text, title=title, content_type=content_type, truncated=truncated)


def read_html(source: str) -> tuple[str, str]:
    """Title and visible text of an HTML document; blocks become lines, table cells are separated by ``|``."""
    reader = _Reader()
    reader.feed(source)
    return _line("".join(reader.title)), _tidy("".join(reader.parts))


class _Reader:
    """Reads tokens. Ours, because the standard library's parser takes quadratic time on pages made to hold it up."""

    def __init__(self) -> None:
        self.title: list[str] = []
        self.parts: list[str] = []
        self._skipped: list[str] = []
        self._in_title = self._has_title = False

    def feed(self, source: str) -> None:
        for token in _TOKEN.finditer(source):
            kind = token.lastgroup
            if kind == "text":
                self._text(unescape(token[0]))
            elif kind == "end":
                self._end(token["end"].lower())
            elif kind == "start":
                self._start(token["start"].lower(), empty=token[0].endswith("/>"))

    def _start(self, tag: str, empty: bool) -> None:
        if tag == "title" and "svg" not in self._skipped:
            self._in_title = not self._has_title
        elif tag == "body":
            self._skipped.clear()  # a head without its end
        elif tag in _SKIPPED:
            if not empty:
                self._skipped.append(tag)
        elif tag in _BLOCKS:
            self.parts.append("\n")
        elif tag in _CELLS:
            self.parts.append(" | ")

    def _end(self, tag: str) -> None:
        if tag == "title" and self._in_title:
            self._in_title, self._has_title = False, True
        elif tag in self._skipped:
            while self._skipped.pop() != tag:
                continue
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def _text(self, text: str) -> None:
        if self._in_title:
            self.title.append(text)
        elif not self._skipped:
            self.parts.append(_SPACES.sub(" ", text))


def _line(text: str) -> str:
    return " ".join(text.split())


def _tidy(text: str) -> str:
    """Lines without surplus spaces, at most one blank line in a row."""
    lines: list[str] = []
    for line in map(_line, text.split("\n")):
        bare = line.strip("| ") if line.startswith("|") else line
        if bare or (lines and lines[-1]):
            lines.append(bare)
    return "\n".join(lines).strip()


def _decode(body: bytes, charset: str | None) -> str:
    sniffed = _CHARSET.search(body[:_SNIFFED_BYTES])
    for name in (charset, sniffed[1].decode() if sniffed else None):
        try:
            if name is not None and codecs.lookup(name).name.replace("-", "_") not in _ODD_CODECS:
                return body.decode(name, errors="replace")
        except (LookupError, ValueError):  # no such encoding, or one that is not for text
            continue
    return body.decode(errors="replace")
