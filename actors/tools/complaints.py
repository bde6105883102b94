"""What a model is told about arguments that a tool cannot take, so that it can send better ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ...protocol.messages import clean_text
from .redaction import redact

LIMIT = 2_000
_SHOWN = 12
_LINE = 240
_VALUE = 60


def explain(tool: str, error: ValidationError, expected: str) -> str:
    """All problems of ``error``, one a line, and what ``tool`` expects; at most 2,000 characters."""
    problems = error.errors(include_url=False)
    lines = [f"- {_describe(problem)}"[:_LINE] for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"- and {len(problems) - _SHOWN} more")
    tail = f"Expected: {expected}"[:600] + "\nCorrect the arguments and call the tool again."
    head = f"Invalid arguments for tool {tool!r}:\n" + "\n".join(lines)
    return clean_text(head[: LIMIT - len(tail) - 1] + "\n" + tail)


def _describe(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"]) or "arguments"
    kind = problem["type"]
    if kind == "missing":
        return f"{where}: missing"
    if kind == "extra_forbidden":
        return f"{where}: unknown parameter"
    return f"{where}: {problem['msg']} (got {_shown(problem['input'])})"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, str) and len(value) > _VALUE:
        value = value[:_VALUE] + "..."
    return f"{type(value).__name__} {redact(repr(value))}"
