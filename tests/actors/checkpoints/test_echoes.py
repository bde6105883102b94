"""A tool's long result is stored once, wherever the state repeats it, and comes back exactly."""

from __future__ import annotations

import json

import pytest

from umbel.actors.checkpoints import Baseline, Store, build_save, restore
from umbel.actors.checkpoints.echoes import LONG, MARK
from umbel.protocol.commands import CheckpointLoaded, SaveCheckpoint
from umbel.protocol.errors import CheckpointError
from umbel.protocol.messages import Message, ToolCall, ToolResult
from umbel.protocol.state import AgentState, ReasoningStep, ToolExecution


def built(state: AgentState, number: int = 0, baseline: Baseline | None = None) -> tuple[SaveCheckpoint, Baseline]:
    return build_save(
        state, store="memory://", thread_id="thread", checkpoint_id=f"c{number}", created_at=1.0, baseline=baseline, every=7
    )


def step(state: AgentState, *results: str, shown: bool = True) -> AgentState:
    """An iteration with these results; the model may have been shown less."""
    calls = tuple(ToolCall(id=f"{state.iteration}-{n}", name="look") for n in range(len(results)))
    state = state.evolve(iteration=state.iteration + 1).with_message(Message.assistant("", calls))
    kept = []
    for call, text in zip(calls, results, strict=True):
        result = ToolResult(tool_call_id=call.id, name="look", content=text)
        state = state.with_message(Message.tool(result if shown else result.evolve(content=text[:10])))
        state = state.with_tool_execution(ToolExecution(tool_name="look", tool_call_id=call.id, result=text))
        kept.append(result)
    return state.with_reasoning_step(ReasoningStep(iteration=state.iteration, tool_calls=calls, tool_results=tuple(kept)))


TEXTS = [
    "short",
    "",
    "é" * LONG,
    "x" * (LONG - 1),
    MARK,
    f"{MARK}2",
    f"{MARK}=",
    f"{MARK}=2",
    f"{MARK}nonsense " * 200,
    'naïve 😀 "\\ \x00' * 400,
]


@pytest.mark.case(17)
@pytest.mark.spec("OURS-22")
async def test_every_result_comes_back_exactly(store: Store) -> None:
    state, baseline, states = AgentState(run_id="r").with_message(Message.system("prompt")), None, {}
    for number, text in enumerate([*TEXTS, *TEXTS]):
        if number == 5:  # the prompt is another one: the messages of that delta begin with it
            state = state.evolve(messages=(Message.system("another"), *state.messages[1:]))
        if number == 12:  # compacted: every place is another one
            state = state.evolve(messages=(state.messages[0], Message.user("summary"), *state.messages[9:]))
        if number % 6 == 4:  # a new turn begins: lists that are written anew, not appended to
            state = state.evolve(tool_executions=(), reasoning_steps=())
        state = step(state, text, f"{number} {text}", text, shown=number % 3 != 2)
        state = state.evolve(thread_executions=(*state.thread_executions, state.tool_executions[-1]))
        save, baseline = built(state, number, baseline)
        await store.save([save])
        states[save.checkpoint_id] = state
    for checkpoint_id, expected in states.items():
        found = restore(await store.load("thread", checkpoint_id))
        assert found is not None
        assert found.state == expected


def test_a_long_result_is_in_a_delta_once() -> None:
    text = "result " * 1_000
    _, baseline = built(AgentState().with_message(Message.user("go")))
    save, after = built(step(baseline.state, text), 1, baseline)
    assert len(text) < len(save.state) < len(text) + 1_500
    stored = json.loads(save.state)
    assert stored["tool_executions"][0]["result"] == stored["reasoning_steps"][0]["tool_results"][0]["content"] == f"{MARK}2"
    again, _ = built(step(after.state, text), 2, after)
    assert f"{MARK}4".encode() in again.state


@pytest.mark.parametrize("place", ["9", "0", "-1", "x", "", "1.0", "²", "9" * 5_000])
def test_a_reference_that_leads_nowhere_is_damage(place: str) -> None:
    state = {"messages": [{"role": "user", "content": "x"}], "tool_executions": [
        {"tool_name": "look", "tool_call_id": "1", "result": MARK + place}
    ]}  # fmt: skip
    with pytest.raises(CheckpointError, match="'c' is damaged: a tool's result refers to message"):
        restore(CheckpointLoaded(checkpoint_id="c", state=json.dumps(state).encode()))
