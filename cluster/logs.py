"""Logs of actor processes: a file of JSON lines each, and one line to the user about what is in them.

Nothing of it goes to the console: a thousand agents that warn are one summary line at the end and a thousand lines in
``UMBEL_HOME/logs/<runtime>/<actor>.log``, which jq, DuckDB and pandas read. ``UMBEL_LOG`` sets levels, for Umbel as a
whole or by logger: ``UMBEL_LOG=debug``, ``UMBEL_LOG=info,umbel.tools=debug,my_app=info``.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ..actors.tools.context import current_tool_context
from ..actors.tools.redaction import redact
from ..protocol.errors import ConfigurationError
from ..protocol.settings import Settings

DEFAULT_LEVELS = {"root": "WARNING", "umbel": "INFO"}
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FILE_BYTES, OLD_FILES = 20_000_000, 4
LINE_CHARS = 20_000
KEEP_DAYS = 14


class LogSettings(Settings):
    """What an actor process must know to write its log.

    Attributes:
        levels: from a logger's name (``root`` for the root) to its level.
        home: absolute ``UMBEL_HOME`` of the driver; None leaves it to the actor's node.
    """

    levels: Mapping[str, str]
    home: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The settings of this process's environment.

        Raises:
            ConfigurationError: ``UMBEL_LOG`` is not a list of levels.
        """
        home = environ.get("UMBEL_HOME")
        return cls(
            levels=parse_levels(environ.get("UMBEL_LOG", "")), home=str(Path(home).expanduser().absolute()) if home else None
        )

    @property
    def folder(self) -> Path:
        """The folder of all logs on this node."""
        return Path(self.home or os.environ.get("UMBEL_HOME") or "~/.umbel").expanduser().absolute() / "logs"


def parse_levels(text: str) -> dict[str, str]:
    """Levels by logger from ``LEVEL`` (of Umbel) and ``LOGGER=LEVEL`` items, separated by commas.

    Raises:
        ConfigurationError: an item is neither.
    """
    levels = dict(DEFAULT_LEVELS)
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, level = item.rpartition("=")
        if level.strip().upper() not in LEVELS or bool(equals) is not bool(name.strip()):
            known = ", ".join(LEVELS).lower()
            raise ConfigurationError(f"UMBEL_LOG: {item!r} is neither LEVEL nor LOGGER=LEVEL; levels are {known}")
        levels[name.strip() or "umbel"] = level.strip().upper()
    return levels


class ActorLog(logging.handlers.RotatingFileHandler):
    """The log of one actor process; its file appears with its first line.

    Args:
        path: the file.
        actor: the actor's name, which every line carries.
    """

    def __init__(self, path: Path, actor: str) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8", delay=True)
        self.setFormatter(JsonLines(actor))
        self._counts = {"warnings": 0, "errors": 0}
        self._broken = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._counts["errors" if record.levelno >= logging.ERROR else "warnings"] += 1
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say once, where Ray keeps this process's output, that there is no log."""
        if not self._broken:
            self._broken = True
            sys.stderr.write(f"umbel: {self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")

    def facts(self) -> dict[str, Any]:
        """What the driver is told at the end."""
        return {**self._counts, "file": self.baseFilename}

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()


class JsonLines(logging.Formatter):
    """A record as one JSON object: ``time``, ``level``, ``logger``, ``actor``, ``pid``, ``message``, and what else is known."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "actor": self._actor,
            "pid": record.process,
            "message": redact(record.getMessage()[:LINE_CHARS]),
        }
        call = current_tool_context()
        known = {"run_id": call.run_id, "tool": call.tool_name} if call is not None else {}
        for name in ("run_id", "tool"):
            value = getattr(record, name, None) or known.get(name)
            if value:
                line[name] = value
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info)[-LINE_CHARS:])
        return json.dumps(line, default=str)


def open_log(settings: LogSettings, namespace: str, actor: str) -> ActorLog:
    """Make this process log to its file: Umbel's loggers and, from warnings on, everybody's."""
    log = ActorLog(settings.folder / namespace / f"{actor.replace('/', '-')}.log", actor)
    logging.getLogger().addHandler(log)
    for name, level in settings.levels.items():
        logging.getLogger(name).setLevel(level)
    return log


def prune(folder: Path, days: float = KEEP_DAYS) -> None:
    """Delete the logs of runtimes that have not written for so long."""
    oldest = time.time() - days * 86_400
    for runtime in folder.iterdir() if folder.is_dir() else ():
        if max((entry.stat().st_mtime for entry in (runtime, *runtime.glob("*"))), default=oldest) < oldest:
            shutil.rmtree(runtime, ignore_errors=True)


def summary(facts: Iterable[Mapping[str, Any]]) -> str | None:
    """One line about what the actors logged; None when there is nothing to say."""
    told = [fact for fact in facts if fact["warnings"] or fact["errors"]]
    if not told:
        return None
    warnings, errors = (sum(fact[what] for fact in told) for what in ("warnings", "errors"))
    counts = [f"{count:,} {what}{'s' * (count != 1)}" for count, what in ((errors, "error"), (warnings, "warning")) if count]
    folders = sorted({str(Path(fact["file"]).parent) for fact in told})
    return f"umbel: actors logged {' and '.join(counts)}; see {', '.join(folders[:3])}"
