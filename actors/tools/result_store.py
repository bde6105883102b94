"""Where tool results too large for a conversation are kept whole (OURS-20): once, under the hash of their content."""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...protocol.errors import ConfigurationError, StoreUnavailable

THRESHOLD, PREVIEW = 32_000, 8_000
_KEY = re.compile(r"result-[0-9a-f]{64}")
_REFERENCE = re.compile(r"\[This result of [0-9,]+ characters is stored under (result-[0-9a-f]{64})\.")


@runtime_checkable
class ResultStore(Protocol):
    """Keeps texts. Both methods may be sync (they run in a thread) or async.

    It travels with the agent's definition, so it must be picklable; on a cluster all processes must mean the same place.
    """

    def save(self, key: str, text: str) -> Awaitable[None] | None:
        """Keep ``text`` under ``key``. Saving the same key again is harmless: a key names a content."""

    def load(self, key: str) -> Awaitable[str | None] | str | None:
        """The text under ``key``, or None if there is none."""


@dataclass(frozen=True)
class StoredResults:
    """A store, and which results go there. A bare :class:`ResultStore` means these defaults.

    Attributes:
        store: where the texts go.
        threshold: results longer than this many characters (images not counted) are stored, if they are over the agent's
            limit too; others go to the model whole.
        preview: characters of a stored result that the model still sees.

    Raises:
        ConfigurationError: ``preview`` is not between 0 and ``threshold``, or ``store`` is no store.
    """

    store: ResultStore
    threshold: int = THRESHOLD
    preview: int = PREVIEW

    def __post_init__(self) -> None:
        if not isinstance(self.store, ResultStore):
            raise ConfigurationError(f"a result store has save(key, text) and load(key); {type(self.store).__name__} has not")
        if not 0 <= self.preview <= self.threshold:
            raise ConfigurationError(f"preview ({self.preview}) must be between 0 and threshold ({self.threshold})")


def result_key(text: str) -> str:
    """The name of a content: equal for equal texts, and for no others."""
    return f"result-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def reference(key: str, length: int, head: str, tail: str) -> str:
    """What the model sees instead of a stored result: where it is, how long it is (characters), its two ends."""
    shown = f"Shown: the first {len(head):,} and the last {len(tail):,}." if head or tail else "Nothing of it is shown."
    lead = f"[This result of {length:,} characters is stored under {key}. {shown}]"
    return "\n".join(part for part in (lead, head, "[...]" if head or tail else "", tail) if part)


def stored_key(text: str) -> str | None:
    """The key in a :func:`reference`; None for every other text."""
    match = _REFERENCE.match(text)
    return None if match is None else match[1]


class MemoryResultStore:
    """Results in this process, for tests and the inline runtime. A copy of it in another process is another store."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def save(self, key: str, text: str) -> None:
        self._texts[key] = text

    async def load(self, key: str) -> str | None:
        return self._texts.get(key)

    def __len__(self) -> int:
        return len(self._texts)


class DirectoryResultStore:
    """Results as files of a folder; on a cluster, one that every node sees.

    Args:
        folder: made when first needed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()

    def save(self, key: str, text: str) -> None:
        """Keep ``text``.

        Raises:
            ConfigurationError: not a key of :func:`result_key`.
            StoreUnavailable: the folder cannot be written.
        """
        path = self._path(key)
        if path.exists():
            return
        draft = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(text, encoding="utf-8", newline="")
            draft.replace(path)  # whole or not at all, whoever else writes the same
        except OSError as error:
            with contextlib.suppress(OSError):  # it may not be there, and the first error is the one to tell
                draft.unlink()
            raise StoreUnavailable(f"tool results cannot be written to {self.folder}: {error}") from error

    def load(self, key: str) -> str | None:
        """The text, or None.

        Raises:
            ConfigurationError: not a key of :func:`result_key`.
            StoreUnavailable: the file is there and cannot be read.
        """
        try:
            return self._path(key).read_bytes().decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(f"tool results cannot be read from {self.folder}: {error}") from error

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ConfigurationError(f"{key[:80]!r} is not the key of a stored result")
        return self.folder / f"{key}.txt"
