"""``umbel fleet retry-failed``: run again what did not end well, and only that."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import ends_cleanly, set_up_logging
from .fleet_views import SourceArgument, StoreOption, is_file

if TYPE_CHECKING:
    from ..fleet import FleetSpec
    from ..fleet.results import TaskResult
    from ..fleet.sources import TaskSource
    from ..fleet.tasks import Task

STATUSES = ("failed", "cancelled", "invalid", "quarantined")


@ends_cleanly
def retry_failed(
    source: SourceArgument,
    *,
    file: Annotated[
        Path | None, typer.Option("--fleet", help="The fleet's YAML file (default: what the ledger says it was started from).")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Of a results file: what to run, as module:name.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Of a results file: where its tasks came from.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Only these: failed, cancelled, invalid, quarantined (default: all of them).")
    ] = None,
    error: Annotated[str | None, typer.Option(help="Only those whose error matches this regular expression.")] = None,
    store: StoreOption = None,
    runtime: options.RuntimeOption = options.Where.AUTO,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Run those tasks of a fleet again that are not ok. New results take the place of the old ones.

    \b
    Example:
      umbel fleet retry-failed triage
      umbel fleet retry-failed triage --fleet fleet.yaml --status failed --error 'rate_limit|timeout'
      umbel fleet retry-failed results.jsonl --tasks tasks.jsonl --agent my_agents:support

    \b
    Exit codes: those of umbel fleet run; 0 also when there is nothing to retry.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    import asyncio

    from ...actors.secrets import use_references
    from ..fleet import Fleet, open_results
    from ..fleet.sources import open_source
    from .fleet import show

    wanted = _wanted(status, error)
    spec = asyncio.run(_spec(source, file, agent, tasks, store))
    use_references(spec.secrets)

    async def selected() -> set[int]:
        from ..fleet.ledger import id_hash

        latest = {id_hash(result.id): wanted(result) async for result in open_results(source, store)}
        return {key for key, is_wanted in latest.items() if is_wanted}

    keys = asyncio.run(selected())
    if not keys:
        typer.echo(f"umbel: nothing of {source} is to be retried", err=True)
        return
    with options.open_runtime(runtime, address) as where:
        fleet = Fleet.from_spec(spec, runtime=where)
        job = fleet.run_until_signal(
            _only(open_source(spec.tasks), keys), resume=True, progress=not quiet, keep=False, limit=spec.limit
        )
        report = where.run_sync(job)
    show(report, as_json=as_json, quiet=quiet)
    raise typer.Exit(report.exit_code)


def _wanted(status: list[str] | None, error: str | None) -> Any:
    from ...protocol.errors import ConfigurationError

    statuses = {part for text in status or STATUSES for part in text.split(",")}
    unknown = sorted(statuses - set(STATUSES))
    if unknown:
        raise ConfigurationError(f"--status {unknown[0]}: expected one of {', '.join(STATUSES)}")
    try:
        pattern = re.compile(error or "")
    except re.error as problem:
        raise ConfigurationError(f"--error {error!r} is no regular expression: {problem}") from None

    def wanted(result: TaskResult) -> bool:
        return result.status in statuses and pattern.search(result.error or "") is not None

    return wanted


async def _spec(source: str, file: Path | None, agent: str | None, tasks: str | None, store: str | None) -> FleetSpec:
    """What to run: from its file, or as its ledger has it.

    Raises:
        ConfigurationError: neither says it.
    """
    from ...protocol.errors import ConfigurationError
    from ..fleet import FleetSpec, load_fleet

    changes = {"agent": agent, "tasks": tasks}
    if is_file(source):
        if file is None and (agent is None or tasks is None):
            raise ConfigurationError(f"{source} says nothing of tasks and agent: give --tasks and --agent, or --fleet")
        spec = FleetSpec.read({} if file is None else file, **changes, out=source)
        return spec.model_copy(update={"name": None, "store": None})
    record = await load_fleet(store, source)
    known = {key: value for key, value in record.spec.items() if key != "deadline"}  # that one is over
    if file is None and not (agent or known.get("agent")):
        raise ConfigurationError(f"the ledger of {source!r} does not say what it ran: give --fleet, or --tasks and --agent")
    return FleetSpec.read(known if file is None else file, **changes, name=source, store=store)


async def _only(source: TaskSource, keys: set[int]) -> AsyncIterator[Task]:
    """The tasks of those ids."""
    from ..fleet.ledger import id_hash
    from ..fleet.tasks import Task

    try:
        while (item := await source.next()) is not None:
            if isinstance(item, Task) and id_hash(item.id) in keys:
                yield item
        if source.error is not None:
            raise source.error
    finally:
        await source.close()
