"""What a fleet would do, found out without running anything: ``umbel fleet run --dry-run``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...actors.agent.models.catalogue import price_of, title_of
from ...actors.agent.models.registry import resolve_model
from ...actors.runnable import Runnable
from ...protocol.errors import ConfigurationError, UmbelError
from ...protocol.messages import Frozen
from .sources import TaskSource
from .tasks import BadTask, Task

LOOK_AT = 10
_BYTES_A_TOKEN = 4  # of English text, roughly


class Plan(Frozen):
    """What was found.

    Attributes:
        agent: its title.
        models: of the agent and whatever it runs.
        tools: their names; with ``(idempotent)`` where a second call does no harm.
        source: where tasks come from.
        total: how many there are, None when only reading them all would tell.
        first: ids of those that were looked at.
        invalid: what is wrong with those of them that are no tasks.
        prompt_tokens: a low estimate for all tasks: one model call each, prompts and system prompt, four bytes a token.
        cost_usd: of these, None when a model has no price or the number of tasks is not known.
        problems: what would make the fleet fail.
    """

    agent: str
    models: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    source: str = ""
    total: int | None = None
    first: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    cost_usd: float | None = None
    problems: tuple[str, ...] = ()

    def text(self) -> str:
        """For people."""
        total = "an unknown number of tasks" if self.total is None else f"{self.total:,} tasks"
        lines = [
            f"agent: {self.agent}",
            f"models: {', '.join(self.models) or 'none'}",
            f"tools: {', '.join(self.tools) or 'none'}",
        ]
        lines.append(f"tasks: {total} from {self.source}; looked at {len(self.first):,}: {', '.join(self.first[:5])}")
        lines += [f"  invalid {one}" for one in self.invalid]
        if self.prompt_tokens is not None:
            cost = "" if self.cost_usd is None else f", ${self.cost_usd:,.4f}"
            lines.append(
                f"at least {self.prompt_tokens:,} prompt tokens{cost} (one model call a task; answers and tools come on top)"
            )
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join([*lines, "nothing was run"])


async def make_plan(agent: Any, source: TaskSource, limit: int | None) -> Plan:
    """Check the agent, its models and the first tasks.

    Args:
        agent: what the fleet would run.
        source: its tasks; closed afterwards.
        limit: tasks to run at most.

    Raises:
        ConfigurationError: the first task is none, as when the fleet runs.
    """
    try:
        await source.check()
        items = [item for item in [await source.next() for _ in range(min(LOOK_AT, limit or LOOK_AT))] if item is not None]
        total = await source.count()
    finally:
        await source.close()
    total = total if total is None or limit is None else min(total, limit)
    parts = list(_all_of(agent, set()))
    models = {title_of(model): (model, kwargs) for part in parts for model, kwargs in _models(part)}
    tokens = _estimate(agent, [item for item in items if isinstance(item, Task)], total)
    return Plan(
        agent=str(getattr(agent, "title", type(agent).__name__)),
        models=tuple(models),
        tools=tuple(dict.fromkeys(name for part in parts for name in _tools(part))),
        source=source.name,
        total=total,
        first=tuple(item.id for item in items),
        invalid=tuple(str(item) for item in items if isinstance(item, BadTask)),
        prompt_tokens=tokens,
        cost_usd=_cost(tokens, [model for model, _ in models.values()]),
        problems=tuple(_problems(agent, items, list(models.values()))),
    )


def _all_of(runnable: Any, seen: set[int]) -> Iterator[Any]:
    """It, and whatever it runs."""
    if id(runnable) not in seen:
        seen.add(id(runnable))
        yield runnable
        for inner in runnable.inner() if isinstance(runnable, Runnable) else ():
            yield from _all_of(inner, seen)


def _models(part: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    config = getattr(part, "config", None)
    kwargs = dict(getattr(config, "model_kwargs", None) or {})
    for name in ("model", "auxiliary_model"):
        model = getattr(config, name, None)
        if model is not None:
            yield model, kwargs


def _tools(part: Any) -> Iterator[str]:
    for tool in getattr(part, "tools_by_name", {}).values():
        yield f"{tool.name} (idempotent)" if getattr(tool, "idempotent", False) else str(tool.name)


def _problems(agent: Any, items: list[Task | BadTask], models: list[tuple[Any, dict[str, Any]]]) -> Iterator[str]:
    for model, kwargs in models:
        if isinstance(model, str):
            try:
                resolve_model(model, **kwargs)
            except (UmbelError, ValueError) as error:
                yield getattr(error, "message", None) or str(error)
    objects = [item for item in items if isinstance(item, Task) and not isinstance(item.prompt, str)]
    if objects and not getattr(agent, "is_pattern", False):
        yield f"{objects[0].where}: field 'prompt': an agent takes a text; only patterns take an object"
    if not items:
        yield "there are no tasks"


def _estimate(agent: Any, tasks: list[Task], total: int | None) -> int | None:
    if not tasks or total is None:
        return None
    system = getattr(getattr(agent, "config", None), "system_prompt", None)
    fixed = len(system.encode()) if isinstance(system, str) else 0
    mean = sum(len(str(task.prompt).encode()) for task in tasks) / len(tasks)
    return round((fixed + mean) / _BYTES_A_TOKEN * total)


def _cost(tokens: int | None, models: list[Any]) -> float | None:
    if tokens is None or len(models) != 1:
        return None
    try:
        prices = price_of(models[0])
    except ConfigurationError:
        return None
    return None if prices is None else tokens * prices.input_per_million / 1_000_000
