"""From a fleet's spec to a job of Ray: what runs there, in which environment, under which id."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...actors.secrets import REFERENCES, check_reference
from ...protocol.errors import ConfigurationError
from ..job_context import STOP_WAIT
from .environment import check_environment
from .packaging import EXCLUDES, check_excludes, copy_package
from .server import FINAL, JobServer

FLEET, STORE, SPEC = "umbel_fleet", "umbel_store", "umbel_spec"  # in a job's metadata
GRACE = 30.0
FLUSH_SECONDS = 5  # between the end of the grace and SIGKILL


class Described(Protocol):
    """A job as the server lists it (Ray's ``JobDetails``)."""

    submission_id: str | None
    status: Any
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A fleet that is to run as a job.

    Attributes:
        name: of the fleet.
        arguments: of ``umbel``, as on a command line.
        working_dir: the folder that is sent; the job runs in it.
        content: the fleet's file.
        store: URL of the fleet's ledger, None for the default one of the driver's node.
        secrets: references by name.
        env_vars: further environment of the job; no secrets.
        pip, py_modules, excludes: of Ray's runtime environment.
        resources: what the driver takes (``entrypoint_num_cpus``...).
        metadata: further metadata of the job.
        grace: seconds that the fleet has to end in order.
        submission_id: the job's id; None makes one.
        ship: send the Umbel that submits along, so that the cluster need not have it.
        python: the interpreter there; None is ``python``, or this one when the cluster is on this machine.
    """

    name: str
    arguments: tuple[str, ...]
    working_dir: Path
    content: str = ""
    store: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    pip: tuple[str, ...] = ()
    py_modules: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    grace: float = GRACE
    submission_id: str | None = None
    ship: bool = True
    python: str | None = None

    @property
    def digest(self) -> str:
        """What tells two submissions of one name apart: 12 hexadecimal digits of what is to run."""
        plain = [
            self.arguments,
            self.content,
            self.store,
            sorted(self.secrets.items()),
            sorted(self.env_vars.items()),
            self.pip,
        ]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission.

    Attributes:
        job_id: the job's submission id.
        new: False if it ran already, so that nothing was submitted.
    """

    job_id: str
    new: bool


def submit(server: JobServer, submission: Submission) -> Submitted:
    """Submit it, unless a job of the same fleet runs or waits already.

    Raises:
        ConfigurationError: secrets in the environment, or another version of the fleet runs under the name.
        JobServerError: the server refused.
    """
    check_environment(submission.env_vars)
    if submission.ship:
        check_excludes(submission.excludes)
    jobs = server.jobs()
    running = _running(jobs, submission)
    if running is not None:
        return Submitted(running, new=False)
    job_id = submission.submission_id or next_id(submission.name, (job.submission_id or "" for job in jobs))
    with tempfile.TemporaryDirectory(prefix="umbel-submit-") as folder:
        runtime_env = runtime_environment(submission, Path(folder), local=is_local(server.address))
        new = server.submit(
            submission_id=job_id,
            entrypoint=entrypoint(submission, _python(submission, server)),
            runtime_env=runtime_env,
            metadata={**submission.metadata, **_metadata(submission)},
            **submission.resources,
        )
    if not new and (known := server.info(job_id)) is not None and known.status.value in FINAL:
        raise ConfigurationError(
            f"job {job_id} has ended ({known.status.value}) and Ray takes an id only once; leave --id out, or choose another"
        )
    return Submitted(job_id, new=new)


def _running(jobs: Iterable[Described], submission: Submission) -> str | None:
    for job in jobs:
        facts = job.metadata or {}
        if facts.get(FLEET) != submission.name or job.status.value in FINAL:
            continue
        if facts.get(SPEC) != submission.digest:
            raise ConfigurationError(
                f"the fleet {submission.name!r} runs already as job {job.submission_id}, with other settings: "
                f"'umbel jobs stop {job.submission_id}' first, or give this one another name"
            )
        return job.submission_id
    return None


def next_id(name: str, taken: Iterable[str]) -> str:
    """``NAME-1``, or the number after the highest one taken. Of two who submit at once, one wins."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "fleet"
    numbers = [int(match[1]) for each in taken if (match := re.fullmatch(rf"{re.escape(stem)}-(\d+)", each))]
    return f"{stem}-{max(numbers, default=0) + 1}"


def entrypoint(submission: Submission, python: str) -> str:
    """The command of the job. ``exec`` makes it the process that Ray stops, so that Ray sees its end at once."""
    return f"exec {shlex.join([python, '-m', 'umbel', *submission.arguments])}"


def runtime_environment(submission: Submission, folder: Path, *, local: bool) -> dict[str, Any]:
    """Ray's runtime environment of the job.

    Args:
        submission: the fleet.
        folder: an empty one, where the package is put together until it is sent.
        local: the cluster is on this machine, so its Umbel shall have this one's home.
    """
    variables = dict(submission.env_vars)
    variables[STOP_WAIT] = str(math.ceil(submission.grace) + FLUSH_SECONDS)
    if submission.secrets:
        checked = {name: check_reference(name, reference) for name, reference in submission.secrets.items()}
        variables[REFERENCES] = json.dumps(checked)
    for name in ("UMBEL_HOME",) if local else ():
        if name in os.environ:
            variables.setdefault(name, str(Path(os.environ[name]).expanduser().absolute()))
    environment: dict[str, Any] = {
        "working_dir": str(submission.working_dir),
        "env_vars": variables,
        "excludes": [*EXCLUDES, *submission.excludes],
    }
    modules = [*submission.py_modules, *([str(copy_package(folder))] if submission.ship else [])]
    if modules:
        environment["py_modules"] = modules
    if submission.pip:
        environment["pip"] = list(submission.pip)
    return environment


def _metadata(submission: Submission) -> dict[str, str]:
    store = submission.store or ""
    private = urlsplit(store).password is not None
    return {FLEET: submission.name, SPEC: submission.digest, STORE: "" if private else store}


def _python(submission: Submission, server: JobServer) -> str:
    import ray

    if submission.python is not None:
        return submission.python
    return sys.executable if is_local(server.address) and server.version == ray.__version__ and not submission.pip else "python"


def is_local(address: str) -> bool:
    """Whether an address is this machine's loopback."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
