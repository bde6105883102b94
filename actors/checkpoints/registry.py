"""From a URL to an open store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ...protocol.errors import ConfigurationError, MissingExtra
from .file import FileStore
from .memory import MemoryStore
from .sqlite import SqliteStore
from .store import Store
from .url import StoreUrl, file_url, shown

StoreFactory = Callable[[str], Store]
_FACTORIES: dict[str, StoreFactory] = {}
_FILE_SCHEMES: set[str] = set()
_SHARED_SCHEMES: set[str] = set()


def register_store(scheme: str, factory: StoreFactory, *, file: bool = False, shared: bool = False) -> None:
    """Make ``scheme://...`` URLs open with ``factory``; a scheme that exists is replaced.

    Args:
        scheme: what stands before ``://``.
        factory: takes the whole URL, raises :class:`ConfigurationError` when it makes no sense. It must not block:
            a store connects in ``open`` or at its first use.
        file: the URL names a local path, which :func:`resolve_url` makes absolute.
        shared: a process on any machine that opens the URL has the same threads, so several checkpointers may serve them.
    """
    _FACTORIES[scheme.lower()] = factory
    (_FILE_SCHEMES.add if file else _FILE_SCHEMES.discard)(scheme.lower())
    (_SHARED_SCHEMES.add if shared else _SHARED_SCHEMES.discard)(scheme.lower())


def known_schemes() -> list[str]:
    """Every scheme that :func:`open_store` knows, sorted."""
    return sorted(_FACTORIES)


def is_shared(url: str) -> bool:
    """Whether every machine that opens ``url`` has the same threads; False for a scheme that is not known."""
    return StoreUrl.parse(url).scheme in _SHARED_SCHEMES


def open_store(url: str) -> Store:
    """The store that ``url`` names: ``memory://``, ``sqlite:///path``, ``file:///directory``, or a registered scheme.

    Raises:
        ConfigurationError: not a URL, an unknown scheme, or an unknown option.
    """
    return _factory(url)(url)


def resolve_url(url: str) -> str:
    """``url`` as any process of this machine understands it: known scheme and options, absolute path.

    Call it where the user wrote the URL: actors have working directories of their own, and what is wrong with it, or a
    library that is missing, is better found there than in the middle of a run. Nothing is connected.

    Raises:
        ConfigurationError: as :func:`open_store`.
    """
    open_store(url)
    parsed = StoreUrl.parse(url)
    return parsed.absolute() if parsed.scheme in _FILE_SCHEMES else url


def default_url(environ: Mapping[str, str] | None = None, *, file: str = "checkpoints.sqlite") -> str:
    """The store of whoever names none: an SQLite ``file`` in ``UMBEL_HOME`` (default ``~/.umbel``)."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("UMBEL_HOME") or "~/.umbel").expanduser().absolute()
    return file_url("sqlite", home / file)


def _factory(url: str) -> StoreFactory:
    scheme = StoreUrl.parse(url).scheme
    factory = _FACTORIES.get(scheme)
    if factory is None:
        known = ", ".join(f"{name}://" for name in known_schemes())
        raise ConfigurationError(f"no store is called {scheme}:// (in {shown(url)!r}); known are {known}")
    return factory


def _redis(url: str) -> Store:
    from .redis_store import RedisStore

    return RedisStore.from_url(url)


def _postgres(url: str) -> Store:
    try:
        from .postgres_store import PostgresStore
    except ImportError as error:
        raise MissingExtra(f"postgresql:// needs psycopg ({error}): pip install 'umbel[postgres]'") from None
    return PostgresStore.from_url(url)


def _s3(url: str) -> Store:
    try:
        from .s3_store import S3Store
    except ImportError as error:
        raise MissingExtra(f"s3:// needs boto3 ({error}): pip install 'umbel[s3]'") from None
    return S3Store.from_url(url)


register_store("memory", MemoryStore.from_url)
register_store("sqlite", SqliteStore.from_url, file=True)
register_store("file", FileStore.from_url, file=True)
register_store("redis", _redis, shared=True)
register_store("rediss", _redis, shared=True)
register_store("postgres", _postgres, shared=True)
register_store("postgresql", _postgres, shared=True)
register_store("s3", _s3, shared=True)
