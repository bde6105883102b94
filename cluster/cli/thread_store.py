"""The store that ``umbel threads`` works on, opened in this process, and what its options mean."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from ...protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from ...actors.threads import Threads

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def store_url(given: str | None, *, may_be_new: bool = False) -> str:
    """The store that an option names, or the default one.

    Raises:
        ConfigurationError: there is no such store, or none that another process can look into.
    """
    from ...actors.checkpoints import default_url, resolve_url
    from ...actors.checkpoints.url import StoreUrl

    url = resolve_url(given or default_url())
    parsed = StoreUrl.parse(url)
    if parsed.scheme == "memory":
        raise ConfigurationError("memory:// is inside the process that runs the agents; only that process can look into it")
    if parsed.scheme in {"sqlite", "file"} and not may_be_new and not parsed.file().exists():
        hint = "" if given else "; name the store of your agents with --store, for example sqlite:///umbel.db"
        raise ConfigurationError(f"there is no store at {parsed.file()}: no agent has kept a thread there{hint}")
    return url


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Threads]:
    """The threads of a store, by way of a checkpointer in this process."""
    from ...actors.checkpoints import CheckpointerActor
    from ...actors.threads import Threads

    checkpointer = CheckpointerActor()
    try:
        yield Threads(url, checkpointer.answer)
    finally:
        await checkpointer.close()


def read_where(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` options as a search; a value that is JSON is that value, everything else is text.

    Raises:
        ConfigurationError: one has no ``=``.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise ConfigurationError(f"--where {pair!r}: expected key=value, for example --where customer=7")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def read_duration(text: str | None, option: str) -> float | None:
    """``30d``, ``12h``, ``90m``, ``45s`` or ``2w`` in seconds.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise ConfigurationError(f"{option} {text!r}: expected a number and s, m, h, d or w, for example 30d")
    return float(match[1]) * _UNITS[match[2]]
