from __future__ import annotations

import asyncio
from typing import Any

import pytest

from umbel.actors.supervisor.hooks import AfterToolCall, BeforeToolCall, Hook, HookRegistry
from umbel.errors import DefinitionError
from umbel.protocol.state import AgentState

STATE = AgentState(run_id="r1")


class Step(Hook):
    def __init__(self, name: str, log: list[str], priority: int = 300, error: Exception | None = None) -> None:
        self.name, self.log, self.priority, self.error = name, log, priority, error

    def _do(self) -> None:
        self.log.append(self.name)
        if self.error is not None:
            raise self.error

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        self._do()
        return state.with_metadata(self.name, prompt)

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        self._do()

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        self._do()

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        self._do()


@pytest.mark.spec("HOOK-30")
async def test_a_failing_before_callback_is_logged_and_raised_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    registry = HookRegistry([Step("never", log), Step("bad", log, 1, ValueError("no"))])
    with pytest.raises(ValueError, match="no"):
        await registry.dispatch("on_before_tool_call", BeforeToolCall(tool_name="x"))
    assert log == ["bad"]
    assert "bad" in caplog.text and "on_before_tool_call" in caplog.text


@pytest.mark.spec("HOOK-30")
@pytest.mark.parametrize("callback", ["on_after_tool_call", "on_after_invocation"])
async def test_all_after_callbacks_run_then_the_first_error_is_raised(callback: str) -> None:
    log: list[str] = []
    first, second = ValueError("first"), ValueError("second")
    registry = HookRegistry([Step("c", log), Step("b", log, 2, second), Step("d", log, 400, first)])
    arguments: tuple[Any, ...] = (AfterToolCall(tool_name="x"),) if callback == "on_after_tool_call" else (STATE, True)
    with pytest.raises(RuntimeError, match="hook d failed") as caught:
        await registry.dispatch(callback, *arguments)
    assert caught.value.__cause__ is first
    assert log == ["d", "c", "b"]


@pytest.mark.spec("HOOK-30")
async def test_iteration_callbacks_run_side_by_side_and_their_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    met = asyncio.Event()

    class Waits(Hook):
        async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
            await met.wait()

    class Sets(Hook):
        priority = 400

        async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
            met.set()
            raise ValueError("lost")

    await HookRegistry([Waits(), Sets()]).dispatch("on_iteration_start", 0, STATE)
    assert "Sets" in caplog.text and "lost" in caplog.text


@pytest.mark.spec("HOOK-30", "HOOK-7")
async def test_before_invocation_returns_the_last_state() -> None:
    log: list[str] = []
    registry = HookRegistry([Step("b", log, 2), Step("a", log, 1)])
    state = await registry.dispatch("on_before_invocation", "hello", STATE)
    assert list(state.metadata) == ["a", "b"]


@pytest.mark.spec("HOOK-30")
async def test_emit_gives_the_last_value_that_is_not_none() -> None:
    class Answer(Hook):
        def __init__(self, name: str, priority: int, answer: Any) -> None:
            self.name, self.priority, self.answer = name, priority, answer

        def on_question(self, what: str) -> Any:
            return self.answer

    registry = HookRegistry([Answer("c", 3, None), Answer("a", 1, "one"), Answer("b", 2, "two"), Hook()])
    assert await registry.emit("on_question", "x") == "two"
    assert await registry.emit("on_nothing") is None


async def test_dispatch_knows_nine_callbacks() -> None:
    with pytest.raises(DefinitionError, match="no callback 'on_tool'"):
        await HookRegistry().dispatch("on_tool")
