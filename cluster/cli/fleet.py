"""``umbel fleet run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .ending import ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from ..fleet import FleetReport

app = typer.Typer(help="Run one agent over many tasks.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def fleet() -> None:
    """Run one agent over many tasks."""


@app.command("run")
@ends_cleanly
def run(
    tasks: Annotated[str, typer.Argument(help="A .jsonl or .csv file (also .gz), or - for JSON lines on standard input.")],
    agent: options.AgentOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The results file: JSON, one line a task.")],
    *,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks in flight at once.")] = 100,
    retries: Annotated[int, typer.Option(min=0, help="Further attempts after errors that may go away.")] = 2,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds that one attempt may take.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Run at most that many tasks now.")] = None,
    threads: Annotated[
        str | None, typer.Option(help="Keep each run as a thread THREADS/<task id> (with a checkpointer).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the results file; tasks that are ok are skipped.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results file.")] = False,
    runtime: options.RuntimeOption = options.Where.AUTO,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Run an agent or a pattern over every task of a file.

    Task lines: {"id": "t1", "prompt": "...", "metadata": {...}}; id and metadata may be left out, and for a pattern the
    prompt may be an object. CSV needs a column prompt. Result lines: id, status (ok, failed, cancelled, invalid,
    quarantined), message, stop_reason, tokens, cost_usd, duration_s, attempts, error.

    \b
    Example:
      umbel fleet run tasks.jsonl --agent my_agents:support --out results.jsonl --concurrency 500
      umbel fleet run tasks.jsonl --agent my_agents:support --out results.jsonl --resume

    \b
    Exit codes: 0 all ok, 1 some tasks not, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ..fleet import Fleet
    from ..loading import load_agent

    runnable = load_agent(agent)
    with options.open_runtime(runtime, address) as where:
        fleet = Fleet(runnable, concurrency=concurrency, retries=retries, timeout=timeout, threads=threads, runtime=where)
        job = fleet.run_until_signal(
            tasks, out, resume=resume, overwrite=overwrite, progress=not quiet, limit=limit, keep=False
        )
        report = where.run_sync(job)
    show(report, as_json=as_json, quiet=quiet)
    raise typer.Exit(report.exit_code)


def show(report: FleetReport, *, as_json: bool, quiet: bool) -> None:
    """The report: JSON or a summary on stdout; after a stop, how to go on, on stderr."""
    from ..fleet import resume_advice

    if as_json:
        typer.echo(report.to_json())
    elif not quiet:
        typer.echo(_summary(report))
    if report.stopped is not None:
        typer.echo(f"umbel: {resume_advice(report)}", err=True)
    elif not report.total and not report.skipped:
        typer.echo("umbel: there were no tasks", err=True)


def _summary(report: FleetReport) -> str:
    counts = [("ok", report.ok), ("failed", report.failed), ("cancelled", report.cancelled), ("invalid", report.invalid)]
    counts += [("quarantined", report.quarantined), ("skipped", report.skipped), ("retries", report.retries)]
    listed = ", ".join(f"{count:,} {name}" for name, count in counts if count or name == "ok")
    cost = "" if report.cost_usd is None else f", ${report.cost_usd:,.4f}"
    lines = [
        f"{report.total:,} tasks in {report.duration_s:,.1f} s ({report.rate:,.1f}/s): {listed}; {report.tokens:,} tokens{cost}"
    ]
    lines += [f"  {failure.status} {failure.id[:60]}: {failure.error}" for failure in report.failures[:5]]
    bad = report.total - report.ok
    if bad > 5:
        lines.append(f"  and {bad - 5:,} more")
    return "\n".join([*lines, f"results: {report.out}"])
