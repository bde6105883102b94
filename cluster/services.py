"""The runtimes on a Ray cluster, whoever started them: found by the names of their actors, asked how they are, ended."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from ..protocol.errors import ConfigurationError
from ..protocol.handles import RunEntry, RunsListed
from .gcs_register import forget_all
from .named_actors import named_actors

REPORT_SECONDS = 5.0
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class ServiceActor:
    """One actor of a runtime.

    Attributes:
        name: its role, pool and number.
        answers: whether it did, within a few seconds; if not, it is starting, restarting or stuck, and the rest is unknown.
        pid: its process.
        node: address of its machine.
        node_id: its node, as Ray knows it.
        runs: runs in progress, of a supervisor.
        rss_bytes: memory of its process.
    """

    name: str
    answers: bool = False
    pid: int | None = None
    node: str | None = None
    node_id: str | None = None
    runs: int | None = None
    rss_bytes: int | None = None


@dataclass(frozen=True)
class Service:
    """A runtime on a cluster.

    Attributes:
        namespace: its name.
        detached: whether it outlives the driver that started it; None when none of its actors answers.
        actors: its actors, by name.
    """

    namespace: str
    detached: bool | None
    actors: tuple[ServiceActor, ...]

    @property
    def runs(self) -> int:
        """Runs in progress, as far as its supervisors answer."""
        return sum(actor.runs or 0 for actor in self.actors)

    def facts(self) -> dict[str, Any]:
        """The same as JSON values."""
        actors = [asdict(actor) for actor in self.actors]
        return {"namespace": self.namespace, "detached": self.detached, "runs": self.runs, "actors": actors}


def find_services(namespace: str | None = None) -> list[Service]:
    """The runtimes whose actors are alive on the cluster that this process is connected to, in the order of their names.

    Args:
        namespace: only this one.
    """
    import ray

    handles = {place: handle for place, handle in named_actors().items() if namespace is None or place[0] == namespace}
    asked = {handle.report.remote(): place for place, handle in handles.items()}
    answered = ray.wait(list(asked), num_returns=len(asked), timeout=REPORT_SECONDS)[0] if asked else []
    reports = {asked[answer]: report for answer in answered if (report := _report(answer)) is not None}
    return [_service(name, handles, reports) for name in sorted({place[0] for place in handles})]


def end_service(namespace: str) -> list[str]:
    """End a runtime: its actors close what they have open, then they are killed. Blocks for some seconds at most.

    Returns:
        The names of the actors that were ended.

    Raises:
        ConfigurationError: no actor of such a runtime is alive.
    """
    import ray

    handles = {name: handle for (owner, name), handle in named_actors().items() if owner == namespace}
    if not handles:
        raise ConfigurationError(f"no runtime {namespace!r} is on this cluster; 'umbel ps' lists those that are")
    closing = [handle.close.remote() for handle in handles.values()]
    ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
    for handle in handles.values():
        ray.kill(handle)
    forget_all(namespace)
    return sorted(handles)


def find_runs(namespace: str | None = None) -> list[tuple[str, RunEntry]]:
    """The runs on this cluster that were begun with a handle, as (namespace of their runtime, run); the oldest first.

    Supervisors that do not answer within some seconds are left out.

    Args:
        namespace: only of this runtime.
    """
    import ray

    asked = {
        handle.runs.remote(): owner
        for (owner, name), handle in named_actors().items()
        if namespace in {None, owner} and name.startswith("supervisor/")
    }
    answered = ray.wait(list(asked), num_returns=len(asked), timeout=REPORT_SECONDS)[0] if asked else []
    found: list[tuple[str, RunEntry]] = []
    for answer in answered:
        with contextlib.suppress(ray.exceptions.RayError):  # it died, or is being restarted
            listed = RunsListed.model_validate_json(ray.get(answer))
            found += [(asked[answer], entry) for entry in listed.runs]
    return sorted(found, key=lambda place: -place[1].seconds)


def _report(answer: Any) -> dict[str, Any] | None:
    import ray

    try:
        return dict(json.loads(ray.get(answer)))
    except ray.exceptions.RayError:  # it died, or is being restarted
        return None


def _service(namespace: str, handles: dict[tuple[str, str], Any], reports: dict[tuple[str, str], dict[str, Any]]) -> Service:
    actors, detached = [], None
    for place in sorted(place for place in handles if place[0] == namespace):
        report = reports.get(place)
        if report is None:
            actors.append(ServiceActor(place[1]))
            continue
        stats = report["stats"]
        detached = bool(stats["detached"])
        runs = int(stats["runs"]) if place[1].startswith("supervisor/") else None
        facts = {"pid": report["pid"], "node": stats["node"], "node_id": stats.get("node_id"), "runs": runs}
        actors.append(ServiceActor(place[1], answers=True, rss_bytes=report["rss_bytes"], **facts))
    return Service(namespace, detached, tuple(actors))
