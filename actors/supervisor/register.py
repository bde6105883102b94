"""What a supervisor keeps outside its process of the runs that go on without a caller: for the incarnation after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ...protocol.codec import decode, encode, pack, unpack
from ...protocol.errors import UmbelError
from ...protocol.handles import KeptRun, ToldEvents
from ...protocol.messages import Frozen

RUN, TOLD, DEFINITION = "run/", "told/", "definition/"
M = TypeVar("M", bound=Frozen)
logger = logging.getLogger("umbel.supervisor")


class Register(Protocol):
    """Values by key that outlive this process; ``cluster/`` decides where they are."""

    async def put(self, key: str, value: bytes) -> None: ...
    async def delete(self, key: str) -> None: ...
    async def load(self) -> dict[str, bytes]: ...


@dataclass(frozen=True, slots=True)
class Estate:
    """What an incarnation that died has left.

    Attributes:
        runs: by id.
        told: the newest events that readers may have seen, by run.
        definitions: agents as bytes, by key.
    """

    runs: dict[str, KeptRun] = field(default_factory=dict)
    told: dict[str, ToldEvents] = field(default_factory=dict)
    definitions: dict[str, bytes] = field(default_factory=dict)

    def add(self, kind: str, name: str, value: bytes) -> None:
        """Take in a value."""
        if kind == RUN:
            self.runs[name] = _unpacked(KeptRun, value)
        elif kind == TOLD:
            self.told[name] = _unpacked(ToldEvents, value)
        else:
            self.definitions[name] = value


class Records:
    """The register in terms of runs. A definition is in it for as long as a run needs it.

    Args:
        register: where things are kept; None of a supervisor whose process nothing survives.
    """

    def __init__(self, register: Register | None) -> None:
        self._register = register
        self._users: dict[str, set[str]] = {}

    @property
    def kept(self) -> bool:
        """Whether anything outlives this process."""
        return self._register is not None

    async def keep(self, run: KeptRun, blob: Callable[[str], bytes]) -> None:
        """Note a run, or what has changed of it; ``blob`` gives its definition."""
        if self._register is None:
            return
        start = run.start
        users = self._users.setdefault(start.definition, set())
        known = bool(users)
        users.add(start.run_id)
        if not known:
            await self._register.put(DEFINITION + start.definition, blob(start.definition))
        await self._register.put(RUN + start.run_id, _packed(run.evolve(start=start.evolve(ephemeral={}))))

    async def tell(self, run_id: str, told: ToldEvents) -> None:
        """Note what readers are about to see."""
        if self._register is not None:
            await self._register.put(TOLD + run_id, _packed(told))

    async def forget(self, run_id: str, definition: str) -> None:
        """Nothing needs to be known of a run any more."""
        if self._register is None:
            return
        await self._register.delete(RUN + run_id)
        await self._register.delete(TOLD + run_id)
        users = self._users.get(definition, set())
        users.discard(run_id)
        if not users and self._users.pop(definition, None) is not None:
            await self._register.delete(DEFINITION + definition)

    async def load(self) -> Estate:
        """Everything that is noted; runs of which something cannot be read are left out."""
        estate, broken = Estate(), set()
        for key, value in (await self._register.load() if self._register is not None else {}).items():
            kind, _, name = key.partition("/")
            try:
                estate.add(f"{kind}/", name, value)
            except (UmbelError, TypeError, ValueError):
                logger.exception("what was noted as %s cannot be read", key)
                broken.add(name)
        for name in broken:
            estate.runs.pop(name, None)
        for name, run in estate.runs.items():
            self._users.setdefault(run.start.definition, set()).add(name)
        return estate


def _packed(message: Frozen) -> bytes:
    return pack(encode(message))


def _unpacked(cls: type[M], data: bytes) -> M:
    message = decode(*unpack(data))
    if not isinstance(message, cls):
        raise TypeError(f"a {cls.__name__} was expected here, not a {type(message).__name__}")
    return message
