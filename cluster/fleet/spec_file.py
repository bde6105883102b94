"""A YAML file with the lines of its fields, so that errors can name them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ValidationError

from ...protocol.errors import ConfigurationError

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says.

    Attributes:
        content: its fields.
        path: the file; None for a mapping.
        lines: line of each field, by path from the top.
    """

    content: Mapping[str, Any]
    path: Path | None = None
    lines: Mapping[Key, int] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Read it.

        Raises:
            ConfigurationError: no such file, not YAML, not a mapping, or a field twice.
        """
        if isinstance(source, Mapping):
            return cls(source)
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8-sig")
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            content = yaml.safe_load(text)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror or error}; check the path") from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
        except yaml.YAMLError as error:
            raise ConfigurationError(_describe(path, error)) from None
        except (ValueError, RecursionError) as error:  # a date like 2026-13-45
            raise ConfigurationError(f"{path}: a value cannot be read: {error}; put quotes around it") from None
        if not isinstance(content, Mapping):
            raise ConfigurationError(f"{path}: expected fields like 'agent: my_agents:support', found {type(content).__name__}")
        return cls(content, path, dict(_lines(root, (), path)))

    def where(self, key: Key) -> str:
        """``file:line: `` of a field, or of the closest thing around it; empty for a mapping."""
        if self.path is None:
            return ""
        while key and key not in self.lines:
            key = key[:-1]
        line = self.lines.get(key)
        return f"{self.path}: " if line is None else f"{self.path}:{line}: "


def _describe(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    problem = getattr(error, "problem", None) or str(error)
    return f"{where}: not YAML ({' '.join(problem.split())}); check indentation and quotes"


def _lines(node: Any, key: Key, path: Path) -> Iterator[tuple[Key, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: dict[Any, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.value in seen:
                raise ConfigurationError(
                    f"{path}:{line}: field {name.value!r} is there twice, also in line {seen[name.value]}; remove one"
                )
            seen[name.value] = line
            yield (*key, name.value), line
            yield from _lines(value, (*key, name.value), path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*key, index), value.start_mark.line + 1
            yield from _lines(value, (*key, index), path)


def explain(error: ValidationError, document: Document, model: type[BaseModel]) -> str:
    """Every wrong field in a line of its own: where it is, its name, what was expected."""
    return "\n".join(_explain_one(dict(one), document, model) for one in error.errors(include_url=False))


def _explain_one(problem: dict[str, Any], document: Document, model: type[BaseModel]) -> str:
    key: Key = tuple(problem["loc"])
    name = ".".join(map(str, key))
    said = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        example = {"agent": "agent: my_agents:support", "tasks": "tasks: tasks.jsonl"}.get(name)
        said = "missing" + (f"; write for example {example!r}" if example else "")
    elif problem["type"] == "extra_forbidden":
        known = _names(model, key[:-1])
        close = difflib.get_close_matches(str(key[-1]), known, 1, 0.5)
        said = "there is no such field" + (f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}")
    elif problem["type"] == "string_pattern_mismatch" and name == "agent":
        said = f"expected module:name, for example my_agents:support, found {problem['input']!r}"
    elif key[:1] == ("secrets",) and problem["type"] == "string_pattern_mismatch":
        said = "expected a reference, env:NAME or file:/path, never the secret itself"
    elif problem["type"] != "value_error":
        said += f", found {_short(problem['input'])}"
    return f"{document.where(key)}field {name!r}: {said}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _names(model: type[BaseModel], key: Key) -> list[str]:
    """The fields that there are at a place of the model."""
    for part in key:
        found = model.model_fields.get(str(part))
        inner = list(_models(found.annotation)) if found is not None else []
        if not inner:
            return []
        model = inner[0]
    return sorted(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
