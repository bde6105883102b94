"""The share of an endpoint's limits that code here claims: set around runs, it reaches their model calls.

A fleet says ``with sharing(Share(fleet="nightly", weight=2.0)): await agent.arun(task)``; children and members inherit it.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

from ..protocol.shares import Share

__all__ = ["Share", "current_share", "sharing"]

_share: ContextVar[Share | None] = ContextVar("umbel_share", default=None)
current_share = _share.get


class sharing:  # noqa: N801 - used like a function, around every model call of a fleet: a generator would cost twice as much
    """``with sharing(share)``: runs and model calls that begin inside claim that share; None claims none."""

    __slots__ = ("_share", "_token")

    def __init__(self, share: Share | None) -> None:
        self._share = share

    def __enter__(self) -> None:
        self._token: Token[Share | None] = _share.set(self._share)

    def __exit__(self, *_: object) -> None:
        _share.reset(self._token)
