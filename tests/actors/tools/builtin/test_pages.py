"""HTML and other documents as text."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from umbel.actors.tools.builtin.pages import is_readable, read_html, read_page

DOCUMENT = """<!doctype html><html><head><title> A &amp; B
</title><style>p { color: red }</style><script>if (a < b) { steal() }</script></head>
<body><h1>Head<em>line</em></h1><p>One   two
three.<p>Four<br>five</p><ul><li>x</li><li>y &lt;z&gt;</li></ul>
<noscript>no script</noscript><svg><title>icon</title><text>drawn</text></svg><template>later</template>
<table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table><!-- a comment --></body></html>"""


def test_what_a_reader_would_see() -> None:
    title, text = read_html(DOCUMENT)
    assert title == "A & B"
    assert [line for line in text.split("\n") if line] == [
        "Headline", "One two three.", "Four", "five", "x", "y <z>", "k | v", "1 | 2",
    ]  # fmt: skip
    assert "\n\n\n" not in text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<head><title>t</title><body>text", "text"),  # a head that is never closed
        ("plain", "plain"),
        ("", ""),
        ("<svg/>after", "after"),
        ("<svg><g></svg>after", "after"),
        ("</svg></script></head>after", "after"),
        ("a<span>b</span>c", "abc"),
        ("<p>a<p>b", "a\n\nb"),
    ],
)
def test_broken_documents(source: str, text: str) -> None:
    assert read_html(source)[1].replace("\n\n", "\n") == text.replace("\n\n", "\n")


def test_quoted_marks_in_attributes() -> None:
    assert read_html('<p title="a>b" onclick=\'x>y\'>text<br/>more<i data-x="1">!</i>')[1] == "text\nmore!"
    assert read_html("<SCRIPT>a</SCRIPT >b<Style>c</style>d<?php e ?>f<!DOCTYPE g>h")[1] == "bdfh"
    assert read_html("1 < 2 &amp;&lt; 3 <unclosed")[1] == "1 < 2 &< 3 <unclosed"


@pytest.mark.parametrize(
    "piece", ["<!--", "<a ", '<a x="', "</a", "<!", "<script>", "</script", "<svg>", "&#", "<style></style"]
)
def test_pages_made_to_hold_a_reader_up(piece: str) -> None:
    size = 1_000_000  # a quadratic reader would need minutes
    title, text = read_html(piece * (size // len(piece)))
    assert len(title) + len(text) <= size


@given(st.text(alphabet="<>/!-abp&;#x \n\"'=", max_size=60))
def test_any_text_is_read(source: str) -> None:
    title, text = read_html(source)
    assert "\n\n\n" not in text and text == text.strip() and title == ""


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("grün".encode(), None, "grün"),
        ("grün".encode("latin-1"), "latin-1", "grün"),
        ("grün".encode(), "no-such-charset", "grün"),
        (b"\xff\xfe ok", None, "\ufffd\ufffd ok"),
        (b'<meta charset="windows-1251"><p>' + "да".encode("cp1251"), None, "да"),
        (b"x", "base64", "x"),  # an encoding, but not one of text
        (b"+AGE- x", "utf-7", "+AGE- x"),  # one that hides text
        (b"a-b", "punycode", "a-b"),  # one that takes quadratic time
    ],
)
def test_encodings(body: bytes, charset: str | None, text: str) -> None:
    assert read_page("u", body, "text/html", charset).text == text


def test_what_is_not_html_stays_as_it_is() -> None:
    found = read_page("u", b'{"a": "<b>"}\n', "application/json", None, truncated=True)
    assert (found.text, found.title, found.truncated) == ('{"a": "<b>"}\n', "", True)


@pytest.mark.parametrize(
    "kind", ["text/html", "text/plain", "application/json", "application/ld+json", "application/xml", "text/csv"]
)
def test_readable(kind: str) -> None:
    assert is_readable(kind)


@pytest.mark.parametrize(
    "kind", ["", "image/png", "image/svg", "application/pdf", "application/octet-stream", "video/mp4", "text"]
)
def test_not_readable(kind: str) -> None:
    assert not is_readable(kind)
