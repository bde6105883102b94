"""``umbel submit``: a fleet as a job of a Ray cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from ..fleet.spec import FleetSpec
    from ..jobs.submission import Submission


@ends_cleanly
def submit(
    fleet: Annotated[Path, typer.Argument(help="The fleet's YAML file, as for umbel fleet run.")],
    more: Annotated[list[str] | None, typer.Argument(help="After --: further options of umbel fleet run.")] = None,
    *,
    address: options.ServerOption = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The job's id (default: NAME-1, NAME-2...).")] = None,
    name: Annotated[str | None, typer.Option(help="The fleet's name, instead of that in the file.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the fleet's ledger, instead of that in the file.")] = None,
    grace: Annotated[
        float | None, typer.Option(min=1, help="Seconds that the fleet has to end in order when the job is stopped (30).")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="The folder that is sent (default: job.working_dir, or this one).")
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option("--secret", help="KEY=env:NAME or KEY=file:/path, as the cluster's nodes have it.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The interpreter there (default: python).")] = None,
    ship: Annotated[bool, typer.Option("--ship/--no-ship", help="Send this Umbel along.")] = True,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Import the agent and read the first task here.")] = True,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the job's log until it ends.")] = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Run a fleet as a job of a Ray cluster.

    The file, the agent, the first task and the size of the folder are checked here; then the folder and this Umbel are sent.
    A fleet that runs already is not submitted again; one that was stopped goes on where it stopped.

    \b
    Example:
      umbel submit fleet.yaml --address http://127.0.0.1:8265 --follow
      umbel submit fleet.yaml --secret OPENAI_API_KEY=file:/run/secrets/openai -- --limit 100

    \b
    Exit codes: 0 submitted or running already, 1 the cluster refused, 2 wrong usage; with --follow those of umbel fleet run.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ..fleet.spec import FleetSpec
    from ..jobs.server import JobServer
    from ..jobs.submission import is_local, submit as submit_job

    spec = FleetSpec.read(fleet, name=name, store=store, grace=grace)
    folder = _folder(fleet, spec, working_dir)
    where = options.server_address(address)
    submission = _describe(
        spec,
        fleet,
        folder,
        [*_files(spec, local=is_local(where)), *(more or [])],
        store=store,
        secrets=secret or [],
        job_id=job_id,
        python=python,
        ship=ship,
    )
    _check(spec, fleet, folder, load=check, local=is_local(where))
    server = JobServer(where)
    done = submit_job(server, submission)
    if as_json:
        from .thread_views import show_json

        show_json({"job_id": done.job_id, "new": done.new, "fleet": spec.name, "address": where})
    else:
        typer.echo(done.job_id)
    if not quiet:
        said = "submitted" if done.new else f"the fleet {spec.name!r} runs already, nothing was submitted"
        typer.echo(f"umbel: {said}; follow it with: umbel jobs logs {done.job_id} --follow", err=True)
    if follow:
        from .jobs import follow_job

        raise typer.Exit(follow_job(server, done.job_id, submission.store, err=as_json))


def _folder(fleet: Path, spec: FleetSpec, given: Path | None) -> Path:
    """The working directory, which must hold the file."""
    from ...protocol.errors import ConfigurationError

    if given is None and spec.job.working_dir is not None:
        given = fleet.parent / spec.job.working_dir
    if given is None:
        given = Path.cwd() if fleet.absolute().is_relative_to(Path.cwd()) else fleet.absolute().parent
    folder = given.expanduser().resolve()
    if not fleet.resolve().is_relative_to(folder):
        raise ConfigurationError(
            f"{fleet} is not in the working directory {folder}, so the job would not have it; see --working-dir"
        )
    return folder


def _describe(
    spec: FleetSpec,
    fleet: Path,
    folder: Path,
    more: list[str],
    *,
    store: str | None,
    secrets: list[str],
    job_id: str | None,
    python: str | None,
    ship: bool,
) -> Submission:
    from ..jobs.submission import GRACE, Submission

    fleet_name = spec.name or fleet.stem
    grace = GRACE if spec.grace is None else spec.grace
    arguments = ["fleet", "run", fleet.resolve().relative_to(folder).as_posix(), "--resume", "--name", fleet_name]
    arguments += ["--grace", f"{grace:g}", *(["--store", _without_password(store)] if store else []), *more]
    reserved = ("entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_resources")
    return Submission(
        name=fleet_name,
        arguments=tuple(arguments),
        working_dir=folder,
        store=spec.store,
        secrets={**spec.secrets, **dict(_secret(each) for each in secrets)},
        env_vars=spec.job.env_vars,
        pip=spec.job.pip,
        py_modules=spec.job.py_modules,
        excludes=(*spec.job.excludes, *_left_here(spec, folder)),
        resources={name: value for name in reserved if (value := getattr(spec.job, name))},
        metadata=spec.job.metadata,
        grace=grace,
        submission_id=job_id or spec.job.submission_id,
        ship=ship,
        python=python,
    )


def _files(spec: FleetSpec, *, local: bool) -> list[str]:
    """Options for the files that the fleet writes: on this machine they are written where the user stands."""
    files = [("--out", path) for path in spec.out] + ([("--quarantine", spec.quarantine)] if spec.quarantine else [])
    if local:
        return [part for option, path in files for part in (option, str(Path(path).absolute()))]
    lost = ", ".join(path for _, path in files if not Path(path).is_absolute())
    if lost:
        typer.echo(
            f"umbel: {lost}: written into the job's own folder on the cluster, which Ray deletes; "
            f"'umbel fleet report {spec.name} --store ... --export FILE' writes the results here",
            err=True,
        )
    return []


def _left_here(spec: FleetSpec, folder: Path) -> tuple[str, ...]:
    """The files that the fleet writes, as patterns: an earlier session's are not sent."""
    paths = [Path(path).resolve() for path in (*spec.out, *([spec.quarantine] if spec.quarantine else []))]
    return tuple(f"/{path.relative_to(folder).as_posix()}" for path in paths if path.is_relative_to(folder))


def _without_password(store: str) -> str:
    from urllib.parse import urlsplit

    from ...protocol.errors import ConfigurationError

    if urlsplit(store).password is not None:
        raise ConfigurationError(
            "--store: a job's command line can be read by everybody; a URL with a password belongs into the file"
        )
    return store


def _secret(text: str) -> tuple[str, str]:
    from ...actors.secrets import check_reference
    from ...protocol.errors import ConfigurationError

    name, equals, reference = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigurationError("--secret: expected KEY=env:NAME or KEY=file:/path")
    return name, check_reference(name, reference)


def _check(spec: FleetSpec, fleet: Path, folder: Path, *, load: bool, local: bool) -> None:
    """What would go wrong on the cluster, found out here.

    Raises:
        ConfigurationError: says what.
    """
    from ...protocol.errors import ConfigurationError
    from ..jobs.environment import check_environment
    from ..jobs.packaging import check_folder

    check_environment(spec.job.env_vars)
    needed = [fleet.resolve()]
    path = spec.tasks.path
    if path == "-":
        raise ConfigurationError("a job has no standard input: give tasks a file, a folder or a dataset")
    if path is not None:
        tasks = Path(path).resolve()
        if not tasks.exists():
            raise ConfigurationError(f"cannot read {path}: no such file or folder; check 'tasks' in {fleet}")
        if tasks.is_file() and (tasks.is_relative_to(folder) or not local):
            needed.append(tasks)
    if load:
        needed += _load(spec, fleet, folder)
    check_folder(folder, (*spec.job.excludes, *_left_here(spec, folder)), needed)


def _load(spec: FleetSpec, fleet: Path, folder: Path) -> list[Path]:
    """Import the agent as the job will; the files that it needs of the working directory."""
    import sys

    from ..loading import load_agent

    here = Path.cwd()
    try:
        os.chdir(folder)
        load_agent(spec.agent, f"{fleet}: agent", fleet.resolve().parent)
    finally:
        os.chdir(here)
    module: Any = sys.modules[spec.agent.partition(":")[0]]
    file = Path(module.__file__).resolve() if getattr(module, "__file__", None) else None
    if file is None or "site-packages" in file.parts:
        return []
    if not file.is_relative_to(folder):
        typer.echo(f"umbel: {module.__name__} is {file}, outside of {folder}: the cluster must have it installed", err=True)
        return []
    return [file]
