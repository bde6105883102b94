"""What a run cannot store: refused at once, by size or by path, before anything wrong is kept. Inline and on Ray."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Runtime, tool
from umbel.actors.checkpoints import build_save, open_store, restore
from umbel.errors import NotStorable, RunFailed
from umbel.protocol.commands import CheckpointLoaded
from umbel.protocol.messages import Message
from umbel.protocol.state import AgentState
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def dump(size: int) -> str:
    """Give a long text."""
    return "x" * size


async def checkpoints(url: str) -> list[CheckpointLoaded]:
    store = open_store(url)
    try:
        return await store.history("t", 100)
    finally:
        await store.close()


@pytest.mark.case(4)
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_result_over_the_stores_cap_ends_the_run_at_once_with_sizes(
    runtime: Runtime, tmp_path: Path, scheme: str
) -> None:
    url = f"{scheme}:///{tmp_path}/store?max_bytes=1000000"
    seen: list[Any] = []
    agent = Agent(
        ScriptedModel([tool_call("dump", size=2_000_000), text("ok")]),
        [dump],
        checkpointer=url,
        max_tool_result_length=0,
        callback_handler=seen.append,
    )
    with pytest.raises((RunFailed, NotStorable)) as raised:
        await agent.arun("go", thread_id="t")

    assert not raised.value.retryable
    assert "1000000" in raised.value.message
    assert int(raised.value.details["size"]) > 2_000_000
    assert str(raised.value.details["size"]) in raised.value.message
    assert sum(type(event).__name__ == "ToolStartEvent" for event in seen) == 1, "nothing was done twice"
    assert all(not found.metadata.get("finished") for found in await checkpoints(url))


@pytest.mark.case(4)
async def test_a_result_below_the_cap_is_stored_and_the_thread_goes_on(runtime: Runtime, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db?max_bytes=1000000"
    model = ScriptedModel([tool_call("dump", size=200_000), text("ok")])
    agent = Agent(model, [dump], checkpointer=url, max_tool_result_length=0)
    assert (await agent.arun("go", thread_id="t")).success
    assert next(found.metadata["finished"] for found in await checkpoints(url)) is True


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Painted:
    colour: Colour
    count: int = field(default=0, init=False)


class Car(BaseModel):
    wheels: int = 4


WHEN = datetime(2026, 1, 2, tzinfo=UTC)
STRANGE = [Painted(Colour.RED), Colour.RED, Car(), b"bytes", WHEN, Decimal("1.10"), {1, 2}, (1, 2), float("inf"), object()]


@pytest.mark.case(19)
@pytest.mark.spec("OURS-22", "STATE-48")
@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_a_value_that_would_change_is_refused_by_its_path(value: Any) -> None:
    states = {
        "state.metadata.a.b[1]": AgentState().evolve(metadata={"a": {"b": [0, value]}}),
        "state.provider_state.cursor": AgentState().evolve(provider_state={"cursor": value}),
        "state.messages[1].metadata.seen": AgentState()
        .with_message(Message.user("x"))
        .with_message(Message.user("y").evolve(metadata={"seen": value})),
    }
    for path, state in states.items():
        with pytest.raises(NotStorable) as raised:
            build_save(state, store="memory://", thread_id="t", checkpoint_id="c", created_at=1.0)
        assert raised.value.message.startswith(f"{path} is ")
        assert raised.value.details["path"] == path


@pytest.mark.case(19)
def test_what_is_stored_comes_back_with_its_very_types() -> None:
    value = {"n": 1, "f": 1.0, "big": 2**80, "yes": True, "no": None, "t": "1", "l": [[], {}, ""], "é": [0.1, -0.0, 1e300]}
    state = AgentState().evolve(metadata=value, provider_state=[value, "x"])
    save, _ = build_save(state, store="memory://", thread_id="t", checkpoint_id="c", created_at=1.0)
    found = restore(CheckpointLoaded(checkpoint_id="c", state=save.state, statics=save.statics))
    assert found is not None and found.state == state
    assert repr(found.state.metadata) == repr(value), "also 1 and 1.0 and True are told apart"
