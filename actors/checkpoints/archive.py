"""Threads as lines of a file: to move them between stores, to keep them, and to read them with other programs.

A line is one thread, whole: its newest state, its checkpoint's metadata, and the journal of calls in progress. Earlier
checkpoints are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError
from pydantic_core import from_json

from ...protocol.commands import CheckpointLoaded
from ...protocol.errors import CheckpointNotFound, ConfigurationError
from ...protocol.messages import NOTHING, Frozen, JsonObject, Text
from ...protocol.state import AgentState
from ...protocol.storage import JournalEntry
from .delta import restore

FORMAT: Literal["umbel-thread"] = "umbel-thread"
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class ThreadRecord(Frozen):
    """A thread as a line of a file.

    Attributes:
        format: always ``umbel-thread``.
        version: of this record.
        thread_id: the thread.
        checkpoint_id: its newest checkpoint.
        created_at: of that checkpoint, seconds since the epoch, UTC.
        metadata: of that checkpoint.
        journal: calls in progress.
        state_version: of the state; another version than this Umbel's is refused.
        state: the conversation, with its counters.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal["umbel-thread"] = FORMAT
    version: Literal[1] = 1
    thread_id: Text
    checkpoint_id: str
    created_at: float
    metadata: JsonObject = NOTHING
    journal: tuple[JournalEntry, ...] = ()
    state_version: int
    state: AgentState

    @classmethod
    def of(cls, thread_id: str, loaded: CheckpointLoaded) -> ThreadRecord:
        """The record of a checkpoint.

        Raises:
            CheckpointNotFound: nothing was loaded.
            CheckpointError: it is damaged.
        """
        baseline = restore(loaded)
        if baseline is None:
            raise CheckpointNotFound(f"there is no thread {thread_id!r}", thread_id=thread_id)
        return cls(
            thread_id=thread_id,
            checkpoint_id=baseline.checkpoint_id,
            created_at=loaded.created_at,
            metadata=loaded.metadata,
            journal=loaded.journal,
            state_version=AgentState.schema_version,
            state=baseline.state,
        )

    def to_line(self) -> str:
        """The record as a line. Characters that some programs take for the end of one are written as escapes."""
        return self.model_dump_json().translate(_LINE_ENDS) + "\n"


def read_records(lines: Iterable[str], source: str) -> Iterator[ThreadRecord]:
    """The records of a file; empty lines are passed over.

    Args:
        lines: the file.
        source: its name, for errors.

    Raises:
        ConfigurationError: a line is no record of a thread, or of another version, or its thread was there before; the
            message has the line, the field, and what is wrong with it.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _read(line, f"{source}:{number}")
        if record.thread_id in seen:
            raise ConfigurationError(
                f"{source}:{number}: thread_id: {record.thread_id!r} stands in line {seen[record.thread_id]} already"
            )
        seen[record.thread_id] = number
        yield record


def _read(line: str, where: str) -> ThreadRecord:
    try:
        value = from_json(line)
    except ValueError as error:
        raise ConfigurationError(f"{where}: not JSON: {error}") from None
    _check_kind(value, where)
    try:
        return ThreadRecord.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise ConfigurationError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _check_kind(value: Any, where: str) -> None:
    """Refuse what is no such record at all, and versions that are not ours, before a field can be found wrong."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigurationError(
            f'{where}: format: expected {{"format": "{FORMAT}", ...}}, a line that "umbel threads export" wrote'
        )
    known = (("version", ThreadRecord.model_fields["version"].default), ("state_version", AgentState.schema_version))
    for field, version in known:
        if value.get(field) != version:
            raise ConfigurationError(
                f"{where}: {field}: this Umbel reads version {version}, not {value.get(field)!r};"
                " import it with the Umbel that wrote it"
            )
