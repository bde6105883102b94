"""Checkpoints: the actor that saves and loads them, the stores behind it, and deltas for whoever writes them."""

from .actor import CheckpointerActor
from .delta import Baseline, build_save, fold, restore
from .file import FileStore
from .memory import MemoryStore
from .registry import default_url, known_schemes, open_store, register_store, resolve_url
from .sqlite import SqliteStore
from .store import SaveOutcome, Store

__all__ = [
    "Baseline",
    "CheckpointerActor",
    "FileStore",
    "MemoryStore",
    "SaveOutcome",
    "SqliteStore",
    "Store",
    "build_save",
    "default_url",
    "fold",
    "known_schemes",
    "open_store",
    "register_store",
    "resolve_url",
    "restore",
]
