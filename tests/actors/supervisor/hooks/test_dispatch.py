from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from umbel.actors.definitions import pack_definition
from umbel.actors.supervisor.hooks import (
    CALLBACKS,
    AfterModelCall,
    AfterToolCall,
    BeforeModelCall,
    BeforeToolCall,
    Hook,
    HookRegistry,
    Hooks,
    LoggingHook,
    ModelRetryHook,
    PerRun,
    Priority,
    after_invocation_all,
    as_result_text,
    before_invocation_all,
    call,
    replacement,
    with_feedback,
)
from umbel.errors import ConfigurationError, DefinitionError
from umbel.protocol.messages import Message
from umbel.protocol.state import AgentState
from umbel.testing import text, tool_call

from .tiny_loop import TinyLoop

STATE = AgentState(run_id="r1")
TUPLES = {
    "on_before_invocation": "before_invocation",
    "on_after_invocation": "after_invocation",
    "on_iteration_start": "iteration_start",
    "on_iteration_end": "iteration_end",
    "on_before_model_call": "before_model",
    "on_after_model_call": "after_model",
    "on_before_tool_call": "before_tool",
    "on_after_tool_call": "after_tool",
    "on_before_compaction": "before_compaction",
}


class Recorder(Hook):
    """Writes down every callback it gets."""

    def __init__(self, name: str, log: list[tuple[str, str]], priority: int = Priority.DEFAULT) -> None:
        self.name = name
        self.priority = priority
        self.log = log

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        self.log.append(("before_invocation", self.name))
        return state

    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        self.log.append((f"after_invocation {success}", self.name))

    async def on_iteration_start(self, iteration: int, state: AgentState) -> None:
        self.log.append((f"iteration_start {iteration}", self.name))

    async def on_iteration_end(self, iteration: int, state: AgentState) -> None:
        self.log.append((f"iteration_end {iteration}", self.name))

    async def on_before_model_call(self, event: BeforeModelCall) -> None:
        self.log.append(("before_model", self.name))

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        self.log.append(("after_model", self.name))

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        self.log.append(("before_tool", self.name))

    async def on_after_tool_call(self, event: AfterToolCall) -> None:
        self.log.append(("after_tool", self.name))


class Plain:
    """No base class, one callback, not async."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_before_tool_call(self, event: BeforeToolCall) -> None:
        self.seen.append(event.tool_name)


def names(callbacks: tuple[Any, ...]) -> list[str]:
    return [callback.__self__.name for callback in callbacks]


@pytest.mark.spec("HOOK-3", "HOOK-6")
async def test_before_callbacks_run_first_to_last_and_after_callbacks_last_to_first() -> None:
    log: list[tuple[str, str]] = []
    loop = TinyLoop([Recorder("a", log), Recorder("b", log)], [tool_call("add"), text("done")], add=lambda: "1")
    await loop.run("go")
    forward, back = ["a", "b"], ["b", "a"]
    moments = [
        ("before_invocation", forward),
        ("iteration_start 0", forward),
        ("before_model", forward),
        ("after_model", back),
        ("before_tool", forward),
        ("after_tool", back),
        ("iteration_end 0", back),
        ("iteration_start 1", forward),
        ("before_model", forward),
        ("after_model", back),
        ("iteration_end 1", back),
        ("after_invocation True", back),
    ]
    assert log == [(moment, name) for moment, order in moments for name in order]


@pytest.mark.spec("HOOK-3")
@pytest.mark.parametrize("callback", CALLBACKS)
def test_every_callback_has_its_direction(callback: str) -> None:
    def nothing(self: Any, *arguments: Any) -> None:
        """Does nothing."""

    kind = type("One", (), {callback: nothing, "__init__": lambda self, name: setattr(self, "name", name)})
    hooks = Hooks([kind("a"), kind("b"), kind("c")])
    last_first = callback in ("on_after_invocation", "on_iteration_end", "on_after_model_call", "on_after_tool_call")
    assert names(getattr(hooks, TUPLES[callback])) == (["c", "b", "a"] if last_first else ["a", "b", "c"])
    assert [len(getattr(hooks, other)) for name, other in TUPLES.items() if name != callback] == [0] * 8


@pytest.mark.spec("HOOK-2", "HOOK-5", "BUG-43")
def test_priority_decides_and_equal_priorities_keep_the_order_of_the_list() -> None:
    log: list[tuple[str, str]] = []
    given = [("x", 300), ("business", 250), ("y", 300), ("security", 50), ("observability", 150)]
    hooks = Hooks([Recorder(name, log, priority) for name, priority in given])
    order = ["security", "observability", "business", "x", "y"]
    assert names(hooks.before_tool) == order
    assert names(hooks.after_tool) == order[::-1]
    assert (Priority.SECURITY, Priority.OBSERVABILITY, Priority.BUSINESS, Priority.DEFAULT) == (50, 150, 250, 300)
    assert Hook.priority == 300


@pytest.mark.spec("HOOK-1")
async def test_any_object_with_a_callback_is_a_hook() -> None:
    plain = Plain()
    loop = TinyLoop([plain], [tool_call("add"), text("done")], add=lambda: "1")
    await loop.run("go")
    assert plain.seen == ["add"]
    assert not loop.hooks.after_tool


@pytest.mark.spec("HOOK-1")
async def test_the_base_class_does_nothing_and_is_never_called() -> None:
    hooks = Hooks([Hook(), LoggingHook()])
    assert not Hooks().before_model and not Hooks(None, None).after_invocation
    for callback, attribute in TUPLES.items():
        own = callback in LoggingHook.__dict__
        assert len(getattr(hooks, attribute)) == own, callback
    assert sorted(TUPLES) == sorted(CALLBACKS)
    base = Hook()
    assert await base.on_before_invocation("hi", STATE) is STATE
    await base.on_before_tool_call(BeforeToolCall(tool_name="x"))


@pytest.mark.parametrize(
    ("given", "says"), [(object(), "none of on_before_invocation"), (LoggingHook, r"LoggingHook\(\.\.\.\)"), (7, "not a hook")]
)
def test_what_is_no_hook_is_refused_when_the_agent_is_built(given: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Hooks([given])


@pytest.mark.spec("HOOK-2")
def test_a_registry_is_accepted_in_place_of_a_list() -> None:
    log: list[tuple[str, str]] = []
    hooks = Hooks(HookRegistry([Recorder("late", log), Recorder("early", log, 1)]))
    assert names(hooks.before_model) == ["early", "late"]
    assert len(hooks) == 2 and "early" in repr(hooks)


def test_one_hook_may_stand_alone() -> None:
    assert len(Hooks(LoggingHook()).before_tool) == 1


@pytest.mark.spec("HOOK-7")
async def test_each_before_invocation_hook_sees_the_previous_ones_state() -> None:
    class Append(Hook):
        def __init__(self, letter: str) -> None:
            self.letter = letter

        async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
            return state.with_metadata("seen", f"{state.metadata.get('seen', prompt)}{self.letter}")

    class Silent(Hook):
        async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
            return None  # type: ignore[return-value]  # a hook that forgot to return

    state = await before_invocation_all(Hooks([Append("a"), Silent(), Append("b")]).before_invocation, "p", STATE)
    assert state.metadata["seen"] == "pab"


async def test_a_before_invocation_hook_that_returns_something_else_is_named() -> None:
    class Wrong:
        name = "wrong one"

        def on_before_invocation(self, prompt: str, state: AgentState) -> Any:
            return prompt

    with pytest.raises(TypeError, match=r"wrong one\.on_before_invocation must return the state, not str"):
        await before_invocation_all(Hooks([Wrong()]).before_invocation, "p", STATE)


class Failing(Hook):
    async def on_after_invocation(self, state: AgentState, success: bool) -> None:
        raise ValueError("no disk")

    async def on_before_model_call(self, event: BeforeModelCall) -> None:
        raise ValueError("no model")


async def test_failing_after_invocation_hooks_are_collected_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    log: list[tuple[str, str]] = []
    hooks = Hooks([Recorder("first", log), Failing(), Recorder("last", log)])
    errors = await after_invocation_all(hooks.after_invocation, STATE, False)
    assert errors == ("Failing.on_after_invocation: ValueError: no disk",)
    assert [name for _, name in log] == ["last", "first"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert await after_invocation_all((), STATE, True) == ()


async def test_any_other_exception_reaches_the_loop() -> None:
    with pytest.raises(ValueError, match="no model"):
        await call(Hooks([Failing()]).before_model, BeforeModelCall(messages=()))


@pytest.mark.spec("HOOK-24", "LOOP-93")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (["ü"], '["ü"]'),
        (3.5, "3.5"),
        (True, "true"),
        (Message.user("hi").tool_calls, "[]"),
        ({"at": STATE.messages, "what": object}, '{"at": [], "what": "<class \'object\'>"}'),
        ("\ud800", "�"),
    ],
)
def test_a_replacement_that_is_no_text_becomes_json(value: Any, shown: str) -> None:
    assert as_result_text(value) == shown


@pytest.mark.spec("HOOK-24", "LOOP-92", "LOOP-93")
def test_what_counts_as_a_replacement() -> None:
    event = AfterToolCall(tool_name="x", result="same")
    assert replacement(event, "same") is None
    event.result = None
    assert replacement(event, "same") is None
    event.result = {"n": 1}
    assert replacement(event, "same") == '{"n": 1}'
    event.retry = True
    assert replacement(event, "same") is None
    failed = AfterToolCall(tool_name="x", result=None, error="boom")
    assert replacement(failed, None) is None
    failed.result = "what to do instead"
    assert replacement(failed, None) == "what to do instead"


def test_feedback_is_a_note_for_one_call() -> None:
    messages = (Message.user("hi"),)
    assert with_feedback(messages, None) == list(messages) == with_feedback(messages, "")
    note = with_feedback(messages, "say more")[-1]
    assert (note.role, note.content, note.metadata) == ("user", "say more", {"automated": True, "turn_only": True})


@pytest.mark.spec("HOOK-21", "HOOK-22")
async def test_a_tool_retry_gets_the_secrets_again() -> None:
    class Once(Hook):
        async def on_before_tool_call(self, event: BeforeToolCall) -> None:
            event.secret_arguments = {"token": "t"}

        async def on_after_tool_call(self, event: AfterToolCall) -> None:
            assert "token" not in event.arguments
            event.retry = True

    tokens: list[str] = []

    def send(token: str) -> str:
        tokens.append(token)
        return "sent"

    state = await TinyLoop([Once()], [tool_call("send"), text("done")], send=send).run("go")
    assert tokens == ["t", "t"]
    assert state.tool_executions[0].arguments == {}


def test_per_run_values_are_made_once_bounded_and_never_pickled() -> None:
    values: PerRun[list[int]] = PerRun(list, limit=2)
    values["a"].append(1)
    values["a"].append(2)
    assert values["a"] == [1, 2] and values.get("b") is None
    copy = cloudpickle.loads(cloudpickle.dumps(values))
    assert len(copy) == 0 and copy["a"] == []
    _ = values["b"], values["c"]
    assert len(values) == 2 and values.get("a") is None
    assert values.pop("b") == [] and values.pop("b") is None


async def test_hooks_travel_with_a_definition() -> None:
    hook = ModelRetryHook(2)
    hook._retries.put("r1", 1)
    hooks = cloudpickle.loads(cloudpickle.dumps(Hooks([hook, LoggingHook(log_results=True)])))
    assert names(hooks.after_model) == ["ModelRetryHook"]
    assert len(hooks.after_model[0].__self__._retries) == 0


class Definition:
    """What an agent is to whoever sends it."""

    def __init__(self, *hooks: Any) -> None:
        self.hooks = Hooks(list(hooks))

    def parts(self) -> list[Any]:
        return [type(self), *self.hooks.parts()]


def shout(name: str) -> str:
    return name.upper()


class Says(Hook):
    def __init__(self, say: Callable[[str], str]) -> None:
        self.say = say

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        print(self.say(event.tool_name))  # noqa: T201 - read by the test


READER = """
import asyncio, sys
from umbel.actors.definitions import unpack_definition
from umbel.actors.supervisor.hooks import BeforeToolCall, call
hooks = unpack_definition(sys.stdin.buffer.read()).hooks
asyncio.run(call(hooks.before_tool, BeforeToolCall(tool_name="add")))
"""


def test_hooks_of_a_script_and_what_they_hold_run_in_another_process() -> None:
    _, blob = pack_definition(Definition(Says(shout)))
    done = subprocess.run([sys.executable, "-c", READER], input=blob, capture_output=True, check=False)
    assert (done.stdout.decode().strip(), done.stderr.decode()) == ("ADD", "")


@pytest.mark.spec("HOOK-5")
def test_a_registry_refuses_a_second_hook_of_one_name() -> None:
    registry = HookRegistry([LoggingHook()])
    with pytest.raises(ConfigurationError, match="'LoggingHook' is registered already"):
        registry.register(LoggingHook())
    with pytest.raises(ValueError, match="registered already"):
        registry.register(LoggingHook())
    hook = registry.unregister("LoggingHook")
    assert "LoggingHook" not in registry and registry.get("LoggingHook") is None
    registry.register(hook)
    assert list(registry) == [hook] and len(registry) == 1
    with pytest.raises(KeyError):
        registry.unregister("nobody")
