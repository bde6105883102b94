"""Processes known by an entry of their environment, which whatever they start inherits, in whatever session it is."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_marked(entry: str) -> bool:
    """SIGKILL the other processes whose environment began with ``NAME=value`` in it; whether there were any."""
    found = False
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or it is somebody else's
                if entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True
    return found
