"""``umbel jobs``: fleets that run as jobs of a Ray cluster: list them, see how they stand, read their logs, stop them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, INTERRUPTED, ends_cleanly, fail, set_up_logging

if TYPE_CHECKING:
    from ..fleet.record import FleetRecord
    from ..jobs.outcome import Standing
    from ..jobs.server import JobServer

app = typer.Typer(help="Fleets that run as jobs of a Ray cluster.", no_args_is_help=True, rich_markup_mode=None)
JobArgument = Annotated[str, typer.Argument(help="The job's id, as umbel submit printed it.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="URL of the fleet's ledger (default: the job's, or $UMBEL_HOME/fleets.sqlite).")
]
STOP_MARGIN = 30.0  # beyond the job's own grace


@app.callback()
def jobs() -> None:
    """Fleets that run as jobs of a Ray cluster."""


@app.command("list")
@ends_cleanly
def list_jobs(
    *,
    address: options.ServerOption = None,
    store: StoreOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also jobs that are no fleets.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """List the jobs of a cluster that are fleets, the newest first.

    \b
    Example:
      umbel jobs list
      umbel jobs list --json | jq -r '.jobs[] | select(.state == "running") | .job_id'
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..jobs.outcome import standing_of
    from ..jobs.server import JobServer
    from ..jobs.submission import FLEET
    from .thread_views import printable, show_json, table

    server = JobServer(options.server_address(address))
    found = server.jobs()
    records: dict[str, FleetRecord] = {}
    for url in {_store_of(job, store) for job in found}:
        records |= _records(url)
    kept = [job for job in found if everything or FLEET in (job.metadata or {}) or job.submission_id in records]
    standings = [(job, standing_of(job.submission_id, job, records)) for job in kept]
    if as_json:
        show_json({"jobs": [standing.facts() for _, standing in standings]})
        return
    rows = [
        (
            printable(standing.job_id),
            printable((job.metadata or {}).get(FLEET) or (standing.record.name if standing.record else "")),
            standing.state,
            _progress(standing.record),
        )
        for job, standing in standings
    ]
    typer.echo(table(("job", "fleet", "state", "tasks"), rows) if rows else "no fleets among the jobs of this cluster")


@app.command("status")
@ends_cleanly
def status(
    job_id: JobArgument,
    *,
    address: options.ServerOption = None,
    store: StoreOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """How a job stands, or how it ended: by the fleet's own record, whatever Ray's job table says.

    With --store it also answers when the cluster is gone.

    \b
    Example:
      umbel jobs status triage-1
      umbel jobs status triage-1 --store redis://store:6379 --json | jq .state

    \b
    Exit codes: 0 runs or ended well, 1 it failed, was stopped or lost, 2 there is no such job.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ...protocol.errors import ConfigurationError
    from ..jobs.server import JobServer
    from .thread_views import show_json

    server = None
    try:
        server = JobServer(options.server_address(address))
    except ConfigurationError as error:
        typer.echo(f"umbel: {error.message}; looking into the store only", err=True)
    standing = find_standing(server, job_id, store)
    if as_json:
        show_json(standing.facts())
    else:
        show_standing(standing)
    raise typer.Exit(FAILED if standing.exit_code else 0)


@app.command("logs")
@ends_cleanly
def logs(
    job_id: JobArgument,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    address: options.ServerOption = None,
    store: StoreOption = None,
    verbose: options.VerboseOption = 0,
) -> None:
    """What a job has written: a summary line every few seconds, warnings, and the report at its end.

    What agents and tools logged is not there but in UMBEL_HOME/logs on their nodes, as JSON lines.

    \b
    Example:
      umbel jobs logs triage-1 --follow

    \b
    Exit codes: 0, with --follow that of the fleet.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..jobs.server import JobServer

    server = JobServer(options.server_address(address))
    _known(server, job_id)
    if follow:
        raise typer.Exit(follow_job(server, job_id, store))
    typer.echo(server.logs(job_id), nl=False)


@app.command("stop")
@ends_cleanly
def stop(
    job_id: JobArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it has ended.")] = True,
    address: options.ServerOption = None,
    store: StoreOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Stop a job: no new tasks, those in flight may end or are saved, and submitting the fleet again goes on.

    \b
    Example:
      umbel jobs stop triage-1

    \b
    Exit codes: 0 it has ended, 1 it has not (yet), 2 there is no such job.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..jobs.server import JobServer
    from .thread_views import show_json

    server = JobServer(options.server_address(address))
    job = _known(server, job_id)
    if job.status.value == "PENDING":
        raise fail(
            f"job {job_id} is PENDING: it waits for its environment or for resources "
            f"({(job.message or '').strip() or 'no reason given'}), "
            "and Ray cannot stop a job before it starts; stop it then, or add the resources",
            FAILED,
        )
    server.stop(job_id)
    if wait:
        from ..job_context import STOP_WAIT

        seconds = float(((job.runtime_env or {}).get("env_vars") or {}).get(STOP_WAIT) or 3)
        asyncio.run(server.ended(job_id, seconds + STOP_MARGIN))
    standing = find_standing(server, job_id, store)
    if as_json:
        show_json(standing.facts())
    else:
        show_standing(standing)
    raise typer.Exit(0 if standing.ended or not wait else FAILED)


def find_standing(server: JobServer | None, job_id: str, store: str | None) -> Standing:
    """How a job stands, from Ray and from the store.

    Raises:
        ConfigurationError: neither knows it.
    """
    from ...protocol.errors import ConfigurationError
    from ..jobs.outcome import standing_of

    job = None if server is None else server.info(job_id)
    records = _records(_store_of(job, store))
    if job is None and job_id not in records:
        import difflib

        known = [*records, *(each.submission_id for each in (server.jobs() if server is not None else []))]
        close = difflib.get_close_matches(job_id, known, 1)
        guess = f"; did you mean {close[0]}?" if close else "; see umbel jobs list, or give the fleet's --store"
        raise ConfigurationError(f"no job is called {job_id}{guess}")
    return standing_of(job_id, job, records)


def follow_job(server: JobServer, job_id: str, store: str | None, *, err: bool = False) -> int:
    """Show the log until the job ends; the fleet's exit code. Ctrl-C leaves the job alone."""

    async def show() -> None:
        async for lines in server.tail(job_id):
            typer.echo(lines, nl=False, err=err)
        await server.ended(job_id, STOP_MARGIN)

    try:
        asyncio.run(show())
    except KeyboardInterrupt:
        raise fail(f"job {job_id} goes on; 'umbel jobs stop {job_id}' stops it", INTERRUPTED) from None
    standing = find_standing(server, job_id, store)
    typer.echo(f"umbel: {_summary(standing)}", err=True)
    return standing.exit_code or 0


def show_standing(standing: Standing) -> None:
    """One job, for people."""
    typer.echo(_summary(standing))
    if standing.message and standing.record is None:
        typer.echo(f"  Ray: {standing.message[-2000:]}")


def _summary(standing: Standing) -> str:
    from .thread_views import printable

    record = standing.record
    said = f"job {standing.job_id}: {standing.state}"
    if record is None:
        return said if standing.ray is None else f"{said} (Ray says {standing.ray}; the store has no record of it)"
    reason = f" ({printable(record.reason)})" if record.reason else ""
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(record.counts.items())) or "no results yet"
    advice = "; submit the fleet again to go on" if standing.state in ("stopped", "lost") else ""
    return f"{said}{reason}: fleet {printable(record.name)}, {_progress(record)} tasks done ({counts}){advice}"


def _progress(record: FleetRecord | None) -> str:
    if record is None:
        return ""
    return f"{record.done:,}" if record.total is None else f"{record.done:,}/{record.total:,}"


def _known(server: JobServer, job_id: str) -> Any:
    from ...protocol.errors import ConfigurationError

    job = server.info(job_id)
    if job is None:
        raise ConfigurationError(f"the cluster at {server.address} has no job {job_id}; see umbel jobs list")
    return job


def _store_of(job: Any | None, given: str | None) -> str | None:
    """The store of a job's fleet: what was given, or what its metadata says, or None for the default one."""
    from ..jobs.submission import STORE

    metadata: Mapping[str, str] = (job.metadata if job is not None else None) or {}
    return given or metadata.get(STORE) or None


def _records(store: str | None) -> dict[str, FleetRecord]:
    """The records of a store, by the id of their job."""
    from ...actors.checkpoints.url import StoreUrl
    from ..fleet.fleets import default_store, list_fleets

    if store is None and not StoreUrl.parse(default_store()).file().exists():
        return {}
    return {record.job_id: record for record in asyncio.run(list_fleets(store)) if record.job_id}
