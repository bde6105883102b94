"""The quarantine file: the tasks that kill actors, as task lines with the reason, to be mended and run again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...protocol.errors import ConfigurationError
from .results import one_line
from .tasks import Task

_OURS = ("reason", "attempts")


class QuarantineFile:
    """Holds few lines: one for each task that is in quarantine, after every run that writes it. It is itself a tasks file.

    Args:
        path: the file; it is made when there is something to write.
        fresh: begin anew; otherwise tasks of earlier runs stay until they succeed.

    Raises:
        ConfigurationError: the file cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self._lines: dict[str, dict[str, Any]] = {}
        self._changed = fresh and path.exists()
        if not fresh:
            self._read()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {path}: {error.strerror or error}; choose another file") from None

    def put(self, task: Task, reason: str | None, deaths: list[str]) -> None:
        """Add a task, with what each of its attempts died of; the file has it when this returns."""
        metadata = {name: value for name, value in task.metadata.items() if name not in _OURS}
        line = {"id": task.id, "prompt": task.prompt, "metadata": metadata, "reason": reason, "attempts": deaths}
        self._lines[task.id] = line
        self._write()

    def clear(self, task_id: str) -> None:
        """The task succeeded after all."""
        if self._lines.pop(task_id, None) is not None:
            self._changed = True

    def close(self) -> None:
        """Write what is still to be written."""
        if self._changed:
            self._write()

    def _read(self) -> None:
        try:
            for number, raw in enumerate(self._path.read_bytes().splitlines(), 1):
                line = json.loads(raw)
                if not isinstance(line, dict) or "id" not in line:
                    raise ConfigurationError(f"{self._path}:{number}: not a line of a quarantine file; choose another file")
                self._lines[str(line["id"])] = line
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self._path}: not a quarantine file ({one_line(str(error))}); choose another") from None

    def _write(self) -> None:
        """The whole file anew, in one step: it is small, and a crash leaves the old one or the new one."""
        self._changed = False
        fresh = self._path.with_name(f".{self._path.name}.new")
        with fresh.open("wb") as stream:
            for line in self._lines.values():
                stream.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._path)
