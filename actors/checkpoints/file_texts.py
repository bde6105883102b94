"""The texts of a file store that are stored once for all threads, a file each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ...protocol.errors import CheckpointError
from .durable_file import DurableFiles, read_whole

LOCK = "lock"


class TextFolder:
    """The folder of the texts. Its methods block, and may be called by any thread of any process.

    Args:
        folder: where it is, or will be.
        files: how its files are written.
    """

    def __init__(self, folder: Path, files: DurableFiles) -> None:
        self._folder = folder
        self._files = files

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Nothing is collected meanwhile: who refers to a text writes both under this."""
        self._files.make_folder(self._folder)
        with self._files.locked(self._folder / LOCK, shared=True):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody begins to refer to a text meanwhile."""
        self._files.make_folder(self._folder)
        with self._files.locked(self._folder / LOCK):
            yield

    def write(self, texts: Mapping[str, str]) -> None:
        """Keep ``texts``; those that are there stay as they are."""
        for digest, text in texts.items():
            path = self._path(digest)
            if not path.exists():
                self._files.write(path, json.dumps({"digest": digest, "text": text}).encode())

    def read(self, digests: Collection[str]) -> dict[str, str]:
        """The texts of ``digests``.

        Raises:
            CheckpointError: one is missing or damaged.
        """
        texts: dict[str, str] = {}
        for digest in digests:
            payload = read_whole(self._path(digest))
            if payload is None:
                raise CheckpointError(f"{self._path(digest)} is missing: a text that checkpoints refer to; restore a backup")
            texts[digest] = json.loads(payload)["text"]
        return texts

    def collect(self, used: Collection[str]) -> tuple[int, int]:
        """Delete all but the ``used`` ones, and say how many those were and how many bytes they had."""
        kept = {self._path(digest).name for digest in used} | {LOCK}
        unused = [path for path in self._folder.iterdir() if path.name not in kept]
        size = sum(path.stat().st_size for path in unused)
        for path in unused:
            path.unlink()
        return len(unused), size

    def _path(self, digest: str) -> Path:
        """A digest comes from outside: its name is a hash of it, so it cannot lead elsewhere."""
        return self._folder / sha256(digest.encode()).hexdigest()
