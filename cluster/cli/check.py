"""What ``umbel doctor`` finds, one thing at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        status: ``ok``; ``warn``: works, but not everything or not well; ``fail``: Umbel cannot work.
        detail: what was found.
        remedy: what to do about it, empty when all is well.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def umbel_home() -> Path:
    """The folder of embedded defaults: ``UMBEL_HOME``, or ``~/.umbel``."""
    return Path(os.environ.get("UMBEL_HOME") or "~/.umbel").expanduser().absolute()
