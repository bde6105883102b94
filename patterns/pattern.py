"""``Pattern``: the base of all coordination patterns. A frozen definition whose program runs in a supervisor.

A pattern is a run like an agent's: the same calls, threads, pauses, cancels, budgets, events and recovery. What it does is
its :meth:`Pattern.conduct`, plain async code on a stage (``actors/supervisor/stage.py``). Source: OURS-24, OURS-25.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel

from ..actors.checkpoints.registry import resolve_url
from ..actors.runnable import Runnable
from ..actors.tools.decorator import Tool
from ..protocol.config import AgentConfig, build_config
from ..protocol.errors import ConfigurationError, DefinitionError
from ..protocol.patterns import Ending, PatternResult
from ..protocol.results import RunOutcome
from ..protocol.state import AgentState
from .function import function_member
from .structure import END, START, Edge, Structure, structured

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..actors.run_handle import RunHandle
    from ..actors.supervisor.stage import Stage
    from ..protocol.event import Event

OnError = Literal["fail", "continue"]
ON_ERROR = ("fail", "continue")
Member = Any  # a Runnable, a Tool, a function of one text, or an object with arun or run_sync


class Pattern(Runnable):
    """Agents (and patterns, and functions) that work together.

    Args:
        members: who works together, in order, or by name. An agent, another pattern, a ``@tool`` with one argument, a function
            that takes the prompt and returns its answer, or any object with ``arun`` or ``run_sync``. A crash never runs a
            function twice, unless it is a ``@tool(idempotent=True)``: its step fails with ``outcome_unknown``.
        auxiliary: agents of the pattern's own (a router, a judge), by name.
        functions: tools that the program calls.
        name: in events, results and errors.
        on_error: what a failed member means: the pattern fails (``fail``), or goes on without it (``continue``).
        max_concurrency: members at work at the same time; None is no limit.
        checkpointer: store URL; members that have none of their own use it, too.
        token_budget, max_cost_usd, time_budget_seconds: of the whole tree.
        durability, lease_seconds, keep_iteration_checkpoints, metadata, callback_handler, cancel_grace_seconds: as for
            ``Agent``; an iteration is a step.

    Raises:
        ConfigurationError: two members of one name, or a setting out of range.
        DefinitionError: something that cannot be a member.
    """

    is_pattern = True
    output_schema = None

    def __init__(
        self,
        members: Iterable[Member] | Mapping[str, Member] = (),
        *,
        auxiliary: Mapping[str, Runnable] | None = None,
        functions: Iterable[Tool] = (),
        name: str | None = None,
        on_error: OnError = "fail",
        max_concurrency: int | None = None,
        checkpointer: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if on_error not in ON_ERROR:
            raise ConfigurationError(f"on_error must be 'fail' or 'continue', not {on_error!r}")
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigurationError(f"max_concurrency must be 1 or more, not {max_concurrency}")
        self.on_error: OnError = on_error
        self.max_concurrency = max_concurrency
        self.members = named(members)
        self.auxiliary: dict[str, Runnable] = dict(auxiliary or {})
        twice = sorted(self.auxiliary.keys() & self.members.keys())
        if twice:
            raise ConfigurationError(f"a member cannot have the name of a part of the pattern: {', '.join(twice)}")
        self.functions = tuple(functions)
        if isinstance(checkpointer, str):
            settings["checkpointer"] = resolve_url(checkpointer)  # actors have other working directories
        refused = sorted(settings.keys() - SETTINGS)
        if refused:
            raise ConfigurationError(
                f"{type(self).__name__} has no setting {', '.join(refused)}; it has {', '.join(sorted(SETTINGS))}"
            )
        self._use(build_config(None, {"model": None, "system_prompt": None, "name": name, **settings}))

    def _use(self, config: AgentConfig) -> None:
        self.config = config
        self.checkpointer = config.checkpointer
        self.callback_handler = config.callback_handler
        if self.checkpointer is not None:
            url = self.checkpointer
            self.members = {key: _stored(member, url) for key, member in self.members.items()}
            self.auxiliary = {key: member.stored_in(url) for key, member in self.auxiliary.items()}
        self.tools_by_name: dict[str, Tool] = {}
        functions = [(tool.name, tool) for tool in self.functions]
        for key, tool in [*functions, *((key, one) for key, one in self.members.items() if isinstance(one, Tool))]:
            if self.tools_by_name.setdefault(key, tool) is not tool:
                raise ConfigurationError(f"{self.title} has two functions with the name {key!r}: each needs one of its own")
        self.blank_state = AgentState(
            agent_id=config.agent_id,
            token_budget=config.token_budget,
            cost_budget_usd=config.max_cost_usd,
            input_price_per_million=0.0,  # it calls no model itself: its cost is what its members cost
            output_price_per_million=0.0,
        )

    async def conduct(self, stage: Stage) -> Ending:
        """What the pattern does, on a stage; played again after a pause or a crash, so it keeps nothing but local variables."""
        raise NotImplementedError

    def find(self, name: str) -> Any:
        """A member or part by name.

        Raises:
            ConfigurationError: there is none; the error lists what there is.
        """
        found = self.members.get(name) or self.auxiliary.get(name)
        if found is None:
            known = ", ".join([*self.members, *self.auxiliary]) or "none"
            raise ConfigurationError(f"{self.title} has no member {name!r}; it has: {known}")
        return found

    def structure(self) -> Structure:
        """What it looks like, for drawings."""
        return structured(self.title, type(self).__name__, {**self.members, **self.auxiliary}, self.auxiliary, self.flow())

    def flow(self) -> Iterable[Edge]:
        """The edges of its structure: between members and parts, ``START`` and ``END``. Unless it knows better, any may run."""
        names = [*self.members, *self.auxiliary]
        return [*(Edge(START, name, "conditional") for name in names), *(Edge(name, END, "conditional") for name in names)]

    # what a run is made of

    system_message = None
    gsar = None

    @property
    def hooks(self) -> Any:
        """None of its own: its members have theirs."""
        return NO_HOOKS

    @property
    def title(self) -> str:
        return self.config.name or self.config.agent_id or type(self).__name__

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self.config.name

    @property
    def label(self) -> str | None:
        """What events carry as ``agent_name``."""
        return self.title

    def inner(self) -> list[Any]:
        runs = [member for member in self.members.values() if isinstance(member, Runnable)]
        agents = [tool.agent for tool in self.tools_by_name.values() if tool.agent is not None]
        return [*runs, *self.auxiliary.values(), *agents]

    def parts(self) -> list[Any]:
        own = [*map(type, type(self).__mro__), type(self), *self.user_code()]
        return [
            *own,
            *(tool.function for tool in self.tools_by_name.values()),
            *(part for one in self.inner() for part in one.parts()),
        ]

    def user_code(self) -> list[Any]:
        """Functions and classes of the user's that the definition holds, besides its members."""
        return []

    def stored_in(self, url: str) -> Self:
        if self.checkpointer is not None:
            return self
        other = copy.copy(self)
        Runnable.__init__(other)
        other._use(self.config.model_copy(update={"checkpointer": url}))
        return other

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name not in _OF_A_PROCESS}
        return own | {"config": self.config.model_copy(update={"callback_handler": None}), "callback_handler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Runnable.__init__(self)
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title!r}, members={list(self.members)})"

    # how it is called

    if TYPE_CHECKING:  # what runs of patterns give is more than what runs of agents give

        async def arun(self, prompt: Any, **options: Any) -> PatternResult: ...
        async def aresume(self, answer: Any = None, **options: Any) -> PatternResult: ...
        async def continue_turn(self, thread_id: str, **options: Any) -> PatternResult: ...
        def run_sync(self, prompt: Any, **options: Any) -> PatternResult: ...
        def resume_sync(self, answer: Any = None, **options: Any) -> PatternResult: ...
        def invoke(self, prompt: Any, **options: Any) -> PatternResult: ...
        def run(self, prompt: Any, **options: Any) -> AsyncGenerator[Event, None]: ...
        async def start(self, prompt: Any, **options: Any) -> RunHandle: ...
        def start_sync(self, prompt: Any, **options: Any) -> RunHandle: ...

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        """A text, or a mapping or pydantic model as structured input (JSON values).

        Raises:
            ConfigurationError: it is neither, or holds something that is not JSON.
        """
        if isinstance(prompt, str):
            return prompt, None
        if isinstance(prompt, BaseModel):
            prompt = prompt.model_dump(mode="json")
        if not isinstance(prompt, Mapping):
            raise ConfigurationError(f"{self.title} takes a text, a mapping or a pydantic model, not {type(prompt).__name__}")
        try:
            text = json.dumps(dict(prompt), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the input of {self.title} must be JSON values: {error}") from error
        return text, json.loads(text)

    def result_of(self, outcome: RunOutcome) -> PatternResult:
        return PatternResult.of(outcome)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """This pattern as a tool with one argument, ``prompt``; each call is a child run."""
        name = name or self.config.name
        if not name:
            raise ConfigurationError("as_tool needs a name: name=... of the pattern, or as_tool(name=...)")
        return Tool(name=name, description=description or f"Ask {name}.", agent=self)


SETTINGS = frozenset(
    {
        "checkpointer",
        "token_budget",
        "max_cost_usd",
        "time_budget_seconds",
        "durability",
        "lease_seconds",
        "keep_iteration_checkpoints",
        "checkpoint_every_n_iterations",
        "metadata",
        "callback_handler",
        "cancel_grace_seconds",
        "agent_id",
    }
)
_OF_A_PROCESS = frozenset(Runnable().__dict__)


class _NoHooks:
    """Hooks that nobody has registered."""

    def __getattr__(self, callback: str) -> tuple[()]:
        return ()


NO_HOOKS = _NoHooks()


def named(members: Iterable[Member] | Mapping[str, Member]) -> dict[str, Any]:
    """Members by name: their own, with a number where several have the same.

    Raises:
        ConfigurationError: a name that is not text, or is empty.
        DefinitionError: something that cannot be run.
    """
    if isinstance(members, Mapping):
        bad = [key for key in members if not isinstance(key, str) or not key]
        if bad:
            raise ConfigurationError(f"members have names of one character or more, not {bad[0]!r}")
        return {key: member_of(member, key) for key, member in members.items()}
    found: dict[str, Any] = {}
    for index, given in enumerate(members):
        title = _title(given, index)
        key, count = title, 1
        while key in found:
            count += 1
            key = f"{title}-{count}"
        found[key] = member_of(given, key)
    return found


def member_of(member: Member, name: str) -> Any:
    """What stands for ``member`` in a pattern: itself, or a function that calls it.

    Raises:
        DefinitionError: it cannot be run.
    """
    if isinstance(member, Tool) and member.agent is not None:
        return member.agent
    if isinstance(member, Tool) and member.text_argument is None:
        raise DefinitionError(f"{name}: the tool {member.name} cannot be a member: a member takes one text, and nothing else")
    if isinstance(member, Runnable | Tool):
        return member
    for call in ("arun", "run_sync"):
        method = getattr(member, call, None)
        if callable(method) and not isinstance(member, type):
            return function_member(name, method)
    if callable(member) and not isinstance(member, type):
        return function_member(name, member)
    raise DefinitionError(
        f"{name}: {type(member).__name__} cannot be a member; use an Agent, a pattern, a @tool or a function of one text"
    )


def _title(member: Member, index: int) -> str:
    own = getattr(member, "title", None) or getattr(member, "name", None) or getattr(member, "__name__", None)
    return own if isinstance(own, str) and own and own != "<lambda>" else f"member-{index + 1}"


def _stored(member: Any, url: str) -> Any:
    return member.stored_in(url) if isinstance(member, Runnable) else member


async def settled(value: Any) -> Any:
    """What a user's function gave, sync or async."""
    return await value if inspect.isawaitable(value) else value
