"""A fleet in a file: what to run, on what, how, and within which limits (``umbel fleet run fleet.yaml``)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_serializer

from ...protocol.config import Topology
from ...protocol.errors import ConfigurationError
from ...protocol.settings import Settings
from .budget import Budget
from .durations import Count, Deadline, Seconds
from .hedging import Hedge
from .inputs import TaskInput
from .priority import read_priority
from .retry import Retries
from .spec_file import Document, explain

_REFERENCE = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$"
_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")


def _read_limits(value: Any) -> Any:
    for endpoint, limits in value.items() if isinstance(value, Mapping) else ():
        unknown = sorted(set(limits) - set(_LIMITS)) if isinstance(limits, Mapping) else []
        if unknown:
            raise ValueError(f"{endpoint}: no limit is called {unknown[0]!r}; there are {', '.join(_LIMITS)}")
    return value


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str | os.PathLike) else value


def _path_or_mapping(value: Any) -> Any:
    return {"path": str(value)} if isinstance(value, str | os.PathLike) else value


class JobSpec(Settings):
    """How ``umbel submit`` makes a job of the fleet: the names are those of Ray's jobs and runtime environments.

    Attributes:
        working_dir: the folder that travels to the cluster.
        pip: packages that the job's environment needs.
        py_modules, excludes: more of what travels, and what does not.
        env_vars: environment of the job. They can be read by everyone who sees the job: no secrets here.
        submission_id: the job's id; submitting it again is refused by Ray.
        entrypoint_num_cpus, entrypoint_num_gpus, entrypoint_resources: what the fleet's own process reserves.
        metadata: of the job.
    """

    working_dir: str | None = None
    pip: tuple[str, ...] = ()
    py_modules: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    env_vars: dict[str, str] = Field(default_factory=dict)
    submission_id: str | None = None
    entrypoint_num_cpus: Annotated[float, Field(ge=0)] = 0
    entrypoint_num_gpus: Annotated[float, Field(ge=0)] = 0
    entrypoint_resources: dict[str, float] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)


class FleetSpec(Settings):
    """Everything about a fleet. ``docs/fleets.md`` describes each field for people.

    Attributes:
        name: of the fleet and its ledger; in a file, by default the file's name. Without one there is no ledger but ``out``.
        agent: ``module:name`` of an agent or a pattern; the working directory and the file's folder are searched.
        tasks: where tasks come from.
        out: results files.
        store: URL of the ledger.
        concurrency: tasks in flight.
        timeout: seconds for one attempt.
        retries: further attempts, altogether or by code of error.
        deadline: seconds from the start, or a time, after which nothing runs any more.
        budget: tokens, dollars, seconds for all tasks.
        priority: the field of a task that says how urgent it is (``metadata.priority``), or one number for the fleet.
        hedge: second attempts for stragglers.
        quarantine: file for tasks that kill actors.
        quarantine_after: how many losses put a task there.
        weight: share of rate limits against other fleets.
        limits: of endpoints, by provider prefix or base URL.
        threads: prefix of a thread for each task.
        topology, runtime, address: where it runs.
        limit: tasks to run now.
        sample: a random choice of that many tasks.
        shuffle_seed: run them in a random order, the same one for the same number.
        grace: seconds to end in order when it is told to stop.
        secrets: references (``env:NAME``, ``file:/path``) by name of the environment variable that stands for them.
        job: for ``umbel submit``.
        folder: where the file is; set by :meth:`read`.
    """

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    agent: Annotated[str, Field(pattern=r"^[^:\s]+:[^:\s]+$")]
    tasks: Annotated[TaskInput, BeforeValidator(_path_or_mapping)]
    out: Annotated[tuple[str, ...], BeforeValidator(_list)] = ()
    store: str | None = None
    concurrency: Count = 100
    timeout: Seconds | None = None
    retries: Annotated[Retries, BeforeValidator(Retries.of)] = Retries()
    deadline: Deadline | None = None
    budget: Budget = Budget()
    priority: Annotated[float | str, BeforeValidator(read_priority)] = 0
    hedge: Hedge | None = None
    quarantine: str | None = None
    quarantine_after: Annotated[int, Field(ge=2)] = 3
    weight: Annotated[float, Field(gt=0)] = 1.0
    limits: Annotated[dict[str, dict[str, float]], BeforeValidator(_read_limits)] = Field(default_factory=dict)
    threads: str | None = None
    topology: Topology | None = None
    runtime: Literal["auto", "inline", "local"] = "auto"
    address: str | None = None
    limit: Count | None = None
    sample: Count | None = None
    shuffle_seed: int | None = None
    grace: Seconds | None = None
    secrets: dict[str, Annotated[str, Field(pattern=_REFERENCE)]] = Field(default_factory=dict)
    job: JobSpec = JobSpec()
    folder: Annotated[Path | None, Field(exclude=True)] = None

    @classmethod
    def read(cls, source: str | os.PathLike[str] | Mapping[str, Any], **changes: Any) -> Self:
        """The spec in a YAML file, or in a mapping.

        Relative paths in a file are relative to its folder; in a mapping and in ``changes``, to the working directory.

        Args:
            source: the file, or its content.
            **changes: fields that win over ``source``; None changes nothing.

        Raises:
            ConfigurationError: the file cannot be read, or a field is wrong: file, line, field, what was expected.
        """
        document = Document.of(source)
        given = {**_placed(document), **{name: value for name, value in changes.items() if value is not None}}
        if document.path is not None:
            given.setdefault("name", document.path.stem)
            given["folder"] = document.path.absolute().parent
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigurationError(explain(error, document, cls)) from None

    @field_serializer("retries")
    def _plain(self, retries: Retries) -> dict[str, int]:
        return {"default": retries.default, **(retries.by_code or {})}

    def settings(self) -> dict[str, Any]:
        """The arguments of :class:`Fleet` that it stands for, besides the agent and the runtime."""
        same = (
            "concurrency",
            "retries",
            "timeout",
            "threads",
            "quarantine_after",
            "deadline",
            "budget",
            "priority",
            "quarantine",
            "weight",
        )
        return {
            **{name: getattr(self, name) for name in (*same, "store", "grace")},
            "hedge": self.hedge or False,
            "name": self.name,
            "spec": self.record(),
        }

    def record(self) -> dict[str, Any]:
        """The spec as JSON values for the ledger and people to read: no secrets, nothing of the job's environment."""
        plain = self.model_dump(mode="json", exclude_defaults=True, exclude={"secrets": True, "job": {"env_vars"}})
        if "store" in plain:
            plain["store"] = re.sub(r"//[^@/]*@", "//", plain["store"])
        return plain


def _placed(document: Document) -> dict[str, Any]:
    """The document's content, with paths relative to its folder."""
    given = dict(document.content)
    if document.path is None:
        return given
    folder = document.path.parent

    def place(value: Any) -> Any:
        return str(folder / value) if isinstance(value, str) and value != "-" else value

    tasks = given.get("tasks")
    if isinstance(tasks, Mapping) and "path" in tasks:
        given["tasks"] = {**tasks, "path": place(tasks["path"])}
    elif isinstance(tasks, str):
        given["tasks"] = place(tasks)
    out = given.get("out")
    if out is not None:
        given["out"] = [place(one) for one in out] if isinstance(out, list) else place(out)
    if "quarantine" in given:
        given["quarantine"] = place(given["quarantine"])
    return given
