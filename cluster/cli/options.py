"""Options that several commands share."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..runtime import Runtime


class Where(StrEnum):
    """Where runs happen."""

    AUTO = "auto"
    INLINE = "inline"
    LOCAL = "local"


AgentOption = Annotated[
    str, typer.Option("--agent", "-a", help="What to run, as module:name; the working directory is searched.")
]
RuntimeOption = Annotated[
    Where, typer.Option("--runtime", help="inline: this process; local: a new local Ray; auto: RAY_ADDRESS or a local Ray.")
]
AddressOption = Annotated[str | None, typer.Option("--address", help="An existing Ray cluster, for example auto or host:6379.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary; only errors.")]
VerboseOption = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Logs of Umbel; -vv also tracebacks.")]
OutFolder = Annotated[Path | None, typer.Option("--out", help="Folder for results and database (default: $UMBEL_HOME/demo).")]

_DEFAULT_SERVER = "http://127.0.0.1:8265"
ServerOption = Annotated[
    str | None,
    typer.Option("--address", help="The cluster's dashboard (default: RAY_API_SERVER_ADDRESS, or http://127.0.0.1:8265)."),
]


def server_address(given: str | None) -> str:
    """The job server that is meant."""
    return given or os.environ.get("RAY_API_SERVER_ADDRESS") or _DEFAULT_SERVER


def open_runtime(where: Where, address: str | None) -> Runtime:
    """The runtime that the options ask for; not started yet."""
    from ...protocol.errors import ConfigurationError
    from ..runtime import Runtime

    if where is not Where.AUTO and address is not None:
        raise ConfigurationError(f"--address names a cluster and --runtime {where.value} uses none; give one of them")
    if where is Where.INLINE:
        return Runtime(inline=True)
    return Runtime(address="local" if where is Where.LOCAL else address)
