"""Results as text, errors as text, and secrets kept out."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from pydantic import BaseModel

from umbel.actors.tools.output import NOTHING, ToolOutput, error_text, text_of
from umbel.actors.tools.redaction import redact


class Item(BaseModel):
    n: int
    text: str = "é"


@dataclasses.dataclass
class Record:
    n: int


class Odd:
    def __str__(self) -> str:
        return "odd"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.spec("TOOL-17")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NOTHING),
        ("as is \n", "as is \n"),
        ("", ""),
        (3, "3"),
        (True, "True"),
        (Item(n=1), '{"n":1,"text":"é"}'),
        ({"a": [1, "é"]}, '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        ({"o": Odd(), (1, 2): {3}, "i": Item(n=2), "r": Record(4)}, None),
        (Odd(), "odd"),
        (Record(1), "Record(n=1)"),
        (CYCLE, "[[...]]"),
    ],
)
def test_formatting(value: Any, text: str | None) -> None:
    got = text_of(value)
    if text is None:
        assert json.loads(got) == {"o": "odd", "(1, 2)": [3], "i": {"n": 2, "text": "é"}, "r": {"n": 4}}
    else:
        assert got == text


@pytest.mark.case(2)
def test_surrogates_do_not_break_formatting() -> None:
    assert json.loads(text_of(Item(n=1, text="ok \ud83d"))) == {"n": 1, "text": "ok \ufffd"}


@pytest.mark.spec("TOOL-18")
def test_rich_output() -> None:
    output = ToolOutput("shown", structured_content={"a": 1}, content_blocks=[{"type": "x"}], is_error=True)
    assert output == "shown"
    assert pickle.loads(pickle.dumps(output)).structured_content == {"a": 1}


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.spec("TOOL-22")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError(), "ValueError"),
        (Broken(), "Broken: (its message could not be read)"),
        (RuntimeError("password=hunter2"), "RuntimeError: password=[REDACTED]"),
    ],
)
def test_errors(error: Exception, text: str) -> None:
    assert error_text(error) == text


def test_error_texts_are_bounded() -> None:
    assert len(error_text(ValueError("x" * 10_000_000))) <= 1_000


KEY = "abcdefghijklmnopqrstuvwxyz0123"


@pytest.mark.spec("TOOL-23")
@pytest.mark.parametrize(
    ("text", "secret", "kept"),
    [
        ("secret=hunter2 rest", "hunter2", "rest"),
        ("Password: hunter2", "hunter2", "Password"),
        ('{"api_key": "hunter2", "x": 1}', "hunter2", '"x": 1'),
        ("MY_API_KEY=hunter2", "hunter2", "MY_API_KEY"),
        (f"token={KEY}", "ghijklmnopqrstuv", "abcdef...0123"),
        ("at /home/alice/project/x.py", "alice", "/project/x.py"),
        ("at /Users/alice/x.py", "alice", "/x.py"),
        (r"at C:\Users\alice\x.py", "alice", "x.py"),
        ("postgresql://bob:pw@db.internal:5432/app failed", "db.internal", "failed"),
        ("redis://:pw@10.0.0.1:6379/0", "pw@", "redis://"),
        ("host=db.internal port=5", "db.internal", "port=5"),
        (f"key sk-{KEY} refused", "ghijklmnop", "refused"),
        ("AKIAABCDEFGHIJKLMNOP", "ABCDEFGHIJ", "AKIA"),
        ("ghp_abcdefghijklmnopqrstuv", "ghijklmnop", "ghp_"),
        ("eyJhbGciOi.eyJzdWIiOi.SflKxwRJSM", "SflKxwRJSM", "JWT"),
        (f"Authorization: Bearer {KEY}", "ghijklmnop", "Bearer"),
        ("GET https://x.org/a?sig=hunter2&page=2", "hunter2", "page=2"),
        ("GET https://x.org/a?access_token=hunter2&page=2", "hunter2", "page=2"),
        ("https://bob:hunter2@x.org/a", "hunter2", "x.org/a"),
    ],
)
def test_redaction(text: str, secret: str, kept: str) -> None:
    assert secret not in redact(text)
    assert kept in redact(text)


@pytest.mark.spec("TOOL-23")
@pytest.mark.parametrize("text", ["nothing here", "the token limit was 5 of 10", "host unreachable", "a/b/c", "keys: 3"])
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("piece", ["a", "-", "token", "a=", "://", "sk-", "eyJ", "/home/", "?sig=", " ", "password:"])
@pytest.mark.timeout(30)  # a pattern with nested repetition takes minutes on this
def test_redaction_does_not_blow_up(piece: str) -> None:
    redact(piece * (8_000 // len(piece)))
