"""``umbel demo``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .check import umbel_home
from .ending import ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from rich.table import Table

    from ..demo import Finding, Summary
    from ..fleet import FleetReport


@ends_cleanly
def demo(
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="Review only that many modules.")] = None,
    out: options.OutFolder = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Reviews in flight at once.")] = 64,
    runtime: options.RuntimeOption = options.Where.AUTO,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Review every module of Python's standard library with a fleet of agents, offline.

    Agents run on Ray, their tools read and measure the files in worker processes, conversations are checkpointed to
    SQLite. The model is a set of fixed rules that needs no key. Takes under a minute on two cores.

    \b
    Example:
      umbel demo
      umbel demo --limit 20 --runtime inline --out /tmp/demo
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ..demo import build_reviewer, review_tasks, summarise
    from ..fleet import Fleet

    folder = (out or umbel_home() / "demo").expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results, database = folder / "results.jsonl", folder / "conversations.sqlite"
    agent = build_reviewer(f"sqlite:///{database}")
    with options.open_runtime(runtime, address) as where:
        fleet = Fleet(agent, concurrency=concurrency, threads=f"demo-{time.strftime('%Y%m%d-%H%M%S')}", runtime=where)
        tasks = list(review_tasks(limit))
        report = where.run_sync(fleet.run_until_signal(tasks, results, overwrite=True, progress=not quiet, keep=False))
    summary = summarise(results)
    if as_json:
        typer.echo(json.dumps({**json.loads(report.to_json()), "summary": asdict(summary), "database": str(database)}))
    elif not quiet:
        _show(report, summary, results, database)
    raise typer.Exit(report.exit_code)


def _show(report: FleetReport, summary: Summary, results: Path, database: Path) -> None:
    from rich.columns import Columns
    from rich.console import Console

    console = Console()
    console.print(_counts(report, summary))
    tables = [_findings("Longest functions, lines", summary.longest), _findings("Most broad excepts", summary.broadest)]
    console.print(Columns([*tables, _findings("Most TODO comments", summary.todos)]))
    console.print(f"results:       {results}", soft_wrap=True, highlight=False)
    console.print(f"conversations: {database}", soft_wrap=True, highlight=False)


def _counts(report: FleetReport, summary: Summary) -> Table:
    from rich.table import Table

    table = Table(title="Review of Python's standard library", title_justify="left", show_header=False)
    rows: list[tuple[str, str]] = [
        ("modules", f"{report.total:,} ({report.ok:,} ok, {report.failed:,} failed)"),
        ("time", f"{report.duration_s:,.1f} s, {report.rate:,.1f} modules/s"),
        ("tokens", f"{report.tokens:,}"),
        *((name.replace("_", " "), f"{count:,}") for name, count in summary.totals.items()),
    ]
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _findings(title: str, findings: tuple[Finding, ...]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("module", overflow="fold")
    named = any(finding.what != findings[0].what for finding in findings)
    if named:
        table.add_column("function", overflow="fold")
    table.add_column("", justify="right")
    for finding in findings:
        table.add_row(*([finding.module, finding.what] if named else [finding.module]), f"{finding.amount:,}")
    return table
