"""What ``umbel doctor --address`` looks at: a cluster, asked on every one of its nodes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..nodes import ClusterNode, cluster_nodes
from .check import Check, umbel_home

PROBE_SECONDS = 60.0
STORE_SECONDS = 15.0
CLOCK_SECONDS = 1.0  # by how much clocks may differ: leases and deadlines are counted in seconds
DISK_BYTES = 2**30
SLOW_MS = 20_000  # a node that hangs should be noticed within this time
HEALTH = "RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3"
DEFAULTS = {"period_ms": 3_000, "timeout_ms": 10_000, "failure_threshold": 5}  # of Ray 2.60
PREFIX = "RAY_health_check_"
OWN_DISK = ("sqlite", "file")
Facts = Mapping[str, Any]


def examine_cluster(address: str, store: str | None) -> Iterator[Check]:
    """Every check of a cluster, one by one.

    Args:
        address: of the cluster.
        store: URL of the agents' store; None is the default one.

    Raises:
        ConfigurationError: no cluster answers there.
    """
    from ...actors.checkpoints import default_url, resolve_url
    from .services import connected

    with connected(address):
        nodes = cluster_nodes()
        yield nodes_check(nodes)
        url = resolve_url(store or default_url())
        asked = time.time()
        found = probes(nodes, url)
        known = {node: facts for node, facts in found.items() if "error" not in facts}
        yield answer_check(nodes, found)
        yield versions_check(known.values(), own_versions())
        yield clocks_check(known, asked, time.time())
        yield disks_check(known)
        yield niceness_check(known)
        yield health_check(known)
        yield token_check(nodes)
        yield store_check(url, nodes, known)


def probes(nodes: Sequence[ClusterNode], url: str) -> dict[str, Facts]:
    """What a task on each node finds there, by the node's address and id; ``error`` where none could run."""
    import ray

    probe: Any = ray.remote(num_cpus=0, max_retries=0)(look_around)
    names = [f"{node.address} ({node.node_id[:8]})" for node in nodes]
    asked = [probe.options(label_selector={"ray.io/node-id": node.node_id}).remote(url) for node in nodes]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=PROBE_SECONDS)
    found: dict[str, Facts] = {}
    for name, answer in zip(names, asked, strict=True):
        if answer not in answered:
            found[name] = {"error": f"no answer within {PROBE_SECONDS:g} s"}
            continue
        try:
            found[name] = ray.get(answer)
        except ray.exceptions.RayError as error:
            found[name] = {"error": str(error).strip().splitlines()[-1][:200]}
    return found


def look_around(url: str) -> dict[str, Any]:
    """Runs on a node: what is there."""
    home = umbel_home()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    return {
        **own_versions(),
        "time": time.time(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "free": {str(home): shutil.disk_usage(existing).free, "/tmp": shutil.disk_usage("/tmp").free},  # noqa: S108 - Ray's
        "store": reach(url),
        "health": head_settings(),
    }


def own_versions() -> dict[str, str]:
    """Of what must be equal everywhere."""
    import ray

    from ... import __version__

    return {"ray": ray.__version__, "python": ".".join(map(str, sys.version_info[:3])), "umbel": __version__}


def reach(url: str) -> str:
    """Open the store from here; what is wrong, or nothing."""
    from ...actors.checkpoints import open_store
    from ...protocol.errors import UmbelError

    if url.partition(":")[0] in OWN_DISK:
        return ""

    async def attempt() -> None:
        store = open_store(url)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await store.open()
        finally:
            await store.close()

    try:
        asyncio.run(attempt())
    except TimeoutError:
        return f"no answer within {STORE_SECONDS:g} s"
    except UmbelError as error:
        return error.message
    return ""


def head_settings() -> dict[str, str] | None:
    """How the control store on this node checks the others; None where there is none, or it cannot be looked at."""
    import psutil

    for process in psutil.process_iter(["name"]):
        if "gcs_server" in (process.info["name"] or ""):
            try:
                return {name: value for name, value in process.environ().items() if name.startswith(PREFIX)}
            except psutil.Error:
                continue
    return None


def nodes_check(nodes: Sequence[ClusterNode]) -> Check:
    """How many there are, and whether some are about to go."""
    machines = len({node.address for node in nodes})
    detail = f"{len(nodes)} on {machines} machine{'s' if machines > 1 else ''}"
    leaving = [node.address for node in nodes if node.drained_until is not None]
    if leaving:
        return Check("nodes", "warn", f"{detail}; drained: {', '.join(leaving)}", "their actors move; see 'umbel ps'")
    return Check("nodes", "ok", detail)


def answer_check(nodes: Sequence[ClusterNode], found: Mapping[str, Facts]) -> Check:
    """Whether a task ran on each."""
    wrong = [f"{name}: {facts['error']}" for name, facts in found.items() if "error" in facts]
    if wrong:
        return Check("probe", "fail", "; ".join(wrong), "is umbel installed there, and has the node room for a process?")
    return Check("probe", "ok", f"a task ran on each of {len(nodes)} nodes")


def versions_check(known: Any, own: Mapping[str, str]) -> Check:
    """Whether Ray, Python and Umbel are the same everywhere, and here."""
    kinds = {name: sorted({own[name], *(str(facts[name]) for facts in known)}) for name in own}
    mixed = [f"{name} {' and '.join(versions)}" for name, versions in kinds.items() if len(versions) > 1]
    if mixed:
        return Check("versions", "fail", ", ".join(mixed), "use one image, or one lock file, on every node and here")
    return Check("versions", "ok", ", ".join(f"{name} {versions[0]}" for name, versions in kinds.items()))


def clocks_check(known: Mapping[str, Facts], asked: float, answered: float) -> Check:
    """Whether the clocks agree with this machine's: each was read between the question and the answer."""
    off = {name: max(asked - facts["time"], facts["time"] - answered, 0.0) for name, facts in known.items()}
    wrong = [f"{name} is off by {seconds:.1f} s" for name, seconds in off.items() if seconds > CLOCK_SECONDS]
    if wrong:
        return Check("clocks", "warn", "; ".join(wrong), "run a time service (chrony): leases and deadlines count on it")
    return Check("clocks", "ok", "agree within what the question took")


def disks_check(known: Mapping[str, Facts]) -> Check:
    """Whether there is room for Ray's files and ours."""
    short = [
        f"{name}: {free / 2**20:.0f} MiB at {folder}"
        for name, facts in known.items()
        for folder, free in facts["free"].items()
        if free < DISK_BYTES
    ]
    if short:
        return Check("disks", "warn", "; ".join(short), "Ray spills and logs there, Umbel logs there: free some")
    return Check("disks", "ok", "1 GiB or more is free on every node")


def niceness_check(known: Mapping[str, Facts]) -> Check:
    """Whether Ray gives its workers the priority that other processes have."""
    nice = [name for name, facts in known.items() if facts["niceness"] > 0]
    if nice:
        what = f"workers on {', '.join(nice)} yield to every other process"
        return Check("priority", "warn", what, "set RAY_worker_niceness=0 where Ray is started (its default is 15)")
    return Check("priority", "ok", "workers have the normal priority")


def health_check(known: Mapping[str, Facts]) -> Check:
    """How long the head waits for a node that hangs."""
    settings = next((facts["health"] for facts in known.values() if facts["health"] is not None), None)
    if settings is None:
        return Check("health checks", "warn", "cannot be read", f"see that the head has {HEALTH}")
    having = {name: int(settings.get(PREFIX + name, default)) for name, default in DEFAULTS.items()}
    longest = (having["period_ms"] + having["timeout_ms"]) * having["failure_threshold"]
    detail = f"a node that hangs is noticed after about {longest / 1e3:.0f} s at most"
    if longest > SLOW_MS:
        return Check("health checks", "warn", detail, f"on the head, before it is started: {HEALTH}")
    return Check("health checks", "ok", detail)


def token_check(nodes: Sequence[ClusterNode]) -> Check:
    """Whether who reaches the cluster's ports can use it."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    if is_token_auth_enabled():
        return Check("token", "ok", "the cluster asks for one")
    several = len({node.address for node in nodes}) > 1
    remedy = "RAY_AUTH_MODE=token on every node (ray get-auth-token --generate): who reaches its ports can run code"
    return Check("token", "warn" if several else "ok", "the cluster asks for none", remedy if several else "")


def store_check(url: str, nodes: Sequence[ClusterNode], known: Mapping[str, Facts]) -> Check:
    """Whether the store is reached from every node, and outlives each."""
    scheme = url.partition(":")[0]
    if scheme in OWN_DISK and len({node.address for node in nodes}) > 1:
        what = f"{scheme} is a file on the node of the checkpointer, and lost with it"
        return Check("store", "warn", what, "use redis://, postgresql:// or s3:// (--store) on several machines")
    wrong = [f"{name}: {facts['store']}" for name, facts in known.items() if facts["store"]]
    if wrong:
        return Check("store", "fail", "; ".join(wrong), "open the network from every node to the store")
    return Check("store", "ok", f"{scheme} is reached from every node")
