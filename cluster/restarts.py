"""Restart intensity: an actor that dies again and again is given up, so that nobody waits for it for ever.

Ray restarts an actor that died, without end. That is right for a machine that failed, and wrong for an actor that cannot
live: one whose memory limit is too low, whose library crashes as it is loaded, which a poison task kills. A thread
counts the restarts of every actor of a runtime; one that exceeds the limit is killed for good, whereupon Ray tells
everybody who waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..protocol.errors import RestartsExceeded
from .named_actors import named_actors

logger = logging.getLogger("umbel.runtime")
LOOK_SECONDS = 0.5
NAMES_SECONDS = 10.0
_REASON_CHARS = 300


class Intensity:
    """At most so many restarts within so many seconds.

    Args:
        most: restarts that are still fine.
        seconds: length of the window.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self._seen: dict[str, int] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}

    def begin(self, name: str, restarts: int) -> None:
        """An actor that is older than this count has been restarted ``restarts`` times before it."""
        self._seen[name] = restarts

    def exceeded(self, name: str, restarts: int, now: float) -> bool:
        """Take in that an actor has been restarted ``restarts`` times in its life; whether that was too often lately.

        Args:
            name: the actor's.
            restarts: so far.
            now: seconds, of any clock that only goes forward.
        """
        fresh = restarts - self._seen.get(name, 0)
        self._seen[name] = restarts
        recent = self._recent.setdefault(name, deque())
        if fresh > 0:
            recent.append((now, fresh))
        while recent and now - recent[0][0] > self.seconds:
            recent.popleft()
        return sum(count for _, count in recent) > self.most


class RestartWatch:
    """Looks after a runtime's actors from a thread of its own.

    Args:
        actors: their handles by name, as of now.
        intensity: how often each may be restarted.
        clock: seconds, only going forward.
        give_up: told what is wrong with an actor, before it is killed for good.
    """

    def __init__(
        self,
        actors: Callable[[], Mapping[str, Any]],
        intensity: Intensity,
        clock: Callable[[], float],
        give_up: Callable[[str, RestartsExceeded], None],
    ) -> None:
        self._actors = actors
        self._intensity = intensity
        self._clock = clock
        self._give_up = give_up
        self._given_up: dict[str, Any] = {}
        self._pids: dict[str, set[int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="umbel-restarts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join(5 * LOOK_SECONDS)

    def _watch(self) -> None:
        fails = False
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._look()
                fails = False
            except Exception as error:  # noqa: BLE001 - what is asked is not a public part of Ray: runs must go on without it
                if not fails and not self._over.is_set():
                    what = "the restarts of actors are not watched for now"
                    logger.warning("%s, and it is tried again: %s: %s", what, type(error).__name__, error)
                fails = True  # as while the cluster's head is away

    def _look(self) -> None:
        for name, handle in self._actors().items():
            if self._given_up.get(name) is handle or self._over.is_set():
                continue
            restarts, pid = restarts_of(handle)
            self._pids.setdefault(name, set()).add(pid)
            if self._intensity.exceeded(name, restarts, self._clock()):
                self._given_up[name] = handle
                self._end(name, handle)

    def _end(self, name: str, handle: Any) -> None:
        import ray

        error = too_often(name, self._intensity, last_words(self._pids[name]))
        logger.error(error.message)
        self._give_up(name, error)
        ray.kill(handle)


def watch_over(namespace: str, intensity: Intensity) -> RestartWatch:
    """Count the restarts of a runtime's actors inside it, for those that live on without a driver.

    An actor that is given up is gone; the next driver that joins starts another.

    Args:
        namespace: of the runtime, whose actors are found by their names.
        intensity: how often each may be restarted.
    """
    known: dict[str, Any] = {}
    due = 0.0

    def actors() -> dict[str, Any]:
        nonlocal due
        if time.monotonic() >= due:  # names change seldom, and asking for them costs a call each
            due = time.monotonic() + NAMES_SECONDS
            for (_, name), handle in named_actors(namespace).items():
                if name not in known or known[name]._actor_id != handle._actor_id:
                    intensity.begin(name, restarts_of(handle)[0])
                    known[name] = handle
        return known

    return RestartWatch(actors, intensity, time.monotonic, lambda name, error: None)


def too_often(name: str, intensity: Intensity, reason: str) -> RestartsExceeded:
    """The error about an actor that was given up."""
    return RestartsExceeded(
        f"{name} was given up: it died more than {intensity.most} times within {intensity.seconds:g} s, the last time: "
        f"{reason}. Mend what kills it (the log files of the actors may say more), or allow more: "
        f"Topology(max_restarts=..., restart_window_seconds=...)",
        peer=name,
        restarts=intensity.most + 1,
        seconds=intensity.seconds,
        reason=reason,
    )


def restarts_of(handle: Any) -> tuple[int, int]:
    """How often Ray has restarted an actor, and the process id it last had."""
    from ray._private.state import state
    from ray.core.generated import gcs_pb2  # its classes are made when it is imported

    raw = state._connect_and_get_accessor().get_actor_info(handle._actor_id)
    if raw is None:
        return 0, 0
    record = gcs_pb2.ActorTableData.FromString(raw)  # type: ignore[attr-defined]
    return record.num_restarts, record.pid


def is_dead(handle: Any) -> bool:
    """Whether an actor is gone for good.

    An ``ActorDiedError`` does not say so: Ray also raises it to who asks at the moment at which a drained node ends, while
    the actor is being started on another.
    """
    from ray._private.state import state
    from ray.core.generated import gcs_pb2

    raw = state._connect_and_get_accessor().get_actor_info(handle._actor_id)
    dead = gcs_pb2.ActorTableData.DEAD  # type: ignore[attr-defined]
    return raw is None or gcs_pb2.ActorTableData.FromString(raw).state == dead  # type: ignore[attr-defined]


def last_words(pids: Collection[int]) -> str:
    """How the newest of these processes that ended did so, as far as Ray saw it."""
    from ray._private.state import state
    from ray.core.generated import gcs_pb2

    accessor, parse = state._connect_and_get_accessor(), gcs_pb2.WorkerTableData.FromString  # type: ignore[attr-defined]
    known = [parse(raw) for raw in accessor.get_worker_table()]
    ended = [record for record in known if record.pid in pids and record.exit_detail]
    if not ended:
        return "unknown"
    last = max(ended, key=lambda record: record.end_time_ms)
    detail = " ".join(last.exit_detail.split()).removesuffix(".").split(" Some common causes")[0]
    return f"process {last.pid}: {detail[:_REASON_CHARS]}"
