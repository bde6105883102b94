"""``umbel doctor``: is everything here that Umbel needs, and does it work?"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .check import Check, umbel_home
from .cluster_checks import examine_cluster
from .ending import FAILED, OK, ends_cleanly

EXTRAS = {
    "data": ("pyarrow", "pandas"),
    "gateway": ("a2a", "starlette", "uvicorn"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry.sdk",),
    "lab": ("numpy", "scipy", "matplotlib"),
    "postgres": ("psycopg",),
    "s3": ("boto3",),
}
RAY_SECONDS = 90
STORE_SECONDS = 15
_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}
_RAY_PROBE = """
import os, ray
os.environ.setdefault("RAY_worker_niceness", "0")
ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, num_cpus=1, _temp_dir={folder!r})
assert ray.get(ray.remote(lambda: 42).remote()) == 42
ray.shutdown()
"""


StoreOption = Annotated[
    str | None, typer.Option("--store", help="URL of your agents' store, their checkpointer (default: the one in UMBEL_HOME).")
]


@ends_cleanly
def doctor(*, store: StoreOption = None, address: options.AddressOption = None, as_json: options.JsonOption = False) -> None:
    """Check this machine: versions, cores, memory, Ray, an existing cluster, home folder, SQLite, the store, extras.

    With --address a cluster instead: its nodes, their versions, clocks, disks, how fast it notices a lost node, whether it
    asks for a token, and whether every node reaches the store.

    \b
    Example:
      umbel doctor
      umbel doctor --store redis://localhost:6379
      umbel doctor --address 10.0.0.1:6379 --store redis://10.0.0.5:6379
      umbel doctor --json | jq '.checks[] | select(.status != "ok")'

    \b
    Exit codes: 0 it works (perhaps with warnings), 1 something fails, 2 no cluster answers.
    """  # noqa: D301 - typer needs the real \b
    checks = []
    for check in examine(store) if address is None else examine_cluster(address, store):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    raise typer.Exit(FAILED if failed else OK)


def examine(store: str | None = None) -> Iterator[Check]:
    """Every check, one by one as it is made; ``store`` is the URL of the store to look at."""
    makers: tuple[Callable[[], Check], ...] = (
        _python, _umbel, lambda: _package("ray", "2.60"), lambda: _package("pydantic", "2.11"),
        _cores, _memory, _shared_memory, _open_files, _home, _sqlite, _cluster, _ray_starts,
    )  # fmt: skip
    for make in makers:
        yield make()
    yield from _store(store)
    for extra, modules in EXTRAS.items():
        yield _extra(extra, modules)


def _print(check: Check) -> None:
    status = typer.style(f"{check.status:5}", fg=_COLOURS[check.status]) if sys.stdout.isatty() else f"{check.status:5}"
    typer.echo(f"{status} {check.name}: {check.detail}" + (f"\n      -> {check.remedy}" if check.remedy else ""))


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _umbel() -> Check:
    from ... import __version__

    return Check("umbel", "ok", f"{__version__} ({Path(__file__).parents[2]})")


def _package(name: str, least: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "fail", "not installed", f'pip install "{name}>={least}"')
    if _numbers(version) < _numbers(least):
        return Check(name, "fail", f"{version} is too old", f'pip install "{name}>={least}"')
    return Check(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if usable < 2:
        return Check("cores", "warn", "1", "Ray and agents share one core: everything is slow; use two or more")
    return Check("cores", "ok", str(usable))


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f}"
    if memory.available < 2**30:
        return Check("memory", "warn", detail, "a local Ray needs about 1 GiB; close something or use --runtime inline")
    return Check("memory", "ok", detail)


def _shared_memory() -> Check:
    if not Path("/dev/shm").is_dir():  # noqa: S108 - looked at, not written
        return Check("shared memory", "ok", "this system has no /dev/shm; Ray uses files")
    free = shutil.disk_usage("/dev/shm").free  # noqa: S108 - as above
    if free < 2**28:
        return Check(
            "shared memory", "warn", f"{free / 2**20:.0f} MiB free", "in Docker: run with --shm-size=1g; else free /dev/shm"
        )
    return Check("shared memory", "ok", f"{free / 2**30:.1f} GiB free")


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        return Check("open files", "warn", f"limit {soft} (hard limit {hard})", "ulimit -n 65535, before you start Umbel")
    return Check("open files", "ok", f"limit {soft}")


def _home() -> Check:
    home = umbel_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".doctor-") as probe:
            probe.write(b"x")
        free = shutil.disk_usage(home).free
    except OSError as error:
        return Check(
            "home", "fail", f"{home} cannot be written: {error.strerror}", "set UMBEL_HOME to a folder that you may write"
        )
    if free < 2**30:
        return Check("home", "warn", f"{home}, {free / 2**20:.0f} MiB free", "free some disk, or set UMBEL_HOME to another one")
    return Check("home", "ok", f"{home} ({free / 2**30:.0f} GiB free)")


def _sqlite() -> Check:
    try:
        with (
            tempfile.TemporaryDirectory(dir=umbel_home(), prefix=".doctor-") as folder,
            closing(sqlite3.connect(f"{folder}/x.db")) as base,
        ):
            mode = base.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            base.execute("CREATE TABLE probe (value TEXT)")
            base.commit()
    except (OSError, sqlite3.Error) as error:
        return Check("sqlite", "fail", str(error), "set UMBEL_HOME to a folder on a local disk that you may write")
    if mode != "wal":
        return Check(
            "sqlite", "warn", f"{sqlite3.sqlite_version}, no WAL on this disk", "set UMBEL_HOME to a folder on a local disk"
        )
    return Check("sqlite", "ok", sqlite3.sqlite_version)


def _store(given: str | None) -> Iterator[Check]:
    """Whether the store can be used, and each of its settings that can lose checkpoints."""
    from ...actors.checkpoints import default_url, resolve_url
    from ...actors.checkpoints.url import StoreUrl
    from ...protocol.errors import UmbelError

    try:
        url = resolve_url(given or default_url())
        parsed = StoreUrl.parse(url)
        place = f"{parsed.scheme}://{parsed.place.rpartition('@')[2]}"  # without a password
        there = parsed.scheme not in {"sqlite", "file"} or parsed.file().exists()  # looking must not make one
        found = asyncio.run(_warnings(url, there))
        for warning in found:
            what, _, remedy = warning.rpartition("; ")
            yield Check("store", "warn", what, remedy)
        if not found:
            yield Check("store", "ok", f"{place} answers" if there else f"{place} is made by the first run with a thread")
    except TimeoutError:
        yield Check("store", "fail", f"{place} did not answer within {STORE_SECONDS} s", "check its address and the network")
    except UmbelError as error:
        yield Check("store", "fail", error.message, "set what it says, or name another store with --store")


async def _warnings(url: str, there: bool) -> list[str]:
    from ...actors.checkpoints import open_store

    store = open_store(url)
    try:
        async with asyncio.timeout(STORE_SECONDS):
            if there:
                await store.open()
            return await store.warnings() if there else []
    finally:
        await store.close()


def _cluster() -> Check:
    address = os.environ.get("RAY_ADDRESS")
    marker = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    if not address and marker.is_file():
        address = marker.read_text(encoding="utf-8").strip()
    if not address:
        return Check("cluster", "ok", "none set or running here; Umbel starts a local Ray when it needs one")
    if address in ("auto", "local") or "://" in address:
        return Check("cluster", "ok", f"RAY_ADDRESS={address}")
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError), socket.create_connection((host, int(port)), timeout=3):
        return Check("cluster", "ok", f"{address} answers")
    if os.environ.get("RAY_ADDRESS"):
        return Check("cluster", "fail", f"RAY_ADDRESS={address} does not answer", "unset RAY_ADDRESS, or start that cluster")
    return Check("cluster", "ok", f"none running here (an old one was at {address})")


def _ray_starts() -> Check:
    with tempfile.TemporaryDirectory(prefix="umbel-doctor-", ignore_cleanup_errors=True) as folder:
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        command = [sys.executable, "-c", _RAY_PROBE.format(folder=folder)]
        probe = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
        try:
            output, _ = probe.communicate(timeout=RAY_SECONDS)
        except subprocess.TimeoutExpired:
            return Check(
                "ray start", "fail", f"a local Ray did not start within {RAY_SECONDS} s", "see /tmp/ray/session_latest/logs"
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(probe.pid, signal.SIGKILL)
            probe.wait()
    if probe.returncode:
        lines = output.strip().splitlines() or [f"exit code {probe.returncode}"]
        return Check(
            "ray start", "fail", lines[-1][:300], "python -c 'import ray; ray.init()' shows more; or use --runtime inline"
        )
    return Check("ray start", "ok", "a local Ray starts, runs a task and ends")


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        return Check(
            f"extra {name}", "warn", f"not installed ({', '.join(missing)})", f'pip install "umbel[{name}]", if you want it'
        )
    return Check(f"extra {name}", "ok", "installed")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
