"""The files that a fleet writes its results to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...protocol.errors import ConfigurationError
from .results_file import OUT_EXISTS

Out = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def paths_of(out: Out | None) -> list[Path]:
    """The files that ``out`` names.

    Raises:
        ConfigurationError: one of them twice.
    """
    if out is None:
        return []
    paths = [Path(out)] if isinstance(out, str | os.PathLike) else [Path(one) for one in out]
    if len({path.absolute() for path in paths}) < len(paths):
        raise ConfigurationError(f"out names a file twice: {', '.join(map(str, paths))}")
    return paths


def check_out(out: Path, tasks: Path | None, *, keep_going: bool) -> None:
    """Refuse a file that is the tasks, or that holds something which is neither to be kept nor to be replaced.

    Raises:
        ConfigurationError: it is.
    """
    if tasks is not None and out.exists() and out.samefile(tasks):
        raise ConfigurationError(f"{out} is the tasks file; choose another file for the results")
    if not keep_going and out.is_file() and out.stat().st_size:
        raise ConfigurationError(f"{out} {OUT_EXISTS}")
