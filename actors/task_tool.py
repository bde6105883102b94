"""``task_tool``: a tool with which a model hands work to subagents of its own kind. Source: TOOL-55."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from pydantic import Field

from ..protocol.errors import ConfigurationError, RunError, UnknownTask
from ..protocol.results import SubagentResult
from ..protocol.settings import Settings
from .runnable import Runnable
from .tools.children import run_child
from .tools.context import ToolContext
from .tools.decorator import Tool

DEPTH = "umbel.task_depth"  # ephemeral metadata: tasks above this run
INTRODUCTION = (
    "Give a task to a subagent. It sees nothing of this conversation, so say in the prompt all that it needs, and what it "
    "shall report. Several tasks in one reply run in parallel. Give the task_id of an earlier task to go on with it.\n"
    "Types (subagent_type):"
)


class SubagentSpec(Settings):
    """A type of subagent.

    Attributes:
        name: what the model calls it.
        description: for the model: what it is good for.
        system_prompt: its own; None is the parent's.
        tools: names of those of the parent's tools that it has; None is all of them. It never has others (tools of the
            parent's plugins come with the plugins).
        model: its own; None is the parent's.
        max_iterations: model calls per turn.
        with_hooks: the parent's hooks and plugins run inside it, too.
    """

    name: str = Field(min_length=1)
    description: str
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    model: Any = None
    max_iterations: int = Field(default=10, ge=1)
    with_hooks: bool = True


def task_tool(specs: Iterable[SubagentSpec], *, max_depth: int = 2, name: str = "task") -> Tool:
    """A tool ``task(description, prompt, subagent_type, task_id)`` for an agent that shall delegate.

    Each task is a child run of the agent that calls the tool, and gets its model, its tools and its hooks unless the spec
    says otherwise. A task that cannot be given (unknown type or id, nested too deep) is answered in words.

    Args:
        specs: the types, at least one.
        max_depth: how deep tasks may give tasks.
        name: the tool's.

    Raises:
        ConfigurationError: no specs, two of one name, or ``max_depth`` below 1.
    """
    known = tuple(specs)
    names = [spec.name for spec in known]
    if not known or len(set(names)) < len(names) or max_depth < 1:
        raise ConfigurationError(
            f"task_tool needs specs with distinct names and a max_depth of 1 or more, not {names} and {max_depth}"
        )
    listed = "\n".join(f"- {spec.name}: {spec.description}" for spec in known)
    return Tool(name=name, description=f"{INTRODUCTION}\n{listed}", function=_Delegation(known, max_depth).give)


class _Delegation:
    """The body of a task tool."""

    def __init__(self, specs: tuple[SubagentSpec, ...], max_depth: int) -> None:
        self._types = {spec.name: _Subagent(spec) for spec in specs}
        self._max_depth = max_depth

    async def give(self, description: str, prompt: str, subagent_type: str, ctx: ToolContext, task_id: str = "") -> str:
        """Give a task.

        Args:
            description: the task in three to five words.
            prompt: the whole task.
            subagent_type: who shall do it.
            task_id: an earlier task to go on with.
            ctx: the call.
        """
        agent = self._types.get(subagent_type)
        if agent is None:
            return f"There is no subagent type {subagent_type!r}; choose one of: {', '.join(self._types)}."
        depth = int(ctx.ephemeral_metadata.get(DEPTH, 0))
        if depth >= self._max_depth:
            return f"The task was not given: tasks are already {depth} deep, which is the limit. Do it yourself."
        if ctx.port is None:
            raise RunError("a task can only be given in a running call")
        below = {DEPTH: depth + 1}
        try:
            done = await run_child(ctx.port, agent, prompt, resumable=True, task_id=task_id or None, ephemeral=below)
        except UnknownTask as unknown:
            return f"The task was not given: {unknown.message}."
        return _report(done)


def _report(done: SubagentResult) -> str:
    """What the model reads of a task."""
    asked = "; ".join(str(question.get("question")) for question in done.interrupts)
    head = "" if done.success else f"The task stopped: {done.stop_reason}.{f' It asks: {asked}' if asked else ''}\n"
    return f"{head}{done.text}\n\n(task_id: {done.task_id})"


class _Subagent(Runnable):
    """A spec as a definition: which agent it is follows from the parent."""

    def __init__(self, spec: SubagentSpec) -> None:
        super().__init__()
        self._spec = spec
        self._made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def label(self) -> str:
        """What events carry as ``agent_name``."""
        return self._spec.name

    def parts(self) -> list[Any]:
        return [type(self), type(self._spec.model)]

    def __getstate__(self) -> SubagentSpec:
        return self._spec

    def __setstate__(self, spec: SubagentSpec) -> None:
        _Subagent.__init__(self, spec)

    def as_child_of(self, parent: Any) -> Any:
        """The agent of this type that works for ``parent``.

        Raises:
            ConfigurationError: the spec names tools that the parent does not have.
        """
        made = self._made.get(parent)
        if made is None:
            made = self._made[parent] = self._make(parent)
        return made

    def _make(self, parent: Any) -> Any:
        spec, config = self._spec, parent.given
        having = {tool.name: tool for tool in config.tools}
        missing = [name for name in spec.tools or () if name not in having]
        if missing:
            raise ConfigurationError(
                f"subagent type {spec.name!r} names tools that its parent does not have: {', '.join(missing)}; "
                f"it has: {', '.join(having)}"
            )
        settings: dict[str, Any] = {"name": spec.name, "max_iterations": spec.max_iterations}
        if spec.with_hooks:
            settings |= {"hooks": config.hooks, "plugins": config.plugins}
        if spec.model is None:
            own = ("model_kwargs", "model_retry", "temperature", "max_tokens", "context_window", "placement")
            settings |= {name: getattr(config, name) for name in own}
        return type(parent)(
            spec.model if spec.model is not None else config.model,
            [having[name] for name in (having if spec.tools is None else spec.tools)],
            spec.system_prompt if spec.system_prompt is not None else config.system_prompt,
            **settings,
        )
