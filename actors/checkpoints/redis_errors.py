"""What an error of Redis means to whoever saves or loads, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions

from ...protocol.errors import ConfigurationError, StoreUnavailable, UmbelError

_CREDENTIALS = "refuses the credentials ({error}); put them into the URL: redis://user:password@host"
_CLUSTER = "is a node of a cluster ({error}); add ?cluster=yes to the URL"
_UNREACHABLE = "cannot be reached ({error}); start it, or check host, port and network"

_errors: Any = exceptions  # old stubs of other people's know less than the library

# Clients cut the server's code off and raise a class instead.
_CLASSES: dict[type[Exception], str] = {
    _errors.AskError: "ASK",
    _errors.BusyLoadingError: "LOADING",
    _errors.ClusterDownError: "CLUSTERDOWN",
    _errors.MasterDownError: "MASTERDOWN",
    _errors.MovedError: "MOVED",
    _errors.NoPermissionError: "NOPERM",
    _errors.OutOfMemoryError: "OOM",
    _errors.ReadOnlyError: "READONLY",
    _errors.TryAgainError: "TRYAGAIN",
}

# The first that occurs in the error's text wins; servers put their own codes in front, and scripts repeat them.
_CODES: tuple[tuple[str, type[UmbelError], str], ...] = (
    ("OOM", StoreUnavailable, "has no memory left ({error}); raise maxmemory, or delete threads that nobody needs"),
    ("READONLY", StoreUnavailable, "is a replica that takes no writes ({error}); name the primary in the URL"),
    ("LOADING", StoreUnavailable, "still reads its data from disk ({error}); try again when it is done"),
    ("MISCONF", StoreUnavailable, "cannot write to its disk ({error}); free space there, or repair its settings"),
    ("NOREPLICAS", StoreUnavailable, "has too few replicas to write ({error}); start them"),
    ("MASTERDOWN", StoreUnavailable, "has lost its primary ({error}); start that, or promote this one"),
    ("CLUSTERDOWN", StoreUnavailable, "belongs to a cluster that is not whole ({error}); start its missing nodes"),
    ("BUSY", StoreUnavailable, "is busy with a script of somebody else's ({error}); end it with SCRIPT KILL"),
    ("TRYAGAIN", StoreUnavailable, "moves these keys to another node ({error}); try again"),
    ("NOAUTH", ConfigurationError, _CREDENTIALS),
    ("WRONGPASS", ConfigurationError, _CREDENTIALS),
    ("NOPERM", ConfigurationError, "does not let this user run its scripts ({error}); grant +@all on ~PREFIX*"),
    ("MOVED", ConfigurationError, _CLUSTER),
    ("ASK", ConfigurationError, _CLUSTER),
    ("WRONGTYPE", ConfigurationError, "holds something else under our keys ({error}); choose others with ?prefix=NAME:"),
    ("compiling script", ConfigurationError, "is too old ({error}); Umbel needs Redis 7 or newer, or Valkey"),
    ("DB index is out of range", ConfigurationError, "has no such database ({error}); name another number behind the host"),
)


def explain(error: Exception, place: str) -> UmbelError:
    """``error`` as an Umbel error that names the server and what to do.

    Args:
        error: of the client or of the socket.
        place: the server, without credentials.
    """
    text = f"{_CLASSES.get(type(error), '')} {error}".strip() or type(error).__name__
    if isinstance(error, exceptions.AuthenticationError):
        return _error(ConfigurationError, _CREDENTIALS, text, place)
    for code, kind, meaning in _CODES:
        if code in text:
            return _error(kind, meaning, text, place)
    if isinstance(error, exceptions.TimeoutError | asyncio.TimeoutError):
        return _error(
            StoreUnavailable, "did not answer in time ({error}); try again, or wait longer with ?timeout=N", text, place
        )
    if isinstance(error, exceptions.ConnectionError | OSError | exceptions.RedisClusterException):
        return _error(StoreUnavailable, _UNREACHABLE, text, place)
    return _error(StoreUnavailable, "failed: {error}", text, place)


def _error(kind: type[UmbelError], meaning: str, text: str, place: str) -> UmbelError:
    return kind(f"Redis at {place} {meaning.format(error=text)}", place=place)
