"""``umbel fleet run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, OK, ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from ..fleet import FleetReport, FleetSpec

app = typer.Typer(help="Run one agent over many tasks.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def fleet() -> None:
    """Run one agent over many tasks."""


@app.command("run")
@ends_cleanly
def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FLEET.YAML|TASKS",
            help="A fleet in YAML; or tasks: a .jsonl, .csv (also .gz) or .parquet file, a folder of text files, - for stdin.",
        ),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="What to run, as module:name; the working directory is searched.")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", help="The results file: JSON, one line a task. A fleet with a name may have several."),
    ] = None,
    *,
    name: Annotated[str | None, typer.Option(help="Keep the fleet's results and record in a store, under this name.")] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of the store of fleets with a name (default: $UMBEL_HOME/fleets.sqlite).")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(min=0, help="Seconds to end in order after Ctrl-C or SIGTERM (10, in a job what Ray gives).")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Other tasks than those that FLEET.YAML names.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Tasks in flight at once (100).")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Further attempts after errors that may go away (2).")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long one attempt may take: seconds, 90s, 2h.")] = None,
    deadline: Annotated[str | None, typer.Option(help="When everything stops: 2h, or 2026-12-01T18:00.")] = None,
    budget_tokens: Annotated[str | None, typer.Option(help="Tokens for all tasks together.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="Dollars for all tasks together.")] = None,
    priority: Annotated[str | None, typer.Option(help="The field that says what comes first: metadata.priority.")] = None,
    quarantine: Annotated[Path | None, typer.Option(help="A file for tasks that kill actors.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Run at most that many tasks now.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only that many tasks, chosen at random.")] = None,
    shuffle_seed: Annotated[int | None, typer.Option(help="A random order, the same for the same number.")] = None,
    threads: Annotated[
        str | None, typer.Option(help="Keep each run as a thread THREADS/<task id> (with a checkpointer).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, run nothing.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the results file; tasks that are ok are skipped.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results file.")] = False,
    runtime: Annotated[
        options.Where | None,
        typer.Option("--runtime", help="inline: this process; local: a new local Ray; auto: RAY_ADDRESS or a local Ray."),
    ] = None,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Run an agent or a pattern over every task of a file.

    A fleet in YAML says everything in one place (docs/fleets.md); options given here win over it.

    Task lines: {"id": "t1", "prompt": "...", "metadata": {...}}; id and metadata may be left out, and for a pattern the
    prompt may be an object. CSV and Parquet need a column prompt. Result lines: id, status (ok, failed, cancelled, invalid,
    quarantined), message, stop_reason, tokens, cost_usd, duration_s, attempts, error.

    \b
    Example:
      umbel fleet run fleet.yaml
      umbel fleet run fleet.yaml --dry-run
      umbel fleet run tasks.jsonl --agent my_agents:support --out results.jsonl --concurrency 500
      umbel fleet run tasks.jsonl --agent my_agents:support --out results.jsonl --resume

    \b
    Exit codes: 0 all ok, 1 some tasks not (or a budget or the deadline ended it), 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ...actors.secrets import use_references
    from ..fleet import Fleet, runtime_of
    from ..job_context import current_job_id
    from ..runtime import Runtime

    given = {
        "name": name,
        "store": store,
        "grace": grace,
        "agent": agent,
        "tasks": tasks,
        "out": [str(path) for path in out] if out else None,
        "concurrency": concurrency,
        "retries": retries,
        "timeout": timeout,
        "deadline": deadline,
        "priority": priority,
        "quarantine": None if quarantine is None else str(quarantine),
        "limit": limit,
        "sample": sample,
        "shuffle_seed": shuffle_seed,
        "threads": threads,
        "runtime": None if runtime is None else runtime.value,
        "address": address,
    }
    spec = _read(what, given, {"tokens": budget_tokens, "cost_usd": budget_usd})
    use_references(spec.secrets)
    if spec.name is not None and current_job_id() is not None:
        resume = not overwrite  # a job that is submitted again goes on
    with runtime_of(spec) or Runtime() as where:
        fleet = Fleet.from_spec(spec, runtime=where)
        if dry_run:
            plan = where.run_sync(fleet.plan())
            typer.echo(plan.model_dump_json() if as_json else plan.text())
            raise typer.Exit(FAILED if plan.problems else OK)
        report = where.run_sync(fleet.run_until_signal(resume=resume, overwrite=overwrite, progress=not quiet, keep=False))
    show(report, as_json=as_json, quiet=quiet)
    raise typer.Exit(report.exit_code)


def _read(what: str, given: dict[str, Any], budget: dict[str, Any]) -> FleetSpec:
    """The fleet of a file, or the one that the options describe."""
    from ...protocol.errors import ConfigurationError
    from ..fleet import FleetSpec
    from ..fleet.spec_file import Document

    limits = {name: value for name, value in budget.items() if value is not None}
    if what.endswith((".yaml", ".yml")):
        content = Document.of(what).content.get("budget") if limits else None
        there = content if isinstance(content, Mapping) else {}
        return FleetSpec.read(what, **given, budget={**there, **limits} if limits else None)
    missing = [name for name in ("agent", *(["out"] if given["name"] is None else [])) if given[name] is None]
    if missing:
        raise ConfigurationError(f"--{missing[0]} is missing; give it, or name a fleet in YAML instead of tasks")
    return FleetSpec.read({"tasks": what}, **given, budget=limits or None)


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
