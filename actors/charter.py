"""What whoever begins a run says about it besides the call's arguments: its id, and what it may spend. Source: OURS-13.

A fleet says ``with chartered(Charter(lease_tokens=5_000)): await agent.arun(task)``. The charter is for the next run that
begins inside, and for no other.
"""

from __future__ import annotations

import os
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace


def new_run_id() -> str:
    """An id that no other run has."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What is said.

    Attributes:
        run_id: of the run.
        lease_tokens, lease_cost_usd: what the run and all its children may spend together; None sets no limit.
    """

    run_id: str = field(default_factory=new_run_id)
    lease_tokens: int | None = None
    lease_cost_usd: float | None = None

    def again(self) -> Charter:
        """The same for another run."""
        return replace(self, run_id=new_run_id())


_charter: ContextVar[Charter | None] = ContextVar("umbel_charter", default=None)


class chartered:  # noqa: N801 - used like a function, around every run of a fleet: a generator would cost twice as much
    """``with chartered(charter)``: the next run that begins inside gets it; None says nothing."""

    __slots__ = ("_charter", "_token")

    def __init__(self, charter: Charter | None) -> None:
        self._charter = charter

    def __enter__(self) -> None:
        self._token: Token[Charter | None] | None = None if self._charter is None else _charter.set(self._charter)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _charter.reset(self._token)


def take_charter() -> Charter:
    """The charter of the run that begins here; the runs that begin within it have none."""
    charter = _charter.get()
    if charter is None:
        return Charter()
    _charter.set(None)
    return charter
