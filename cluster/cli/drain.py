"""``umbel drain``: send a node of a cluster away in good order."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from . import options
from .ending import FAILED, ends_cleanly, fail, set_up_logging


@ends_cleanly
def drain(
    node: Annotated[
        str | None, typer.Argument(help='First letters of its id, as "umbel ps" lists it, or its address (default: this one).')
    ] = None,
    *,
    address: options.AddressOption = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="When the node will be switched off.")] = 60.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has left the cluster.")] = True,
    reason: Annotated[str, typer.Option("--reason", help="Why; Ray keeps it with the node.")] = "umbel drain",
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Send a node away: its actors finish what is under way and move to other nodes, then Ray on it ends.

    Durable runs go on elsewhere from their next boundary, nothing is done twice. What has not come to an end after four
    fifths of the time is broken off as if the node were lost. The head cannot be drained.

    \b
    Example:
      umbel drain 3f2a9c01 --address 10.0.0.1:6379 --seconds 120
      umbel drain --seconds 100      # on the node itself, before it is switched off

    \b
    Exit codes: 0 gone (with --no-wait: marked), 1 still there after its time, 2 there is no such node or cluster.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ray.util import get_node_ip_address

    from ..leaving import chosen, control_store, drain as send_away, living, wait_gone
    from .thread_views import show_json

    client = control_store(address or os.environ.get("RAY_ADDRESS") or "auto")
    leaving = chosen(living(client), node, str(get_node_ip_address()))  # type: ignore[no-untyped-call]  # of Ray
    send_away(client, leaving, seconds, reason)
    if wait and not wait_gone(client, leaving, seconds):
        raise fail(f"node {leaving[:8]} is still there after {seconds:g} s", FAILED)
    if as_json:
        show_json({"node": leaving, "gone": wait})
    else:
        typer.echo(f"node {leaving[:8]} is {'gone' if wait else 'drained'}")
