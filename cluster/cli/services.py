"""``umbel ps`` and ``umbel down``: the runtimes on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from . import options
from .ending import FAILED, ends_cleanly, fail, set_up_logging
from .node_view import NODE_COLUMNS, SHORT_ID, node_rows


@ends_cleanly
def ps(
    *,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """List the nodes of a Ray cluster and the runtimes on it: their actors, and how many runs are in progress.

    A runtime is started with Runtime(namespace="support", detached=True) to outlive its driver, and without detached=True
    for as long as its driver lives; both are listed.

    \b
    Example:
      umbel ps --address 10.0.0.1:6379
      umbel ps --json | jq -r '.runtimes[] | "\\(.namespace) \\(.runs)"'
      umbel ps --json | jq -r '.nodes[] | select(.drained_until != null).host'

    \b
    Exit codes: 0 listed, 2 no cluster answers.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..nodes import cluster_nodes
    from ..services import find_services
    from .thread_views import printable, show_json, size, table

    with connected(address):
        services, nodes = find_services(), cluster_nodes()
    if as_json:
        show_json({"runtimes": [service.facts() for service in services], "nodes": [node.facts() for node in nodes]})
        return
    typer.echo(table(NODE_COLUMNS, node_rows(nodes, services, time.time())))
    rows = [
        (
            printable(service.namespace),
            {True: "yes", False: "no", None: "?"}[service.detached],
            printable(actor.name),
            str(actor.pid or "no answer"),
            actor.node or "",
            (actor.node_id or "")[:SHORT_ID],
            "" if actor.runs is None else f"{actor.runs:,}",
            "" if actor.rss_bytes is None else size(actor.rss_bytes),
        )
        for service in services
        for actor in service.actors
    ]
    if rows:
        typer.echo()
        typer.echo(table(("runtime", "detached", "actor", "pid", "address", "node", "runs", "memory"), rows))
    else:
        typer.echo("umbel: no runtimes are on this cluster", err=True)


@ends_cleanly
def down(
    namespace: Annotated[str, typer.Argument(help='The runtime, as "umbel ps" lists it.')],
    *,
    address: options.AddressOption = None,
    force: Annotated[bool, typer.Option("--force", help="Even if runs are in progress.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """End a runtime on a Ray cluster: its actors close what they have open and are gone. Ray itself goes on.

    \b
    Example:
      umbel down support --address 10.0.0.1:6379

    \b
    Exit codes: 0 ended, 1 runs are in progress, 2 there is no such runtime or no cluster answers.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..services import end_service, find_services
    from .thread_views import show_json

    with connected(address):
        running = sum(service.runs for service in find_services(namespace))
        if running and not force:
            raise fail(f"{namespace!r} has runs in progress ({running:,}); --force ends them", FAILED)
        ended = end_service(namespace)
    if as_json:
        show_json({"namespace": namespace, "ended": ended, "runs": running})
    else:
        typer.echo(f"ended {len(ended)} actors of {namespace}")


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be a driver of an existing cluster: the given one, that of ``RAY_ADDRESS``, or the one on this machine.

    Raises:
        ConfigurationError: none answers.
    """
    from ..ray_actors import connect

    owned, _ = connect(address or os.environ.get("RAY_ADDRESS") or "auto", {})
    try:
        yield
    finally:
        if owned:
            import ray

            ray.shutdown()
