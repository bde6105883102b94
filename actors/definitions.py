"""Definitions as actors know them: agents, found by the content hash that messages carry."""

from __future__ import annotations

import hashlib
import importlib.machinery
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from ..protocol.commands import Define
from ..protocol.errors import DefinitionError, UnknownTool


def pack_definition(definition: Any) -> tuple[str, bytes]:
    """A definition as (content hash, pickled bytes).

    Code that a worker could not import by name (a script, a notebook, a test module) travels inside the bytes.

    Raises:
        DefinitionError: something in it cannot be pickled; open connections belong into configuration, not definitions.
    """
    try:
        with _by_value(definition):
            inner = cloudpickle.dumps(definition)
    except Exception as error:  # pickling runs arbitrary reducers
        raise DefinitionError(
            f"{definition!r} cannot be sent to other processes: {type(error).__name__}: {error}. Give it configuration "
            "(URLs, names) rather than open connections, locks or generators"
        ) from error
    paths = [str(Path(path).absolute()) for path in sys.path]  # as they are now: what the definition imports may be there
    return hashlib.sha256(inner).hexdigest()[:32], cloudpickle.dumps((paths, inner))


def unpack_definition(blob: bytes) -> Any:
    """The definition that :func:`pack_definition` packed, in another process of the runtime."""
    paths, inner = cloudpickle.loads(blob)
    sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
    return cloudpickle.loads(inner)


@contextmanager
def _by_value(definition: Any) -> Iterator[None]:
    """While pickling: modules of the definition's parts that are not importable elsewhere travel by value."""
    chosen: list[ModuleType] = []
    for name in {getattr(part, "__module__", None) or "" for part in definition.parts()}:
        module = sys.modules.get(name)
        if module is not None and name != "__main__" and not _importable(module):
            cloudpickle.register_pickle_by_value(module)
            chosen.append(module)
    try:
        yield
    finally:
        for module in chosen:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: ModuleType) -> bool:
    """Whether another process with the same ``sys.path`` finds this module's file under its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    path: Any = None
    parts = module.__name__.split(".")
    for depth, _ in enumerate(parts):
        name = ".".join(parts[: depth + 1])
        spec = next((found for finder in sys.meta_path if (found := _find(finder, name, path))), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == file


def _find(finder: Any, name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    find_spec = getattr(finder, "find_spec", None)
    return find_spec(name, path) if find_spec is not None else None


class Definition:
    """What can be sent to other processes, packed once."""

    _packed: tuple[str, bytes] | None = None

    @property
    def packed(self) -> tuple[str, bytes]:
        """This definition as (content hash, bytes), made once."""
        if self._packed is None:
            self._packed = pack_definition(self)
        return self._packed

    def keep_packed(self, key: str, blob: bytes) -> None:
        """This definition was made from these bytes: they need not be made again."""
        self._packed = (key, blob)


class Definitions:
    """The definitions that one process knows."""

    def __init__(self) -> None:
        self._known: MutableMapping[str, Any] = {}
        self._broken: dict[str, str] = {}

    def register(self, definition: Any) -> str:
        """Make a definition known, and give its key: its content hash."""
        key = str(definition.packed[0])
        self._known.setdefault(key, definition)
        return key

    def pack(self, definition: Any) -> tuple[str, bytes]:
        """What another process needs to know the definition (see :meth:`admit`): (key, bytes)."""
        return definition.packed  # type: ignore[no-any-return]

    def admit(self, key: str, blob: bytes) -> Any:
        """The definition that :meth:`pack` packed, known here from now on.

        Raises:
            DefinitionError: it cannot be loaded here, or was never sent here.
        """
        if key not in self._known and blob:
            try:
                definition = unpack_definition(blob)
            except Exception as error:  # unpickling runs whatever the definition imports
                raise DefinitionError(
                    f"the agent cannot be loaded in an actor process: {type(error).__name__}: {error}"
                ) from error
            definition.keep_packed(key, blob)
            self._known[key] = definition
            return definition
        return self.get(key)

    async def define(self, message: Define, caller: Any) -> None:
        """Mailbox handler: take in a definition sent by a process of this cluster."""
        if message.definition not in self._known:
            try:
                self._known[message.definition] = unpack_definition(message.blob)
            except Exception as error:  # unpickling runs whatever the definition imports; it is raised again
                self._broken[message.definition] = f"{type(error).__name__}: {error}"
                raise

    def get(self, key: str) -> Any:
        """The definition.

        Raises:
            DefinitionError: it was never sent here.
        """
        try:
            return self._known[key]
        except KeyError:
            why = self._broken.get(key)
            if why is not None:
                raise DefinitionError(f"the agent cannot be loaded in an actor process: {why}") from None
            raise DefinitionError(f"definition {key} was not sent to this process ahead of its first use") from None

    def find_tool(self, key: str, name: str) -> Any:
        """A tool of an agent by name.

        Raises:
            UnknownTool: the agent has no such tool; the error lists what it has.
        """
        agent = self.get(key)
        try:
            return agent.tools_by_name[name]
        except KeyError:
            from .tools.executor import unknown_tool_text

            raise UnknownTool(unknown_tool_text(name, tuple(agent.tools_by_name))) from None


class LocalDefinitions(Definitions):
    """Definitions that never leave the process: found by identity, kept only as long as somebody else keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self._known = weakref.WeakValueDictionary()

    def register(self, definition: Any) -> str:
        key = f"local-{id(definition)}"
        self._known[key] = definition
        return key

    def pack(self, definition: Any) -> tuple[str, bytes]:
        """No bytes: who asks is in the same process."""
        return self.register(definition), b""
