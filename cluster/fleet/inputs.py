"""Where tasks come from, as settings: a file or folder or dataset, its format, which columns are what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import to_jsonable_python

from ...protocol.settings import Settings
from .durations import Count

Format = Literal["jsonl", "csv", "parquet", "text"]
MAX_TEXT_BYTES = 1024 * 1024


class TaskInput(Settings):
    """Tasks, and how to read them.

    Attributes:
        path: a .jsonl, .csv or .parquet file (the first two also .gz), a folder of text files, or ``-``: lines of JSON on
            standard input.
        ray: instead of a path, ``module:function`` that returns a Ray Data dataset.
        format: what the path holds, where its name does not say so.
        id: the column that holds the task's id.
        prompt: the column that holds the prompt; a list of columns makes an object of them, for patterns.
        glob: of a folder, the files to take (``*.md``, ``notes/*.txt``).
        max_bytes: of a folder, the largest file that is taken.
    """

    path: str | None = None
    ray: Annotated[str, Field(pattern=r"^[^:\s]+:[^:\s]+$")] | None = None
    format: Format | None = None
    id: str = "id"
    prompt: Annotated[
        str | tuple[str, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
    ] = "prompt"
    glob: str = "*"
    max_bytes: Count = MAX_TEXT_BYTES

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.path is None) == (self.ray is None):
            raise ValueError("expected one of path (a file or folder) and ray (module:function)")
        return self

    @property
    def columns(self) -> Columns:
        """Which column is what."""
        return Columns(id=self.id, prompt=self.prompt)


class Columns(Settings):
    """Which column of a row is the id, and which the prompt. All others are metadata."""

    id: str = "id"
    prompt: str | tuple[str, ...] = "prompt"

    @property
    def usual(self) -> bool:
        """Whether they have their usual names, so that nothing is to be done."""
        return self.id == "id" and self.prompt == "prompt"

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt

    def missing(self, names: Any) -> str | None:
        """The first needed column that is not among ``names``."""
        return next((name for name in self.needed if name not in names), None)

    def task_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row as ``id``, ``prompt`` and ``metadata``; the prompt is left out where its column is missing."""
        if isinstance(self.prompt, str):
            prompt = {"prompt": row[self.prompt]} if self.prompt in row else {}
        else:
            prompt = {"prompt": {name: row.get(name) for name in self.prompt}}
        others = {name: value for name, value in row.items() if name not in (self.id, *self.needed, "metadata")}
        metadata = row.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            return {"id": row.get(self.id), **prompt, "metadata": metadata}
        return {"id": row.get(self.id), **prompt, "metadata": {**others, **(metadata or {})}}


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table as JSON values: times as ISO text, decimals and other kinds as text, bytes as base64."""
    values: dict[str, Any] = to_jsonable_python(dict(row), bytes_mode="base64", inf_nan_mode="null", fallback=str)
    return values
