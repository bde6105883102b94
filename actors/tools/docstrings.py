"""Parameter descriptions from Google-style docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

_HEADER = re.compile(r"(Args|Arguments|Parameters)\s*:\s*$")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*)|$)")


def parameter_descriptions(docstring: str | None, names: Collection[str]) -> dict[str, str]:
    """What the ``Args:`` section (also ``Arguments:``, ``Parameters:``) says about each of ``names``.

    An entry starts at the section's own indentation with a known parameter name; everything up to the next entry
    belongs to it, whatever colons it holds.
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    lines = _section(inspect.cleandoc(docstring or ""))
    indent = _depth(lines[0]) if lines else 0
    for line in lines:
        text = line.strip()
        entry = _ENTRY.match(text) if _depth(line) <= indent else None
        if entry is not None and (entry[1] in names or entry[1].islower()):
            current = found.setdefault(entry[1], [])
            text = entry[2] or ""
        if text:
            current.append(text)
    return {name: " ".join(parts) for name, parts in found.items() if parts and name in names}


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _section(docstring: str) -> list[str]:
    lines = docstring.splitlines()
    for start, line in enumerate(lines):
        if _HEADER.match(line.strip()):
            return _indented(lines[start + 1 :], _depth(line))
    return []


def _indented(lines: list[str], depth: int) -> list[str]:
    inside = []
    for line in lines:
        if line.strip():
            if _depth(line) <= depth:
                break
            inside.append(line)
    return inside
