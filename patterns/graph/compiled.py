"""``CompiledGraph``: a graph that can be run, streamed, looked into and amended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...actors.run_handle import RunHandle
from ...protocol.errors import ConfigurationError
from ...protocol.events import Event
from ...protocol.results import AgentResult, RunOutcome
from ..pattern import Pattern
from .bodies import check_bodies, tools_of
from .commands import Command
from .node import mentions, names
from .plan import Plan
from .reply import fields_of, is_record, update_of
from .result import GraphResult
from .runner import ALL, Rules, Runner
from .schema import Write
from .state_view import GraphCalls
from .streaming import Mode, check_modes, stream
from .structure import Structure
from .timeline import input_of

if TYPE_CHECKING:
    from ...actors.supervisor.stage import Stage
    from ...protocol.patterns import Ending


class CompiledGraph(GraphCalls, Pattern):
    """A checked, frozen graph; :meth:`StateGraph.compile` makes it. Source: PAT-30.

    It has the calls of any pattern: ``arun``, ``run``, ``start``, ``aresume``, ``continue_turn``, ``cancel``...
    Its input is a mapping (or an instance of the schema) that is merged into the thread's state, or a text, which becomes
    the state's ``task`` or a message.

    Args:
        plan: what it consists of.
        max_iterations: supersteps of one turn; reaching it is the failure ``CapReached``.
        parallel: False runs the tasks of a superstep one by one.
        interrupt_before, interrupt_after: nodes (``"*"``: all) before and after which a person is asked.
        checkpoint_every_step: keep a checkpoint of every superstep in the thread's history; otherwise of every turn.
        stream_mode: of :meth:`astream`, where none is given.
        **settings: of :class:`Pattern`: ``checkpointer``, ``max_concurrency``, ``token_budget``, ...
            With ``on_error="continue"`` a failed node is passed over like one whose condition is false, and the run succeeds
            if any node does.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        max_iterations: int = 100,
        parallel: bool = True,
        interrupt_before: str | Iterable[str] = (),
        interrupt_after: str | Iterable[str] = (),
        checkpoint_every_step: bool = True,
        stream_mode: Mode | Iterable[Mode] = "values",
        **settings: Any,
    ) -> None:
        if max_iterations < 1:
            raise ConfigurationError(f"max_iterations must be 1 or more, not {max_iterations}")
        check_bodies(plan)
        self.plan = plan
        self.stream_mode = check_modes(stream_mode)
        settings = {"name": plan.name, "keep_iteration_checkpoints": checkpoint_every_step, **settings}
        members = {node.name: node.action for node in plan.nodes.values() if node.kind != "function"}
        super().__init__(members, functions=tools_of(plan), **settings)
        self.rules = Rules(
            max_iterations=max_iterations,
            parallel=parallel,
            interrupt_before=self._named(interrupt_before, "interrupt_before"),
            interrupt_after=self._named(interrupt_after, "interrupt_after"),
            tolerant=self.on_error == "continue",
        )

    def _named(self, given: str | Iterable[str], option: str) -> frozenset[str]:
        chosen = frozenset(names(given))
        unknown = sorted(chosen - self.plan.nodes.keys() - {ALL})
        if unknown:
            raise ConfigurationError(f"{option}: {unknown[0]!r} is no node; there are {', '.join(self.plan.nodes)}")
        return chosen

    def structure(self) -> Structure:
        """The graph as nodes and edges."""
        return self.plan.structure()

    @property
    def leaves_to_parent(self) -> bool:
        """Whether a node of it may send a ``Command`` to the graph that has this one as a node."""
        return any(
            node.kind == "function" and mentions(node.action, frozenset({"PARENT"})) for node in self.plan.nodes.values()
        )

    async def conduct(self, stage: Stage) -> Ending:
        return await Runner(self.plan, self.rules, stage).run()

    def user_code(self) -> list[Any]:
        nodes = self.plan.nodes.values()
        functions = [part for node in nodes for part in (node.condition, node.on_error, node.input, node.output)]
        functions += [node.action for node in nodes if node.kind == "function"]
        functions += [node.cache.key for node in nodes if node.cache is not None]
        functions += [branch.router for branches in self.plan.branches.values() for branch in branches]
        schemas = [each for each in (self.plan.schema, self.plan.input_schema, self.plan.output_schema) if each is not None]
        functions += [key.reducer.combine for each in schemas for key in each.keys.values() if key.reducer is not None]
        return [
            part for part in [*functions, *(each.source for each in schemas)] if part is not None and not isinstance(part, str)
        ]

    # how it is called

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        """A text, a mapping, an instance of the schema, a ``Command`` (its update), or None for no new input.

        Raises:
            ConfigurationError: it is something else, or not JSON.
            InvalidUpdate: a key is unknown, or a value does not fit its type.
        """
        if isinstance(prompt, Command):
            if prompt.resume is not None or prompt.goto is not None:
                raise ConfigurationError("a Command as input updates the state or answers a pause: use arun, run or aresume")
            prompt = prompt.update
        if prompt is None:
            prompt = {}
        if is_record(prompt):
            prompt = fields_of(prompt)
        if not isinstance(prompt, str | Mapping):
            raise ConfigurationError(f"{self.title} takes a mapping, its schema or a text, not {type(prompt).__name__}")
        values = None if isinstance(prompt, str) else update_of(prompt, "the input")
        schema = self.plan.input_schema or self.plan.schema
        text = prompt if isinstance(prompt, str) else ""
        schema.fold({}, [Write("the input", key, value) for key, value in input_of(self.plan, text, values).items()])
        return Pattern.input_of(self, text if values is None else values)

    async def arun(self, prompt: Any = None, **options: Any) -> GraphResult:
        """Run the graph to its end, or to a pause; the options are those of :meth:`Runnable.arun`.

        Args:
            prompt: see :meth:`input_of`. ``Command(resume=answer)`` answers the pause of ``thread_id``, or of the only run
                that this object saw pause.
            **options: of :meth:`Runnable.arun`, or of :meth:`Runnable.aresume`.

        Raises:
            InvalidUpdate: the input does not fit the schema.
            NotPaused: there is nothing to answer.
        """
        if isinstance(prompt, Command) and prompt.resume is not None:
            return await self.aresume(answer_in(prompt), **options)
        return own(await super().arun(prompt, **options))

    async def start(self, prompt: Any = None, **options: Any) -> RunHandle:
        """Begin a run that goes on without its caller; the options are those of :meth:`Runnable.start`."""
        return await super().start(prompt, **options)

    async def aresume(self, answer: Any = None, **options: Any) -> GraphResult:
        return own(await super().aresume(answer, **options))

    async def continue_turn(self, thread_id: str, **options: Any) -> GraphResult:
        """Go on with a turn that was cut off, or in which nodes failed: what is finished is kept, what failed is tried again.

        Also what follows a fork of a superstep, or ``update_state(as_node=...)``. The options and errors are those of
        :meth:`Runnable.continue_turn`.
        """
        return own(await super().continue_turn(thread_id, **options))

    async def run(self, prompt: Any = None, **options: Any) -> AsyncGenerator[Event, None]:
        """The same, event by event; the options are those of :meth:`Runnable.run`."""
        answers = isinstance(prompt, Command) and prompt.resume is not None
        events = self.resume(answer_in(prompt), **options) if answers else super().run(prompt, **options)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def run_sync(self, prompt: Any = None, **options: Any) -> GraphResult:
        """:meth:`arun` for synchronous code; also where an event loop runs. Source: PAT-63."""
        return own(super().run_sync(prompt, **options))

    def resume_sync(self, answer: Any = None, **options: Any) -> GraphResult:
        return own(super().resume_sync(answer, **options))

    def invoke(self, prompt: Any = None, **options: Any) -> GraphResult:
        """Another name for :meth:`run_sync`."""
        return self.run_sync(prompt, **options)

    async def ainvoke(self, prompt: Any = None, **options: Any) -> GraphResult:
        """Another name for :meth:`arun`."""
        return await self.arun(prompt, **options)

    async def astream(
        self, prompt: Any = None, mode: Mode | Iterable[Mode] | None = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """Run the graph, and yield what happens. Source: PAT-61, PAT-62.

        Args:
            prompt: as for :meth:`arun`.
            mode: what is yielded; several modes give ``(mode, data)``.
                ``values``: the state after the input and after each superstep.
                ``updates``: ``{node: update}`` when a task has ended well.
                ``nodes``: ``{"node", "task", "status", "output", "duration_ms", "error"}`` when a task has ended.
                ``messages``: ``{"node", "text"}`` for pieces of text from models, at any depth.
                ``custom``: what nodes emit (:func:`emit`).
                ``events``: the run's events as they are.
                ``debug``: ``{"type", ...}`` of every event, as plain values.
            **options: as for :meth:`run`.

        Closing the stream early stops the run.
        """
        modes = self.stream_mode if mode is None else check_modes(mode)
        several = not isinstance(self.stream_mode_given(mode), str)
        options.setdefault("stream_tokens", "messages" in modes)
        pieces = stream(self.run(prompt, **options), modes)
        try:
            async for kind, data in pieces:
                yield (kind, data) if several else data
        finally:
            await pieces.aclose()

    def stream_mode_given(self, mode: Any) -> Any:
        """The mode as it was written: one, or several."""
        if mode is not None:
            return mode if isinstance(mode, str) else tuple(mode)
        return self.stream_mode[0] if len(self.stream_mode) == 1 else self.stream_mode

    def result_of(self, outcome: RunOutcome) -> GraphResult:
        return GraphResult.of_graph(outcome, self.plan)


def own(result: AgentResult) -> GraphResult:
    """A graph's result, known as one."""
    assert isinstance(result, GraphResult)
    return result


def answer_in(command: Any) -> Any:
    """The answer that a command holds.

    Raises:
        ConfigurationError: it also wants something else.
    """
    if command.update is not None or command.goto is not None:
        raise ConfigurationError("Command(resume=...) answers a pause and nothing else: use update_state before it")
    return command.resume
