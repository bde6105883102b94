"""What the processes of a cluster and the limiter of an endpoint say to each other (``actors/agent/limits``).

line  -> desk    LimiterReport  -> LimiterReply    (answered when a turn is given, or after a second)
"""

from __future__ import annotations

from typing import Literal

from .codec import message_type
from .config import Limits
from .messages import Frozen
from .shares import Share


class Asking(Frozen):
    """A request that waits, or is on its way; ``again``: it had its turn before, and missed it or was refused."""

    key: int
    share: Share | None = None
    tokens: int = 0
    again: bool = False


class Answered(Frozen):
    """What became of a request.

    Attributes:
        key: which one; None for one that went without asking.
        kind: it was let in, it was refused, it is over.
        seconds: refused for so long.
        age: how long ago it was sent, seconds.
        tokens: that it used.
        requests_per_minute, tokens_per_minute: limits that the answer names.
    """

    key: int | None = None
    kind: Literal["accepted", "refused", "ended"]
    seconds: float | None = None
    age: float = 0.0
    tokens: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class Known(Frozen):
    """What a process knows of an endpoint from before it reached this limiter.

    Attributes:
        rate: requests a second.
        closed_for: seconds for which the endpoint wants to be left alone.
        share: of the rate that this process used; None if it never had one.
    """

    rate: float | None = None
    closed_for: float = 0.0
    share: float | None = None


@message_type
class LimiterReport(Frozen):
    """What happened in a process since its last report.

    Attributes:
        client: the process.
        known: with the first report to a limiter, which forgets what it knew of the process.
        limits: that are configured here.
        asks: requests that wait from now on.
        away: with the first report: requests that are on their way.
        answers: in the order in which they came.
        dropped: requests that wait no longer.
        over: nothing waits here and nothing is on its way: answer at once.
    """

    client: str
    known: Known | None = None
    limits: Limits | None = None
    asks: tuple[Asking, ...] = ()
    away: tuple[Asking, ...] = ()
    answers: tuple[Answered, ...] = ()
    dropped: tuple[int, ...] = ()
    over: bool = False


class Granted(Frozen):
    """A request may be sent, on the limiter's clock."""

    key: int
    at: float


@message_type
class LimiterReply(Frozen):
    """What a process may send, and what is known of the endpoint.

    Attributes:
        epoch: this incarnation of the limiter.
        now: its clock.
        grants: requests that may be sent.
        rate: requests a second, of all processes together.
        closed_for: seconds for which nobody is let go.
        wait: seconds that a request which asks now waits, at least.
        share: of the rate, that the process used lately.
        free: nothing limits the endpoint any more: nobody needs to ask.
    """

    epoch: int
    now: float
    grants: tuple[Granted, ...] = ()
    rate: float | None = None
    closed_for: float = 0.0
    wait: float = 0.0
    share: float = 1.0
    free: bool = False
