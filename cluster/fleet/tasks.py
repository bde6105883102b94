"""One task of a fleet, and how a line, a row or a value becomes one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from pydantic import Field

from ...protocol.messages import Frozen, JsonObject, Text, clean_text
from .inputs import Columns

MAX_LINE_BYTES = 64 * 1024 * 1024
_USUAL = Columns()
_FIELDS = ("id", "prompt", "metadata")
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


class Task(Frozen):
    """One piece of work.

    Attributes:
        id: unique in its fleet.
        prompt: what to ask the agent; for a pattern perhaps an object, its structured input.
        metadata: what tools and hooks may know about it; persisted with the run.
        where: file and line, or position; set by the reader.
    """

    id: Text
    prompt: Text | JsonObject
    metadata: JsonObject = Field(default_factory=dict)
    where: str = Field(default="", exclude=True)


class BadTask(Frozen):
    """A line, row or value that is no task.

    Attributes:
        id: its own id where it has a usable one, otherwise one made from its position.
        where: file and line, or position.
        problem: field, what was expected, what was found, how to fix it.
    """

    id: Text
    where: str
    problem: Text

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def parse_line(raw: bytes, *, default_id: str, where: str, columns: Columns = _USUAL) -> Task | BadTask:
    """The task that one line of a JSONL file describes."""
    try:
        record = json.loads(raw)
    except UnicodeDecodeError as error:
        return BadTask(id=default_id, where=where, problem=f"not UTF-8 text (byte {error.start}); save the file as UTF-8")
    except json.JSONDecodeError as error:
        problem = f'not JSON ({error.msg} at column {error.colno}); expected one object a line, {{"id": ..., "prompt": ...}}'
        return BadTask(id=default_id, where=where, problem=problem)
    except RecursionError:
        return BadTask(id=default_id, where=where, problem="nested too deep to read; flatten the metadata")
    return parse_value(record, default_id=default_id, where=where, columns=columns)


def parse_value(value: object, *, default_id: str, where: str, columns: Columns = _USUAL) -> Task | BadTask:
    """The task that a value describes: a :class:`Task`, a mapping with ``prompt``, or text that is the prompt itself.

    Fields other than ``id``, ``prompt`` and ``metadata`` become metadata, as the columns of a CSV file do.
    """
    if isinstance(value, Task):
        return value.evolve(where=where)
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, Mapping):
        problem = f'expected an object {{"id": ..., "prompt": ...}}, found {kind_of(value)}'
        return BadTask(id=default_id, where=where, problem=problem)
    if not columns.usual:
        missing = columns.missing(value)
        if missing is not None:
            problem = f"field {missing!r}: missing{found_instead(value)}; name the column that holds the prompt"
            return BadTask(id=_read_id(value.get(columns.id), default_id)[0], where=where, problem=problem)
        value = columns.task_of(value)
    task_id, id_problem = _read_id(value.get("id"), default_id)
    bad = id_problem or _prompt_problem(value) or _metadata_problem(value)
    if bad:
        return BadTask(id=task_id, where=where, problem=bad)
    others = {str(name): entry for name, entry in value.items() if name not in _FIELDS}
    metadata = {**others, **(value.get("metadata") or {})}
    return Task(id=task_id, prompt=value["prompt"], metadata=metadata, where=where)


def _read_id(value: object, default_id: str) -> tuple[str, str | None]:
    if value is None:
        return default_id, None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), None
    if isinstance(value, str) and value.strip():
        return clean_text(value), None
    found = "empty text" if isinstance(value, str) else kind_of(value)
    return default_id, f"field 'id': expected text or a whole number, found {found}; leave it out to number the lines"


def _prompt_problem(record: Mapping[Any, Any]) -> str | None:
    prompt = record.get("prompt")
    if (isinstance(prompt, str) and prompt.strip()) or (isinstance(prompt, Mapping) and prompt):
        return None
    if "prompt" not in record:
        names = [str(name) for name in record]
        return f"field 'prompt': missing{rename_advice(names)}"
    found = "empty text" if isinstance(prompt, str) else "an empty object" if prompt == {} else kind_of(prompt)
    return f"field 'prompt': expected text, found {found}; say there what the agent is to do (a pattern may take an object)"


def _metadata_problem(record: Mapping[Any, Any]) -> str | None:
    metadata = record.get("metadata")
    if metadata is None or isinstance(metadata, Mapping):
        return None
    return f"field 'metadata': expected an object, found {kind_of(metadata)}; write {{\"name\": value}}"


def rename_advice(names: list[str]) -> str:
    """What to do about a missing ``prompt``, given the names that are there."""
    usual = ("question", "input", "text", "task", "query", "instruction", "message", "content")
    close = difflib.get_close_matches("prompt", [name.strip().lower() for name in names], 1, 0.7)
    wanted = [name for name in names if name.strip().lower() in {*close, *usual}]
    advice = f"rename {wanted[0][:40]!r} to 'prompt'" if wanted else "add one with what the agent is to do"
    return f"{found_instead(names)}; {advice}"


def found_instead(names: Iterable[Any]) -> str:
    """The names that are there, for a message about one that is not."""
    listed = ", ".join(repr(str(name)[:40]) for name in islice(names, 10)) or "nothing"
    return f" (there is {listed})"


def kind_of(value: object) -> str:
    """A value's kind in plain words."""
    return "null" if value is None else _KINDS.get(type(value), f"a {type(value).__name__}")


def duplicate(item: Task | BadTask) -> BadTask:
    """What becomes of a task whose id was used before; its own id is made unique by its position."""
    problem = f"field 'id': {item.id[:100]!r} was used before; ids must be unique, or left out to number the lines"
    return BadTask(id=f"{item.id} ({item.where})", where=item.where, problem=problem)
