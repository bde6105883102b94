"""The limiter of a model endpoint on Ray: one named actor for each endpoint and account, whatever runtime asks.

It belongs to the process that first needed it and ends with that; then the next one that needs it makes another. Meanwhile
every process goes on at its last share (``actors/agent/limits/line.py``).
"""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from typing import Any

import ray
from ray.exceptions import RayError

from ..actors.agent.limits.desk import Desk
from ..actors.agent.limits.line import Exchange
from ..protocol.codec import decode, encode
from ..protocol.limits import LimiterReply, LimiterReport
from .named_actors import NAMESPACE

PREFIX = "umbel-limiter/"
OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_concurrency": 5_000,
    "max_restarts": 0,
    "max_task_retries": 0,
    "enable_task_events": False,
}


@ray.remote
class LimiterHost:
    """One actor process with the desk of one endpoint."""

    def __init__(self) -> None:
        self._desk = Desk(time.time_ns())

    async def exchange(self, kind: str, blob: bytes) -> tuple[str, bytes]:
        """A report, answered as :meth:`Desk.exchange` does."""
        report = decode(kind, blob)
        assert isinstance(report, LimiterReport)
        return encode(await self._desk.exchange(report))


class RayExchange:
    """The way to the desk of an endpoint: found by its name, or made.

    Args:
        address: the endpoint's base URL.
        account: a digest of the account.
    """

    def __init__(self, address: str, account: str) -> None:
        self._name = limiter_name(address, account)
        self._handle: Any = None

    async def __call__(self, report: LimiterReport) -> LimiterReply:
        try:
            if self._handle is None:
                self._handle = await asyncio.to_thread(_find_or_make, self._name)
            reply = decode(*await self._handle.exchange.remote(*encode(report)))
        except (RayError, ValueError) as error:  # it died, its node is away, or its name is being given up
            self._handle = None
            raise ConnectionError(f"the limiter {self._name} does not answer: {type(error).__name__}") from None
        assert isinstance(reply, LimiterReply)
        return reply


def limiter_name(address: str, account: str) -> str:
    """Under which Ray knows the limiter of an endpoint and account; it shows neither."""
    return PREFIX + sha256(f"{address}\n{account}".encode()).hexdigest()[:24]


def connect(address: str, account: str) -> Exchange:
    """The way to an endpoint's desk, for processes of a Ray cluster. The actor is made when it is first asked."""
    return RayExchange(address, account)


def _find_or_make(name: str) -> Any:
    actor: Any = LimiterHost
    return actor.options(name=name, namespace=NAMESPACE, get_if_exists=True, **OPTIONS).remote()
