from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from umbel.actors.checkpoints import Baseline, MemoryStore, Store, build_save, fold, restore
from umbel.protocol.commands import CheckpointLoaded, SaveCheckpoint
from umbel.protocol.errors import CheckpointError, NotStorable, SchemaVersionError
from umbel.protocol.messages import Message, ToolCall
from umbel.protocol.state import AgentState, ReasoningStep, ToolExecution

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def built(
    state: AgentState, number: int = 0, baseline: Baseline | None = None, **options: Any
) -> tuple[SaveCheckpoint, Baseline]:
    return build_save(
        state, store="memory://", thread_id="thread", checkpoint_id=f"c{number}", created_at=1.0, baseline=baseline, **options
    )


def turn(state: AgentState, number: int, size: int = 20) -> AgentState:
    """One more iteration: a call, its result, and everything that the loop records about it."""
    call = ToolCall(id=f"call_{number}", name="look", arguments={"number": number})
    text = f"{number} " + "x" * size
    state = state.next_iteration(now=NOW).with_message(Message.assistant(f"step {number}", (call,)))
    state = state.with_message(Message(role="tool", content=text, tool_call_id=call.id, name="look"))
    state = state.with_tool_execution(
        ToolExecution(tool_name="look", tool_call_id=call.id, arguments=call.arguments, result=text)
    )
    return state.with_reasoning_step(ReasoningStep(iteration=number, tool_calls=(call,), timestamp=NOW)).with_confidence(0.5)


async def test_every_step_of_a_conversation_comes_back_as_it_was(store: Store) -> None:
    state = AgentState(run_id="r1", started_at=NOW, metadata={"user": "ü"}).with_message(Message.user("naïve 😀"))
    baseline: Baseline | None = None
    states, kinds = {}, []
    for number in range(60):
        state = turn(state, number)
        if number == 20:
            state = state.with_metadata("plan", ["a", {"b": 1.5}]).with_error("something")
        if number == 40:
            state = AgentState(run_id="r2", messages=state.messages, started_at=NOW).with_message(Message.user("and now"))
        save, baseline = built(state, number, baseline, every=10)
        await store.save([save])
        states[save.checkpoint_id] = state
        kinds.append(save.kind)

    for checkpoint_id, expected in states.items():
        restored = restore(await store.load("thread", checkpoint_id))
        assert restored is not None
        assert restored.state == expected
    assert 2 <= kinds.count("snapshot") <= 6
    assert restore(await store.load("thread")) == baseline


async def test_a_loaded_baseline_goes_on_with_deltas(store: Store) -> None:
    first, baseline = built(turn(AgentState(), 0))
    second, _ = built(turn(baseline.state, 1), 1, baseline)
    await store.save([first, second])
    restored = restore(await store.load("thread"))
    assert restored is not None
    third, _ = built(turn(restored.state, 2), 2, restored)
    await store.save([third])

    assert (third.kind, third.base, third.parent_id) == ("delta", 4, "c1")
    newest = restore(await store.load("thread"))
    assert newest is not None
    assert newest.state == turn(restored.state, 2)
    assert newest.depth == 2


def test_a_delta_holds_only_what_changed() -> None:
    state = turn(turn(AgentState(), 0), 1)
    _, baseline = built(state)
    save, _ = built(turn(state, 2), 1, baseline)
    stored = json.loads(save.state)

    assert save.base == 4
    assert [message["content"][:6] for message in stored["messages"]] == ["step 2", "2 xxxx"]
    assert [execution["arguments"] for execution in stored["tool_executions"]] == [{"number": 2}]
    assert stored["_chain"]["bases"] == {
        "tool_executions": 2, "reasoning_steps": 2, "tool_history": 2, "confidence_history": 2,
    }  # fmt: skip
    assert stored.keys() == {"_chain", "messages", "iteration", *stored["_chain"]["bases"]}


@pytest.mark.spec("OURS-22")
def test_the_cost_of_a_delta_does_not_depend_on_the_conversation() -> None:
    sizes = []
    for length in (10, 1_000):
        state = AgentState()
        for number in range(length):
            state = turn(state, 1_000_000 + number)
        _, baseline = built(state)
        save, _ = built(turn(state, 2_000_000), 1, baseline)
        sizes.append(len(save.state))
    assert sizes[1] - sizes[0] < 50


@pytest.mark.case(17)
@pytest.mark.spec("OURS-22", "STATE-50", "MEM-39")
async def test_500_turns_of_4_kb_take_linear_space() -> None:
    store = MemoryStore()
    state = AgentState()
    baseline: Baseline | None = None
    written, deepest = [], 0
    for number in range(500):
        state = turn(state, number, size=4_096)
        save, baseline = built(state, number, baseline)
        await store.save([save])
        written.append(len(save.state))
        deepest = max(deepest, baseline.depth)

    whole = len(state.model_dump_json())
    assert sum(written) < 2.0 * whole
    assert sum(written) < 2.2 * sum(written[:250])
    loaded = await store.load("thread")
    assert sum(written[500 - loaded.depth - 1 :]) < 1.1 * whole, "what a resume reads"
    restored = restore(loaded)
    assert restored is not None
    assert restored.state == state
    assert deepest < 500


@pytest.mark.spec("OURS-22")
def test_the_bytes_written_are_linear_at_every_length() -> None:
    state, baseline, written, grown = AgentState(), None, 0, 0
    for number in range(1_000):
        state = turn(state, number, size=500)
        save, baseline = built(state, number, baseline)
        written += len(save.state)
        grown += len(save.state) if save.kind == "delta" else 0
        if number > 50:
            assert written < 2.5 * grown, number


def test_a_rewritten_conversation_is_a_snapshot() -> None:
    state = turn(turn(AgentState(), 0), 1)
    _, baseline = built(state)
    shorter = state.evolve(messages=state.messages[2:])
    edited = state.evolve(messages=(Message.user("summary"), *state.messages[1:], Message.user("next")))

    assert built(shorter, 1, baseline)[0].kind == "snapshot"
    assert built(edited, 1, baseline)[0].kind == "snapshot"


async def test_a_prompt_that_is_made_anew_for_every_turn_is_no_reason_for_a_snapshot(store: Store) -> None:
    state, baseline, kinds = AgentState(), None, []
    states = {}
    for number in range(30):
        prompt = Message.system("You are kind." if number < 10 else f"You are kind. It is day {number}.")
        state = AgentState(run_id=f"r{number}", messages=(prompt, *state.messages[1:])).with_message(Message.user(str(number)))
        save, baseline = built(state, number, baseline)
        await store.save([save])
        states[save.checkpoint_id] = state
        kinds.append(save.kind)
        assert len(json.loads(save.state)["messages"]) == (2 if number == 0 or number >= 10 else 1)
    assert kinds == ["snapshot"] + ["delta"] * 29
    for checkpoint_id, expected in states.items():
        restored = restore(await store.load("thread", checkpoint_id))
        assert restored is not None
        assert restored.state == expected


def test_a_first_message_that_only_equals_the_stored_one_is_kept_exactly() -> None:
    first = AgentState(messages=(Message.system("x", n=1), Message.user("y")))
    _, baseline = built(first)
    save, after = built(first.evolve(messages=(Message.system("x", n=True), *first.messages[1:])), 1, baseline)
    assert (save.kind, json.loads(save.state)["messages"][0]["metadata"]) == ("delta", {"n": True})
    assert after.state.messages[0].metadata["n"] is True


def test_a_replacement_for_no_message_is_damage() -> None:
    with pytest.raises(CheckpointError, match="there is none"):
        fold(b'{"messages":[]}', [(0, b'{"messages":[1],"_chain":{"first":true}}')])


@pytest.mark.spec("MEM-46", "STATE-47")
def test_what_is_only_for_this_turn_is_never_stored() -> None:
    state = turn(AgentState(metadata={"mcp_headers": {"token": "s3cret"}, "kept": 1}), 0)
    first, baseline = built(state.with_message(Message.user("note s3cret", turn_only=True)))
    second, _ = built(turn(state.with_message(Message.system("s3cret", memory_block=True)), 1), 1, baseline)

    assert b"s3cret" not in first.state + second.state
    assert second.kind == "delta"
    assert json.loads(first.state)["metadata"] == {"kept": 1}


@pytest.mark.case(2)
def test_unpaired_surrogates_are_stored_as_the_conversation_shows_them() -> None:
    message = Message.user("ok \ud83d and \ud83d\ude00", note="lone \udc00")
    save, baseline = built(AgentState(provider_state={"cursor": "\ud83d"}).with_message(message))
    restored = restore(CheckpointLoaded(checkpoint_id="c0", state=save.state))

    assert restored is not None
    assert restored.state.messages[0].content == message.content == "ok \ufffd and 😀"
    assert restored.state.messages[0].metadata == {"note": "lone \ufffd"}
    again, _ = built(turn(restored.state, 1), 1, baseline)
    again.state.decode()


class Unit:
    pass


@pytest.mark.spec("OURS-22", "STATE-48")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": {1, 2}}]}, r"state\.metadata\.key\.a\[1\]\.b is a set"),
        (Unit(), r"state\.metadata\.key is a Unit"),
        ([float("nan")], r"state\.metadata\.key\[0\] is nan"),
        ({1: "x"}, r"state\.metadata\.key has the key 1"),
        (NOW, r"state\.metadata\.key is a datetime"),
        (b"bytes", r"state\.metadata\.key is a bytes"),
    ],
)
def test_what_would_not_come_back_is_refused_by_path(value: Any, path: str) -> None:
    with pytest.raises(NotStorable, match=path):
        built(AgentState().evolve(metadata={"key": value}))
    with pytest.raises(NotStorable, match="checkpoint metadata"):
        built(AgentState(), metadata={"key": value})


@pytest.mark.spec("OURS-22")
def test_free_form_values_anywhere_are_checked() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    execution = ToolExecution(tool_name="look", tool_call_id="1").evolve(arguments={"when": NOW})
    states = {
        r"state\.messages\[0\]\.metadata\.seen is a tuple": AgentState().with_message(
            Message.user("x").evolve(metadata={"seen": (1, 2)})
        ),
        r"state\.tool_executions\[0\]\.arguments\.when": AgentState().with_tool_execution(execution),
        r"state\.provider_state is a set": AgentState().with_provider_state({1}),
        r"nested more than 100 levels": AgentState().evolve(provider_state=deep),
    }
    for path, state in states.items():
        with pytest.raises(NotStorable, match=path):
            built(state)


@pytest.mark.spec("STATE-46")
def test_a_state_with_unknown_or_missing_fields_is_read() -> None:
    restored = restore(CheckpointLoaded(checkpoint_id="c", state=b'{"run_id":"r","from_the_future":1}'))
    assert restored is not None
    assert restored.state == AgentState(run_id="r")


def test_a_state_of_another_version_is_refused() -> None:
    loaded = CheckpointLoaded(checkpoint_id="c", state=b'{"_chain":{"version":7}}')
    with pytest.raises(SchemaVersionError, match="version 7"):
        restore(loaded)


@pytest.mark.parametrize("state", [b"", b"nope", b"3", b'{"iteration":"many"}'])
def test_a_damaged_state_is_an_error(state: bytes) -> None:
    with pytest.raises(CheckpointError, match="'c' is damaged"):
        restore(CheckpointLoaded(checkpoint_id="c", state=state))
    assert restore(CheckpointLoaded()) is None
