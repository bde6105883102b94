"""``umbel attach``, ``umbel runs`` and ``umbel cancel``: runs that go on without the program that began them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, INTERRUPTED, OK, USAGE, ends_cleanly, fail, set_up_logging
from .result_view import EventView, show_result
from .services import connected

if TYPE_CHECKING:
    from ...actors.run_handle import RunHandle
    from ..runtime import Runtime

RunArgument = Annotated[str, typer.Argument(help='The run, as "umbel runs" lists it.', metavar="RUN")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", help="Look only in this runtime.")]


@ends_cleanly
def runs(
    *,
    namespace: NamespaceOption = None,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """List the runs on a Ray cluster that were begun with a handle (agent.start): in progress, and lately ended.

    \b
    Example:
      umbel runs --address 10.0.0.1:6379
      umbel runs --json | jq -r '.runs[] | select(.status == "running") | .run_id'

    \b
    Exit codes: 0 listed, 2 no cluster answers.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..services import find_runs
    from .thread_views import printable, show_json, table

    with connected(address):
        found = find_runs(namespace)
    if as_json:
        show_json({"runs": [{"namespace": owner, **entry.model_dump(mode="json")} for owner, entry in found]})
        return
    rows = [
        (
            printable(entry.run_id),
            entry.status,
            printable(owner),
            printable(entry.thread_id or ""),
            printable(entry.agent_name or ""),
            f"{entry.seconds:,.0f}",
            f"{entry.next_seq:,}",
        )
        for owner, entry in found
    ]
    if rows:
        typer.echo(table(("run", "status", "runtime", "thread", "agent", "seconds", "events"), rows))
    else:
        typer.echo("umbel: no runs were begun with a handle on this cluster", err=True)


@ends_cleanly
def attach(
    run: RunArgument,
    *,
    first: Annotated[
        int | None, typer.Option("--from", min=0, help="Number of the first event to show (default: the oldest kept).")
    ] = None,
    namespace: NamespaceOption = None,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Follow a run of a detached runtime: its events as they come, then its result. Ctrl-C leaves it alone.

    With --json every event is one line of JSON, and the result is the last line.

    \b
    Example:
      umbel attach 5f0c0a3e6f6d4f0f8e7b --address 10.0.0.1:6379
      umbel attach 5f0c0a3e6f6d4f0f8e7b --from 120 --json | jq -r .event_type

    \b
    Exit codes: 0 the run succeeded, 1 it did not, 2 there is no such run or no cluster answers, 130 Ctrl-C.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    with connected(address), joined(run, namespace) as place:
        handle = place.attach_sync(run, after_seq=None if first is None else first - 1)
        try:
            succeeded = place.run_sync(follow(handle, as_json=as_json))
        except KeyboardInterrupt:
            where = "" if address is None else f" --address {address}"
            rest = "" if handle.seq is None else f" --from {handle.seq + 1}"
            hint = f"read on: umbel attach {run}{rest}{where}; stop it: umbel cancel {run}{where}"
            raise fail(f"the run goes on; {hint}", INTERRUPTED) from None
    raise typer.Exit(OK if succeeded else FAILED)


@ends_cleanly
def cancel(
    run: RunArgument,
    *,
    namespace: NamespaceOption = None,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Stop a run of a detached runtime. What it has done until then stays in its thread.

    \b
    Example:
      umbel cancel 5f0c0a3e6f6d4f0f8e7b --address 10.0.0.1:6379

    \b
    Exit codes: 0 it was told to stop, 1 it was over already, 2 there is no such run or no cluster answers.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from .thread_views import show_json

    with connected(address), joined(run, namespace) as place:
        told = place.attach_sync(run).cancel_sync()
    if as_json:
        show_json({"run_id": run, "cancelled": told})
    elif told:
        typer.echo(f"run {run} was told to stop")
    if not told:
        raise fail(f"run {run} is over already", FAILED)


async def follow(handle: RunHandle, *, as_json: bool) -> bool:
    """Show a run's events and result; whether it succeeded."""
    view = EventView(as_json=as_json)
    async for event in handle.events():
        view.show(event)
    result: Any = await handle.result()
    show_result(result, as_json=as_json, shown=view.streamed)
    return bool(result.success)


def joined(run: str, namespace: str | None) -> Runtime:
    """The detached runtime that knows a run, on the cluster that this process is connected to.

    Raises:
        typer.Exit: no runtime knows it, or the one that does ends with its program, which alone can attach.
    """
    from ..runtime import Runtime
    from ..services import find_runs, find_services

    owners = [owner for owner, entry in find_runs(namespace) if entry.run_id == run]
    if not owners:
        where = "on this cluster" if namespace is None else f"in {namespace!r}"
        raise fail(f"no run {run} is known {where}; 'umbel runs' lists those that are", USAGE)
    [service] = find_services(owners[0])
    if not service.detached:
        raise fail(f"run {run} belongs to {owners[0]!r}, which is not detached: only its own program can attach", USAGE)
    return Runtime(namespace=owners[0], detached=True)
