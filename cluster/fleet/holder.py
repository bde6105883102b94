"""Who runs a fleet: the name under which a process holds its lease, and whether such a process is still there."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


def holder_name() -> str:
    """A name for this process and one fleet of it: host, pid, where that pid means something, and a random part."""
    return f"{socket.gethostname()}/{os.getpid()}/{_place()}/{os.urandom(4).hex()}"


def describe_holder(owner: str) -> str:
    """That name for people."""
    host, _, rest = owner.partition("/")
    pid = rest.partition("/")[0]
    return f"process {pid} on {host}" if pid.isdigit() else owner


def is_gone(owner: str) -> bool:
    """Whether the process is known to be dead: it was one of this boot of this machine, and its pid is free."""
    parts = owner.split("/")
    if len(parts) != 4 or parts[0] != socket.gethostname() or parts[2] != _place() or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@cache
def _place() -> str:
    """Stands for this boot and this pid namespace; empty where neither can be told, which matches nothing but itself."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return os.urandom(4).hex()
