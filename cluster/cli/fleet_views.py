"""``umbel fleet status | report | diff | rm``: fleets that run or have run, by their ledger or their results file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from ..fleet.record import FleetRecord
    from ..fleet.statistics import Difference, Statistics

StoreOption = Annotated[
    str | None, typer.Option("--store", help="URL of the store of fleets (default: $UMBEL_HOME/fleets.sqlite).")
]
SourceArgument = Annotated[str, typer.Argument(help="A fleet's name, or a results file (.jsonl, .parquet).")]
WATCH_SECONDS = 2.0
_SHOWN_CHANGES = 20


@ends_cleanly
def status(
    name: Annotated[str | None, typer.Argument(help="A fleet's name; without one, all of the store.")] = None,
    *,
    store: StoreOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Every two seconds, until nothing runs any more.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Where fleets stand: state, tasks done, rate, spend. Also of fleets that run elsewhere, and of jobs.

    A fleet whose process ended without a word is lost; running it again goes on with it.

    \b
    Example:
      umbel fleet status
      umbel fleet status triage --watch
      umbel fleet status --json | jq -r '.fleets[] | "\\(.name) \\(.state)"'

    \b
    Exit codes: 0 shown, 2 there is no such fleet.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from .thread_views import show_json

    while True:
        records = _load(store, name)
        if as_json:
            show_json({"fleets": [_facts(record) for record in records]})
        else:
            typer.echo(_table(records) if records else "no fleets in this store")
        if not watch or not any(record.liveness in ("running", "draining") for record in records):
            return
        time.sleep(WATCH_SECONDS)


@ends_cleanly
def report(
    source: SourceArgument,
    *,
    store: StoreOption = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Also write the newest results to this .jsonl or .parquet file.")
    ] = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """What the results of a fleet say: counts, durations, spend, failures by kind with examples, the slowest tasks.

    \b
    Example:
      umbel fleet report triage
      umbel fleet report triage --export results.parquet
      umbel fleet report results.jsonl --json | jq '.errors[0]'

    \b
    Exit codes: 0 reported, 2 there is no such fleet or file.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..fleet.fleets import load_fleet, open_results
    from ..fleet.statistics import Statistics
    from .thread_views import show_json

    async def read() -> tuple[Statistics, FleetRecord | None]:
        statistics = await Statistics.of(open_results(source, store))
        return statistics, None if is_file(source) else await load_fleet(store, source)

    statistics, record = asyncio.run(read())
    if export is not None:
        _export(source, store, export)
    if as_json:
        show_json(
            {
                **statistics.facts(),
                "fleet": None if record is None else _facts(record),
                "export": str(export) if export else None,
            }
        )
    else:
        typer.echo(_report_text(source, statistics, record))
        if export is not None:
            typer.echo(f"results: {export}")


@ends_cleanly
def diff(
    before: SourceArgument,
    after: SourceArgument,
    *,
    store: StoreOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """What changed from one fleet to another: tasks with another status or answer, and the difference in spend and time.

    \b
    Example:
      umbel fleet diff triage-gpt triage-llama
      umbel fleet diff yesterday.jsonl today.jsonl --json | jq '.changes | length'

    \b
    Exit codes: 0 every task ended the same way, 1 some did not, 2 there is no such fleet or file.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..fleet.fleets import open_results
    from ..fleet.statistics import Difference
    from .thread_views import show_json

    difference = asyncio.run(Difference.between(open_results(before, store), open_results(after, store)))
    if as_json:
        show_json(difference.facts())
    else:
        typer.echo(_difference_text(difference))
    raise typer.Exit(FAILED if difference.changes else 0)


@ends_cleanly
def rm(
    names: Annotated[list[str], typer.Argument(help="The fleets' names.")],
    *,
    store: StoreOption = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Delete fleets from their store: results and record. Files that they wrote, and threads of their runs, stay.

    \b
    Example:
      umbel fleet rm triage

    \b
    Exit codes: 0 deleted, 1 one of them was not there, 2 one of them runs.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ..fleet.fleets import delete_fleet
    from .thread_views import printable, show_json

    async def delete() -> dict[str, bool]:
        return {name: await delete_fleet(store, name) for name in names}

    deleted = asyncio.run(delete())
    if as_json:
        show_json({"deleted": deleted})
    for name, existed in deleted.items() if not as_json else ():
        typer.echo(f"{printable(name)}: {'deleted' if existed else 'there is no such fleet'}")
    raise typer.Exit(0 if all(deleted.values()) else FAILED)


def _load(store: str | None, name: str | None) -> list[FleetRecord]:
    from ..fleet.fleets import list_fleets, load_fleet

    async def load() -> list[FleetRecord]:
        return await list_fleets(store) if name is None else [await load_fleet(store, name)]

    return asyncio.run(load())


def is_file(source: str) -> bool:
    """Whether results are in a file of that name, and not in a store."""
    return Path(source).suffix in {".jsonl", ".parquet"}


def _export(source: str, store: str | None, path: Path) -> None:
    from ...protocol.errors import ConfigurationError
    from ..fleet.fleets import export

    if is_file(source):
        raise ConfigurationError(f"--export writes the results of a fleet; {source} is a file of results already")
    asyncio.run(export(store, source, path))


def _facts(record: FleetRecord) -> dict[str, Any]:
    facts = record.model_dump(mode="json", exclude={"owner"})
    return {**facts, "state": record.liveness, "done": record.done, "rate": _rate(record)}


def _rate(record: FleetRecord) -> float | None:
    return record.done / record.seconds if record.seconds > 0 else None


def _table(records: list[FleetRecord]) -> str:
    from .thread_views import moment, printable, table

    rows = []
    for record in sorted(records, key=lambda each: -each.updated_at):
        rate = _rate(record)
        rows.append(
            (
                printable(record.name),
                printable(record.liveness + (f" ({record.reason})" if record.reason else "")),
                f"{record.done:,}" + ("" if record.total is None else f"/{record.total:,}"),
                ", ".join(f"{count:,} {what}" for what, count in sorted(record.counts.items()) if what != "ok"),
                "" if rate is None else f"{rate:,.1f}/s",
                f"{record.tokens:,}",
                "" if record.cost_usd is None else f"${record.cost_usd:,.4f}",
                moment(record.updated_at),
                printable(record.job_id or f"{record.host}/{record.pid}"),
            )
        )
    return table(("fleet", "state", "tasks", "not ok", "rate", "tokens", "cost", "seen", "job or process"), rows)


def _report_text(source: str, statistics: Statistics, record: FleetRecord | None) -> str:
    from .thread_views import printable

    counts = ", ".join(f"{count:,} {status}" for status, count in statistics.counts.most_common()) or "no results"
    cost = "" if statistics.cost_usd is None else f", ${statistics.cost_usd:,.4f}"
    lines = [f"{printable(source)}: {statistics.total:,} tasks, {counts}; {statistics.tokens:,} tokens{cost}"]
    if record is not None:
        rate = _rate(record)
        said = "" if rate is None else f", {rate:,.1f} tasks/s over {record.seconds:,.0f} s"
        lines.append(
            f"  {record.liveness}, {record.sessions} session{'s' * (record.sessions != 1)}{said}, {record.retries:,} retries"
        )
    percentiles = statistics.percentiles()
    if percentiles:
        lines.append("  seconds a task: " + ", ".join(f"{name} {seconds:,.3f}" for name, seconds in percentiles.items()))
    groups = statistics.errors()
    if groups:
        lines.append("failures:")
    for group in groups[:10]:
        lines.append(f"  {group.count:,} {group.status}: {printable(group.error[:200])}")
        lines.append(f"      for example {printable(', '.join(group.examples))}")
    if len(groups) > 10:
        lines.append(f"  and {len(groups) - 10:,} other kinds (--json lists them)")
    slowest = statistics.slowest()[:5]
    if slowest:
        lines.append("slowest: " + ", ".join(f"{printable(task_id)} ({seconds:,.3f} s)" for task_id, seconds in slowest))
    return "\n".join(lines)


def _difference_text(difference: Difference) -> str:
    from .thread_views import printable

    kinds = {kind: list(difference.of_kind(kind)) for kind in ("status", "answer", "added", "removed")}
    counts = ", ".join(f"{len(changes):,} {kind}" for kind, changes in kinds.items() if changes)
    lines = [f"{difference.same:,} the same; changed: {counts or 'nothing'}"]
    for kind, changes in kinds.items():
        lines += [
            f"  {kind} {printable(change.id)}: {change.before or 'not there'} -> {change.after or 'not there'}"
            for change in changes[:_SHOWN_CHANGES]
        ]
        if len(changes) > _SHOWN_CHANGES:
            lines.append(f"  {kind}: and {len(changes) - _SHOWN_CHANGES:,} more")
    for label, (first, second), form in (
        ("cost", difference.cost_usd, "${:,.4f}"),
        ("tokens", difference.tokens, "{:,}"),
        ("task seconds", difference.seconds, "{:,.1f}"),
    ):
        lines.append(f"{label}: {form.format(first)} -> {form.format(second)}{_percent(first, second)}")
    return "\n".join(lines)


def _percent(first: float, second: float) -> str:
    return f" ({(second - first) / first:+.0%})" if first else ""
