"""Where the fleet of a spec runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.config import Topology
from ...protocol.errors import ConfigurationError
from .spec import FleetSpec

if TYPE_CHECKING:
    from ..runtime import Runtime


def runtime_of(spec: FleetSpec) -> Runtime | None:
    """The runtime that a spec asks for, not started yet; None where it leaves that to whoever runs it."""
    from ..runtime import Runtime

    if spec.runtime != "auto" and spec.address is not None:
        raise ConfigurationError(f"--address names a cluster and --runtime {spec.runtime} uses none; give one of them")
    topology = spec.topology
    if spec.limits:
        topology = Topology.model_validate({**(topology.model_dump() if topology else {}), "limits": spec.limits})
    if spec.runtime == "auto" and spec.address is None and topology is None:
        return None
    address = "local" if spec.runtime == "local" else spec.address
    return Runtime(inline=spec.runtime == "inline", address=address, topology=topology)
