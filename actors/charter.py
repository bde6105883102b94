"""What whoever begins a run says about it besides the call's arguments: its id, and what it may spend. Source: OURS-13.

A fleet says ``with chartered(Charter(lease_tokens=5_000)): await agent.arun(task)``. The charter is for the next run that
begins inside, and for no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


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


_charter: ContextVar[Charter | None] = ContextVar("umbel_charter", default=None)


@contextmanager
def chartered(charter: Charter | None) -> Iterator[None]:
    """The next run that begins inside gets that charter; None says nothing."""
    if charter is None:
        yield
        return
    token = _charter.set(charter)
    try:
        yield
    finally:
        _charter.reset(token)


def take_charter() -> Charter:
    """The charter of the run that begins here; the runs that begin within it have none."""
    charter = _charter.get()
    if charter is None:
        return Charter()
    _charter.set(None)
    return charter
