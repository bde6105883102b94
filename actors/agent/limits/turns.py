"""A request's place in the queue of an endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from ...sharing import Share

DEFAULT = Share()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Turn:
    """A request that waits for its turn, or has it.

    Attributes:
        key: tells it apart from the others of its limiter.
        share: whose it is.
        tokens: what it is expected to use.
        round: of the limiter when it was let go: what was learned since, its answer cannot tell.
        at: when it may be sent, on the limiter's clock.
        again: it had its turn before, and missed it or was refused: it goes before the others of its fleet and priority.
        waits: it is in a queue.
        used: tokens that it really used, once that is known.
    """

    key: object
    share: Share = DEFAULT
    tokens: int = 0
    round: int = 0
    at: float = 0.0
    again: bool = False
    waits: bool = False
    used: int | None = None
