"""Pauses of a graph: in nodes, before and after them, several at once; threads, updates, forks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest

from umbel import PatternResult, Runtime, ToolContext, attach
from umbel.errors import (
    CheckpointNotFound,
    ConfigurationError,
    InvalidUpdate,
    NoCheckpointer,
    NotPaused,
    RunError,
)
from umbel.events import GraphStreamEvent
from umbel.patterns.graph import START, Command, GraphResult, NodeRetry, Send, StateGraph, interrupt, nodes, resume_with
from umbel.reducers import append

from .samples import Counted


class Log(TypedDict, total=False):
    log: Annotated[list[str], append]
    n: int


def graph(*edges: tuple[Any, str], **nodes: Any) -> StateGraph:
    made = StateGraph(Log)
    for name, node in nodes.items():
        made.add_node(name, node)
    for source, target in edges:
        made.add_edge(source, target)
    return made


def ask_sync(state: Log) -> dict[str, Any]:
    return {"log": f"{interrupt('one?')} {interrupt({'question': 'two?', 'more': [1]}, options=['x', 'y'])}"}


async def ask_async(state: Log) -> dict[str, Any]:
    one = interrupt("one?")
    await asyncio.sleep(0)
    return {"log": f"{one} {interrupt({'question': 'two?', 'more': [1]}, options=['x', 'y'])}"}


@pytest.mark.spec("PAT-52", "PAT-53", "PAT-54", "OURS-28", "BUG-59")
@pytest.mark.parametrize("node", [ask_sync, ask_async])
async def test_a_node_asks_twice_and_goes_on(runtime: Runtime, tmp_path: Path, node: Any) -> None:
    made = graph((START, "a"), ("a", "b"), a=node, b=lambda state: {"log": "b"}).compile(
        checkpointer=f"sqlite:///{tmp_path}/t.db"
    )
    paused = await made.arun({"log": "in"}, thread_id="t")
    assert not paused.success and paused.stop_reason == "interrupted" and paused.value == {"log": ["in"]}
    assert [asked["question"] for asked in paused.interrupts] == ["one?"] and paused.nodes["a"].status == "interrupted"
    assert (await made.get_state("t")).next == ("a",)
    again = await made.arun(Command(resume=0), thread_id="t")
    assert [asked["question"] for asked in again.interrupts] == ["two?"] and again.interrupts[0]["options"] == ["x", "y"]
    assert again.interrupts[0]["metadata"] == {"value": {"question": "two?", "more": [1]}}
    done = await made.arun(resume_with("y"), thread_id="t")
    assert done.success and done.value == {"log": ["in", "0 y", "b"]}
    assert (await made.get_state("t")).interrupts == ()


@pytest.mark.usefixtures("inline")
class TestInline:
    @pytest.mark.spec("PAT-53")
    @pytest.mark.parametrize("answer", ["", 0, False, [], {}])
    async def test_an_answer_may_be_anything_but_none(self, answer: Any) -> None:
        made = graph((START, "a"), a=lambda state: {"n": 1} if interrupt("?") == answer else None).compile()
        await made.arun({})
        assert (await made.arun(Command(resume=answer))).value == {"n": 1}

    @pytest.mark.spec("PAT-53", "PAT-57")
    async def test_none_begins_anew_and_an_answer_needs_a_pause(self, tmp_path: Path) -> None:
        made = graph((START, "a"), a=lambda state: {"log": "a"}).compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        assert (await made.arun(Command(resume=None, update={"n": 3}), thread_id="t")).value == {"log": ["a"], "n": 3}
        with pytest.raises(NotPaused):
            await made.arun(Command(resume="yes"), thread_id="t")
        with pytest.raises(NotPaused):
            await made.arun(Command(resume="yes"), thread_id="new")
        with pytest.raises(ConfigurationError, match="nothing else"):
            await made.arun(Command(resume="yes", update={"n": 1}), thread_id="t")
        with pytest.raises(ConfigurationError, match="Command as input"):
            await made.arun(Command(goto="a"))

    @pytest.mark.spec("PAT-55", "OURS-28")
    async def test_siblings_of_a_node_that_asks_finish_and_do_not_run_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        count = Counted()
        made = graph((START, "z"), ("z", "a"), ("z", "b"), ("z", "c"), z=count("z"), a=count("a"), c=count("c"))
        made.add_node("b", lambda s: {"log": interrupt("?")})
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        paused = await run.arun({}, thread_id="t")
        assert paused.stop_reason == "interrupted" and count.runs == ["z", "a", "c"]
        done = await run.aresume("b", thread_id="t")
        assert done.value == {"log": ["z", "a", "b", "c"]} and count.runs == ["z", "a", "c"]
        assert not caplog.records, "no step waits for one that nobody asks for"

    @pytest.mark.spec("PAT-56", "PAT-30", "BUG-59")
    async def test_before_and_after_nodes(self, tmp_path: Path) -> None:
        count = Counted()
        made = graph((START, "a"), ("a", "b"), ("b", "c"), a=count("a"), b=count("b"), c=count("c"))
        url = f"sqlite:///{tmp_path}/t.db"
        before = made.compile(checkpointer=url, interrupt_before=["b"])
        paused = await before.arun({}, thread_id="before")
        assert count.runs == ["a"] and paused.interrupts[0]["question"] == "Run node 'b'?"
        assert paused.interrupts[0]["metadata"] == {"node": "b", "task": "b", "when": "before"}
        assert paused.nodes["b"].status == "interrupted" and paused.nodes["a"].status == "completed"
        assert (await before.aresume(thread_id="before")).value == {"log": ["a", "b", "c"]} and count.runs == ["a", "b", "c"]
        count.runs.clear()
        after = made.compile(checkpointer=url, interrupt_after="b")
        paused = await after.arun({}, thread_id="after")
        assert count.runs == ["a", "b"] and paused.interrupts[0]["metadata"]["when"] == "after"
        state = await after.get_state("after")
        assert state.values == {"log": ["a", "b"]} and state.next == ("c",) and len(state.interrupts) == 1
        assert (await after.aresume(thread_id="after")).value == {"log": ["a", "b", "c"]} and count.runs == ["a", "b", "c"]
        with pytest.raises(ConfigurationError, match="interrupt_after: 'x' is no node"):
            made.compile(interrupt_after="x")

    @pytest.mark.spec("PAT-56")
    async def test_before_every_node_and_after_the_last(self) -> None:
        count = Counted()
        made = graph((START, "a"), (START, "b"), a=count("a"), b=count("b"))
        every = made.compile(interrupt_before="*")
        paused = await every.arun({})
        assert len(paused.interrupts) == 2 and count.runs == []
        answers = {asked["interrupt_id"]: True for asked in paused.interrupts}
        assert (await every.aresume(answers=answers)).value == {"log": ["a", "b"]}
        last = made.compile(interrupt_after=["a"])
        paused = await last.arun({})
        assert paused.value == {"log": ["a", "b"]} and (await last.aresume(result=paused)).success

    @pytest.mark.spec("OURS-2", "PAT-50")
    async def test_several_sends_ask_and_are_answered_in_any_order(self, tmp_path: Path) -> None:
        made = StateGraph(Log).add_node("split", lambda s: [Send("work", {"n": n}, id=f"w{n}") for n in (1, 2)])
        made.add_node("work", lambda s: {"log": f"{s['n']}{interrupt(str(s['n']))}"}).add_edge(START, "split")
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        paused = await run.arun({}, thread_id="t")
        ids = {asked["question"]: asked["interrupt_id"] for asked in paused.interrupts}
        half = await run.aresume("b", thread_id="t", interrupt_id=ids["2"])
        assert [asked["question"] for asked in half.interrupts] == ["1"]
        assert (await run.aresume("a", thread_id="t")).value == {"log": ["1a", "2b"]}

    @pytest.mark.spec("PAT-52")
    async def test_interrupt_belongs_into_a_node(self) -> None:
        with pytest.raises(RunError, match="belongs into a node"):
            interrupt("?")

    async def test_a_node_may_take_the_tool_context(self) -> None:
        async def node(state: Log, ctx: ToolContext) -> dict[str, Any]:
            return {"log": ctx.interrupt("by hand?")}

        made = graph((START, "a"), a=node).compile()
        paused = await made.arun({})
        events = [event async for event in made.run(Command(resume="x"), result=paused)]
        assert [event.data for event in events if isinstance(event, GraphStreamEvent) and event.mode == "values"] == [
            {"log": ["x"]}
        ]

    @pytest.mark.spec("PAT-58", "OURS-28")
    async def test_a_second_run_goes_on_with_the_state(self, tmp_path: Path) -> None:
        made = graph((START, "a"), a=lambda s: {"log": f"a{s.get('n', 0)}"}).compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await made.arun({"log": "one"}, thread_id="t")
        result = await made.arun({"log": ["two"], "n": 7}, thread_id="t")
        assert result.value == {"log": ["one", "a0", "two", "a7"], "n": 7} and result.iterations == 1

    @pytest.mark.spec("PAT-58", "OURS-28")
    async def test_after_a_failed_node_only_it_and_what_follows_run_again(self, tmp_path: Path) -> None:
        count = Counted()
        broken = True

        def flaky(state: Log) -> dict[str, Any]:
            count.runs.append("b")
            if broken:
                raise LookupError("down")
            return {"log": "b"}

        made = graph((START, "a"), (START, "b"), ("a", "c"), ("b", "d"), a=count("a"), b=flaky, c=count("c"), d=count("d"))
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        failed = await run.arun({}, thread_id="t")
        assert not failed.success and count.runs == ["a", "b", "c"] and failed.value == {"log": ["a", "c"]}
        assert (await run.get_state("t")).next == ("b",)
        still = await run.continue_turn("t")
        assert not still.success and count.runs == ["a", "b", "c", "b"]
        broken = False
        done = await run.continue_turn("t")
        assert done.success, done.error
        assert count.runs == ["a", "b", "c", "b", "b", "d"] and done.value == {"log": ["a", "c", "b", "d"]}
        assert done.nodes["b"].status == "completed"

    @pytest.mark.spec("PAT-59")
    async def test_the_history_has_every_superstep_and_a_fork_runs_on_from_one(self, tmp_path: Path) -> None:
        count = Counted()
        made = graph((START, "a"), ("a", "b"), ("b", "c"), a=count("a"), b=count("b"), c=count("c"))
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await run.arun({"log": "in"}, thread_id="t")
        history = await run.get_state_history("t")
        assert [(state.step, state.next, state.stop_reason) for state in history] == [
            (3, (), "complete"),
            (3, (), None),
            (2, ("c",), None),
            (1, ("b",), None),
            (0, ("a",), None),
        ]
        assert [state.values["log"] for state in history[2:]] == [["in", "a", "b"], ["in", "a"], ["in"]]
        earlier = history[3]
        assert (await run.get_state("t", earlier.checkpoint_id)).values == earlier.values and earlier.created_at is not None
        fork = await run.fork("t", checkpoint_id=earlier.checkpoint_id)
        await run.update_state(fork, {"log": "changed"})
        count.runs.clear()
        result = await run.continue_turn(fork)
        assert result.value == {"log": ["in", "a", "changed", "b", "c"]} and count.runs == ["b", "c"]
        assert (await run.get_state("t")).values == {"log": ["in", "a", "b", "c"]}

    @pytest.mark.spec("PAT-59")
    async def test_a_thread_that_was_set_back_has_a_history_of_its_own(self, tmp_path: Path) -> None:
        made = graph((START, "a"), ("a", "b"), a=lambda s: {"log": "a"}, b=lambda s: {"log": "b"})
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await run.arun({}, thread_id="t")
        first = (await run.get_state_history("t"))[-2]
        assert first.step == 1
        await run.threads.update("t", metadata={"set": "back"}, checkpoint_id=first.checkpoint_id)
        await run.update_state("t", {"log": "other"})
        assert [state.values.get("log") for state in await run.get_state_history("t")] == [
            ["a", "other"],
            ["a"],
            ["a", "b"],
            ["a", "b"],
            ["a"],
            None,
        ]

    @pytest.mark.spec("PAT-59", "PAT-30")
    async def test_without_checkpoints_of_steps_the_history_has_turns(self, tmp_path: Path) -> None:
        made = graph((START, "a"), ("a", "b"), a=lambda s: None, b=lambda s: {"log": "b"})
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db", checkpoint_every_step=False)
        await run.arun({}, thread_id="t")
        assert len(await run.get_state_history("t")) == 1
        with pytest.raises(NoCheckpointer):
            await made.compile().get_state("t")
        with pytest.raises(CheckpointNotFound):
            await run.get_state("nowhere")

    @pytest.mark.spec("PAT-59")
    async def test_an_update_uses_reducers_and_keeps_a_pause(self, tmp_path: Path) -> None:
        made = graph((START, "a"), ("a", "b"), a=lambda s: {"log": "a"}, b=lambda s: {"log": f"{interrupt('?')} {s['n']}"})
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await run.arun({}, thread_id="t")
        await run.update_state("t", {"log": ["edited"], "n": 5})
        await run.update_state("t", {"log": "as b"}, as_node="b")
        state = await run.get_state("t")
        assert state.values == {"log": ["a", "edited", "as b"], "n": 5} and state.next == ("b",)
        assert len(state.interrupts) == 1 and state.stop_reason is None
        assert (await run.aresume("yes", thread_id="t")).value == {"log": ["a", "edited", "as b", "yes 5"], "n": 5}
        with pytest.raises(InvalidUpdate, match="'x', which is no key"):
            await run.update_state("t", {"x": 1})
        with pytest.raises(ConfigurationError, match="'x' is no node"):
            await run.update_state("t", {"n": 1}, as_node="x")

    async def test_a_graph_that_has_lost_a_node_since_says_so(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/t.db"
        made = graph((START, "a"), ("a", "b"), a=lambda s: {"log": "a"}, b=lambda s: {"log": interrupt("?")})
        await made.compile(checkpointer=url).arun({}, thread_id="t")
        other = graph((START, "c"), c=lambda s: {"log": "c"}).compile(checkpointer=url)
        assert (await other.get_state("t")).values == {"log": ["a"]} and (await other.get_state("t")).next == ("b",)
        result = await other.aresume("x", thread_id="t")
        assert not result.success and "node 'b' comes next, and the graph has none of that name" in str(result.error)
        assert result.nodes["c"].status == "pending" and result.graph_id == "graph"

    @pytest.mark.spec("PAT-59")
    async def test_an_update_as_a_node_is_followed_by_what_follows_the_node(self, tmp_path: Path) -> None:
        count = Counted()
        made = graph((START, "a"), ("a", "b"), ("b", "c"), a=count("a"), b=count("b"), c=count("c"))
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await run.arun({}, thread_id="t")
        await run.update_state("t", {"log": "as a"}, as_node="a")
        assert (await run.get_state("t")).next == ("b",)
        count.runs.clear()
        result = await run.continue_turn("t")
        assert count.runs == ["b", "c"] and result.value == {"log": ["a", "b", "c", "as a", "b", "c"]}

    @pytest.mark.spec("PAT-59")
    def test_threads_can_be_handled_in_synchronous_code(self, tmp_path: Path) -> None:
        made = graph((START, "a"), a=lambda s: {"log": interrupt("?")}).compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        with Runtime(inline=True):
            made.run_sync({}, thread_id="t")
            made.update_state_sync("t", {"n": 1})
            assert made.get_state_sync("t").values == {"n": 1}
            assert made.resume_sync("x", thread_id="t").value == {"n": 1, "log": ["x"]}
            assert len(made.get_state_history_sync("t")) >= 2

    @pytest.mark.spec("OURS-24")
    async def test_a_handle_gives_a_graphs_result(self) -> None:
        made = graph((START, "a"), a=lambda s: {"log": "a"}).compile()
        handle = await made.start({"n": 1})
        for result in (await handle.result(), await (await made.attach(handle.run_id)).result()):
            assert isinstance(result, GraphResult) and result.value == {"n": 1, "log": ["a"]}
        assert isinstance(await (await attach(handle.run_id)).result(), PatternResult)

    @pytest.mark.spec("OURS-28", "PAT-31")
    async def test_attempts_and_handlers_may_ask(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        runs: list[str] = []
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr(nodes, "asyncio", SimpleNamespace(sleep=sleep))

        def flaky(state: Log) -> dict[str, Any]:
            runs.append("flaky")
            if len(runs) == 1:
                raise LookupError("once")
            return {"log": interrupt("again?")}

        def broken(state: Log) -> None:
            runs.append("broken")
            raise LookupError("always")

        made = graph((START, "a"), ("a", "b")).add_node("a", flaky, retry=NodeRetry(jitter=0))
        made.add_node("b", broken, on_error=lambda failure: {"log": interrupt("what now?")})
        run = made.compile(checkpointer=f"sqlite:///{tmp_path}/t.db")
        await run.arun({}, thread_id="t")
        paused = await run.aresume("yes", thread_id="t")
        assert paused.interrupts[0]["question"] == "what now?" and paused.nodes["b"].status == "interrupted"
        assert (await run.aresume("this", thread_id="t")).value == {"log": ["yes", "this"]}
        assert runs == ["flaky", "flaky", "flaky", "broken"]
        assert pauses == [1.0], "an attempt that is only recalled is not waited for again"
