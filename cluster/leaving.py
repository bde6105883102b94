"""Send a node away in good order: mark it as drained, and wait until its actors have moved and it is gone.

Nothing here joins the cluster: a process on the node that asked for it would go down with it.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol.errors import ConfigurationError

ASK_SECONDS = 10.0
LOOK_SECONDS = 0.5
REASON = "DRAIN_NODE_REASON_PREEMPTION"  # also a node that is in use; of an idle one Ray would ask first


def control_store(address: str) -> Any:
    """A client of a cluster's control store.

    Raises:
        ConfigurationError: none answers.
    """
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        where = canonicalize_bootstrap_address(address)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{address!r} is not the address of a cluster: {error}") from None
    if where is None:
        raise ConfigurationError("no Ray cluster is on this machine: give --address HOST:PORT")
    try:
        client = GcsClient(address=where)
        client.get_all_node_info(timeout=ASK_SECONDS)
    except Exception as error:  # noqa: BLE001 - Ray has no type for it
        raise ConfigurationError(f"no Ray cluster answers at {where!r}: {error}") from None
    return client


def living(client: Any) -> dict[str, str]:
    """The addresses of the nodes that are alive, by node id."""
    from ray.core.generated import gcs_pb2

    known = client.get_all_node_info(timeout=ASK_SECONDS)
    alive = gcs_pb2.GcsNodeInfo.ALIVE  # type: ignore[attr-defined]
    return {identity.hex(): str(info.node_manager_address) for identity, info in known.items() if info.state == alive}


def chosen(nodes: Mapping[str, str], wanted: str | None, own: str) -> str:
    """The id of the node that is meant: by the beginning of its id or its address, or the one on this machine.

    Raises:
        ConfigurationError: none, or more than one.
    """
    text = wanted or own
    by_address = text == own or _is_address(text)
    found = [node for node, address in nodes.items() if (address == text if by_address else node.startswith(text))]
    if len(found) != 1:
        what = "no node" if not found else f"{len(found)} nodes"
        raise ConfigurationError(f"{what} {text!r}: 'umbel ps' lists them; give the first letters of one's id")
    return found[0]


def drain(client: Any, node: str, seconds: float, why: str) -> None:
    """Mark a node as one that will be gone after so many seconds. Its actors hand over and move; see ``node_drain.py``.

    Raises:
        ConfigurationError: the cluster refuses.
    """
    from ray.core.generated import autoscaler_pb2

    deadline = int((time.time() + seconds) * 1e3)
    reason = autoscaler_pb2.DrainNodeReason.Value(REASON)  # type: ignore[attr-defined]
    accepted, refusal = client.drain_node(node, reason, why, deadline)
    if not accepted:
        raise ConfigurationError(f"the cluster does not drain node {node[:8]}: {refusal}")


def wait_gone(client: Any, node: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> bool:
    """Wait until a node has left; whether it has within so many seconds."""
    deadline = clock() + seconds
    while node in living(client):
        if clock() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
