"""Every field of an agent's configuration: it has an effect that can be seen, or it is refused by name."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import (
    Agent,
    AgentConfig,
    CompactionConfig,
    DirectoryResultStore,
    GroundingConfig,
    GsarConfig,
    Hook,
    Message,
    ModelResponse,
    ReflexionConfig,
    Runtime,
    SlidingWindow,
    register_provider,
    tool,
)
from umbel.actors.supervisor.answer import FinalAnswer
from umbel.errors import ConfigurationError, DefinitionError, ModelError, RateLimited
from umbel.events import ModelChunkEvent
from umbel.protocol.config import PLANNED
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

DEFAULTS: dict[str, Any] = {
    "model_kwargs": {},
    "auxiliary_model": None,
    "tools": (),
    "max_iterations": 20,
    "token_budget": None,
    "max_cost_usd": None,
    "time_budget_seconds": None,
    "budget_nudge_at": 0.8,
    "reflexion": None,
    "grounding": None,
    "gsar": None,
    "planning": False,
    "terminal_tools": {"submit", "done", "finish", "complete", "task_complete"},
    "completion_mode": "auto",
    "verify_tools": {"write_file", "write", "save", "create_file", "update_file"},
    "require_verification": True,
    "verification_tools": {"run_command", "run_tests", "run", "execute", "pytest", "test"},
    "tool_loop_threshold": 3,
    "tool_loop_read_only_threshold": None,
    "text_tool_calls": "auto",
    "leaked_tool_call_formats": None,
    "tool_execution": "concurrent",
    "max_concurrency": 10,
    "tool_event_order": "sequential",
    "max_tool_result_length": 32_000,
    "tool_result_head_fraction": 0.4,
    "tool_result_store": None,
    "conversation_manager": None,
    "context_window": None,
    "checkpointer": None,
    "checkpoint_every_n_iterations": None,
    "keep_iteration_checkpoints": False,
    "callback_handler": None,
    "termination": None,
    "output_key": None,
    "output_schema": None,
    "output_schema_retries": 2,
    "output_schema_strict": True,
    "final_answer_verifier": None,
    "final_answer_verifier_max_replans": 1,
    "final_answer_fallback": None,
    "hold_final_answer_tokens": False,
    "hold_tool_step_text": False,
    "web_search": None,
    "web_fetch": None,
    "agent_id": None,
    "name": None,
    "temperature": None,
    "max_tokens": None,
    "metadata": {},
}
SETTINGS_OF_THEIR_OWN = {"model", "system_prompt", "model_retry", "compaction", "hooks", "plugins", "tool_loop_read_only_tools"}
OWN_FIELDS = {
    "on_interrupt",
    "max_consecutive_tool_errors",
    "max_empty_replies",
    "placement",
    "cancel_grace_seconds",
    "durability",
    "lease_seconds",
}
OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("max_iterations", 0),
    ("max_iterations", 501),
    ("token_budget", 0),
    ("max_cost_usd", 0),
    ("time_budget_seconds", 0),
    ("budget_nudge_at", 0),
    ("budget_nudge_at", 1),
    ("tool_loop_threshold", 1),
    ("tool_loop_read_only_threshold", 1),
    ("text_tool_calls", "sometimes"),
    ("leaked_tool_call_formats", ["klingon"]),
    ("tool_execution", "random"),
    ("max_concurrency", 0),
    ("tool_event_order", "random"),
    ("completion_mode", "manual"),
    ("max_tool_result_length", -1),
    ("tool_result_head_fraction", 1.1),
    ("context_window", 0),
    ("checkpoint_every_n_iterations", -1),
    ("output_schema_retries", 11),
    ("final_answer_verifier_max_replans", 11),
    ("temperature", 2.1),
    ("max_tokens", 0),
]


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def setting(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def roles(messages: Any) -> list[str]:
    return [message.role for message in messages]


class Echo:
    """Answers with what it was given, so that a test sees the request."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        names = [offered["function"]["name"] for offered in tools or ()]
        return text(f"{self.settings} {roles(messages)} {names} {sorted(settings)}")


def echo(name: str, **settings: Any) -> Any:
    return Echo(name=name, **settings)


# the table


@pytest.mark.spec("API-10")
def test_the_table_is_complete() -> None:
    table = DEFAULTS.keys() | SETTINGS_OF_THEIR_OWN | PLANNED
    assert len(table) == 65 and (AgentConfig.model_fields.keys() | PLANNED) - table == OWN_FIELDS
    for name, value in DEFAULTS.items():
        assert getattr(AgentConfig(model="openai:x"), name) == value, name


@pytest.mark.spec("API-10")
@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_field_of_a_later_version_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not supported yet: {name}"):
        Agent("openai:x", **setting(name, object()))


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Agent("openai:x", **setting(name, value))


@pytest.mark.spec("API-1", "API-4", "API-6")
def test_the_shorthand_of_the_constructor() -> None:
    agent = Agent("openai:gpt-4o", add, "You add.", reflexion=True, grounding=True, max_iterations=7, name="adder")
    assert (agent.model, agent.tools, agent.system_prompt, agent.name) == ("openai:gpt-4o", (add,), "You add.", "adder")
    assert agent.config.reflexion == ReflexionConfig() and agent.config.grounding == GroundingConfig()
    assert agent.config.max_iterations == 7 and Agent("openai:x").config.max_iterations == 20
    with pytest.raises(ConfigurationError, match="provider:name"):
        Agent("gpt-4o")


@pytest.mark.spec("API-2")
def test_a_keyword_wins_over_a_ready_configuration() -> None:
    config = AgentConfig(model="openai:a", max_iterations=3, temperature=0.1)
    agent = Agent("openai:b", config=config, max_iterations=4)
    assert (agent.config.model, agent.config.max_iterations, agent.config.temperature) == ("openai:b", 4, 0.1)


@pytest.mark.spec("API-3", "API-5", "API-6", "API-7")
def test_what_makes_no_agent_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"max_itertions, top_p; .*model_kwargs"):
        Agent("openai:x", top_p=0.1, max_itertions=3)
    with pytest.raises(ValueError, match="model_kwargs"):
        Agent(ScriptedModel([]), model_kwargs={"top_p": 0.1})
    with pytest.raises(TypeError, match="tool"):
        Agent("openai:x", [lambda: None])
    with pytest.raises(ValueError, match="add"):
        Agent("openai:x", [add, add])
    with pytest.raises(ConfigurationError, match="output_schema"):
        Agent("openai:x", output_schema=dict)
    with pytest.raises(ConfigurationError, match="hold_final_answer_tokens"):
        Agent("openai:x", hold_tool_step_text=True)


@pytest.mark.spec("API-9")
def test_copies_with_another_setting_leave_the_original_alone() -> None:
    first, second = Hook(), Hook()
    agent = Agent("openai:x", hooks=[first])
    thinking = agent.with_reflexion(confidence_threshold=0.5)
    assert thinking.config.reflexion == ReflexionConfig(confidence_threshold=0.5)
    assert thinking.with_reflexion(enabled=False).reflector is None
    checked = agent.with_grounding(threshold=0.9, max_replans=1)
    assert checked.config.grounding == GroundingConfig(threshold=0.9, max_replans=1)
    assert checked.with_grounding(False).grounding is None
    assert list(agent.with_hooks(second).config.hooks) == [first, second]
    assert (agent.config.reflexion, agent.config.grounding, list(agent.config.hooks)) == (None, None, [first])
    with pytest.raises(ConfigurationError, match="confidence_threshold"):
        agent.with_reflexion(confidence_threshold=2)


@pytest.mark.spec("API-12", "API-14", "API-11")
def test_a_group_of_settings_refuses_what_it_does_not_know() -> None:
    assert GsarConfig().tau_proceed == 0.80 and CompactionConfig().trigger_fraction == 0.9
    for name, value in [("compaction", {"trigger": 1}), ("model_retry", {"retries": 1}), ("gsar", {"rho": 1})]:
        with pytest.raises(ConfigurationError, match=next(iter(value))):
            Agent("openai:x", **setting(name, value))


@pytest.mark.spec("API-38")
async def test_tools_are_added_all_or_none(runtime: Runtime) -> None:
    @tool
    async def more() -> str:
        """More."""
        return "more"

    agent = Agent(Echo(), [add])
    with pytest.raises(ValueError, match="add"):
        agent.add_tools([more, add])
    with pytest.raises(DefinitionError):
        agent.add_tool(lambda: None)  # type: ignore[arg-type]
    assert "['add']" in (await agent.arun("x")).message
    agent.add_tool(more)
    assert "['add', 'more']" in (await agent.arun("x")).message


# models


@pytest.mark.spec("API-10", "API-5", "API-8")
async def test_model_kwargs_reach_the_named_model_and_no_other(runtime: Runtime) -> None:
    register_provider("apicover", echo)
    agent = Agent("apicover:big", model_kwargs={"region": "eu"})
    assert "{'name': 'big', 'region': 'eu'}" in (await agent.arun("x")).message
    busy = Agent("apicover:big", model_kwargs={"region": "eu"}, auxiliary_model="apicover:small", max_iterations=1)
    stopped = await busy.with_settings(completion_mode="explicit").arun("x")
    assert stopped.stop_reason == "max_iterations" and "{'name': 'small'}" in stopped.message


class Unsteady:
    """Refuses the first call, for which a file stands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        if self.path.exists():
            return text("here I am")
        self.path.touch()
        raise RateLimited("later")


@pytest.mark.spec("API-10", "API-11")
async def test_model_retry_tries_again_unless_it_is_off(runtime: Runtime, tmp_path: Path) -> None:
    retried = Agent(Unsteady(tmp_path / "a"), model_retry={"initial_delay": 0.0})
    assert (await retried.arun("x")).message == "here I am"
    with pytest.raises(ModelError, match="later"):
        await Agent(Unsteady(tmp_path / "b"), model_retry=False).arun("x")


class Answer(BaseModel):
    text: str


class Formats:
    """Answers with the names of the formats that it was asked for: none before the repair."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        wanted = settings.get("response_format")
        return text("no JSON" if wanted is None else f'{{"text": "strict={wanted["json_schema"]["strict"]}"}}')


@pytest.mark.spec("API-46", "API-10", "API-43")
async def test_a_format_is_sent_with_repairs_only_and_strict_if_wanted(runtime: Runtime) -> None:
    strict = await Agent(Formats(), [add], output_schema=Answer).arun("x")
    assert strict.parsed_as(Answer).text == "strict=True" and strict.metrics.model_calls == 2
    loose = await Agent(Formats(), [add], output_schema=Answer, output_schema_strict=False).arun("x")
    assert loose.parsed_as(Answer).text == "strict=False"


# what ends a run


@pytest.mark.spec("API-10", "LOOP-24")
async def test_terminal_tools_are_those_that_are_named(runtime: Runtime) -> None:
    model = ScriptedModel([tool_call("add", a=1, b=1), text("2")])
    ended = await Agent(model, [add], terminal_tools={"add"}).arun("x")
    assert (ended.stop_reason, ended.metrics.model_calls) == ("terminal_tool", 1)


@tool
async def peek(page: int) -> str:
    """Look."""
    return "the same"


@pytest.mark.spec("API-10", "STATE-34")
async def test_loops_are_counted_by_their_own_thresholds(runtime: Runtime) -> None:
    same = ScriptedModel([tool_call("peek", page=1)], loop=True)
    plain = await Agent(same, [peek], tool_loop_threshold=2, max_iterations=12).arun("x")
    assert (plain.stop_reason, plain.iterations) == ("tool_loop", 3)
    reading: dict[str, Any] = {"tool_loop_read_only_tools": {"peek"}, "tool_loop_threshold": 2, "max_iterations": 12}
    reader = await Agent(same, [peek], **reading).arun("x")
    assert (reader.stop_reason, reader.iterations) == ("tool_loop", 4)
    patient = await Agent(same, [peek], tool_loop_read_only_threshold=6, **reading).arun("x")
    assert (patient.stop_reason, patient.iterations) == ("tool_loop", 7)


@tool
async def patch(path: str) -> str:
    """Change a file."""
    return "patched"


@tool
async def inspect_file(path: str) -> str:
    """Look whether it is right."""
    return "right"


@pytest.mark.spec("API-10", "TOOL-33", "LOOP-94")
async def test_what_must_be_verified_and_what_verifies_can_be_named(runtime: Runtime) -> None:
    early = [tool_call("patch", path="a"), tool_call("task_complete", summary="done")]
    settings: dict[str, Any] = {"tools": [patch, inspect_file], "completion_mode": "explicit", "max_iterations": 4}
    named: dict[str, Any] = {"verify_tools": {"patch"}, "verification_tools": {"inspect_file"}}
    checked = [early[0], tool_call("inspect_file", path="a"), early[1]]
    result = await Agent(ScriptedModel(checked), **settings, **named).arun("x")
    assert (result.stop_reason, result.iterations) == ("terminal_tool", 3)
    blocked = await Agent(ScriptedModel([*early, early[1]]), **settings, **named).arun("x")
    assert [done.success for done in blocked.tool_executions] == [True, False, True] and blocked.success
    trusting = await Agent(ScriptedModel(early), require_verification=False, **settings, **named).arun("x")
    assert (trusting.stop_reason, trusting.iterations) == ("terminal_tool", 2)
    notes = [message.content for message in trusting.messages if message.metadata.get("automated")]
    assert any("Verify it" in (note or "") for note in notes)
    unnamed = await Agent(ScriptedModel(early), **settings).arun("x")
    assert unnamed.iterations == 2, "patch is no tool that writes unless it is named"


@tool
async def fail(why: str) -> str:
    """Raise."""
    raise ValueError(why)


@pytest.mark.spec("OURS-10")
async def test_batches_of_nothing_but_errors_end_the_run(runtime: Runtime) -> None:
    mixed = tool_calls(("fail", {"why": "x"}), ("add", {"a": 1, "b": 1}))
    script = [tool_call("fail", why="1"), mixed, *(tool_call("fail", why=str(number)) for number in range(2, 9))]
    result = await Agent(ScriptedModel(script), [fail, add], max_consecutive_tool_errors=3).arun("x")
    assert (result.stop_reason, result.success, result.iterations) == ("tool_errors", False, 5)


# tools


class Meeting:
    """How many are inside at once, counted in files: bodies may run in another process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def attend(self, name: str) -> str:
        (self.folder / f"in-{name}").touch()
        for _ in range(5):
            await asyncio.sleep(0.01)
            inside = len(list(self.folder.glob("in-*")))
            with (self.folder / "counts").open("a") as file:
                file.write(f"{inside}\n")
        (self.folder / f"in-{name}").unlink()
        return name

    @property
    def most(self) -> int:
        return max(int(line) for line in (self.folder / "counts").read_text().split())


@pytest.mark.spec("API-10", "TOOL-19")
async def test_no_more_calls_at_once_than_max_concurrency(runtime: Runtime, tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)

    @tool
    async def attend(name: str) -> str:
        """Be there for a while."""
        return await meeting.attend(name)

    calls = tool_calls(*(("attend", {"name": str(number)}) for number in range(6)))
    result = await Agent(ScriptedModel([calls, text("ok")]), [attend], max_concurrency=2).arun("x")
    assert [done.result for done in result.tool_executions] == [str(number) for number in range(6)]
    assert meeting.most == 2


@pytest.mark.spec("API-10", "TOOL-43", "TOOL-44")
async def test_a_long_result_is_cut_or_stored_as_the_settings_say(runtime: Runtime, tmp_path: Path) -> None:
    @tool
    async def dump() -> str:
        """Return much text."""
        return "a" * 50_000 + "z" * 50_000

    async def shown(**settings: Any) -> str:
        agent = Agent(ScriptedModel([tool_call("dump"), text("ok")]), [dump], **settings)
        return (await agent.arun("x")).tool_executions[0].result or ""

    tail_only = await shown(max_tool_result_length=1_000, tool_result_head_fraction=0.0)
    assert "aaaaaaaa" not in tail_only and tail_only.endswith("zzz")
    assert len(await shown(max_tool_result_length=0)) == 100_000
    stored = await shown(tool_result_store=DirectoryResultStore(tmp_path / "results"))
    [kept] = (tmp_path / "results").iterdir()
    assert kept.read_text() == "a" * 50_000 + "z" * 50_000 and len(stored) < 33_000


LEAK = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.mark.spec("API-10", "LOOP-54", "LOOP-55")
async def test_calls_in_the_text_are_read_where_it_is_allowed(runtime: Runtime) -> None:
    leaking = ScriptedModel([text(LEAK), text("three")])
    allowed = await Agent(leaking, [add], leaked_tool_call_formats=["hermes"]).arun("x")
    assert [done.result for done in allowed.tool_executions] == ["3"] and allowed.message == "three"
    off = await Agent(leaking, [add], leaked_tool_call_formats=["hermes"], text_tool_calls="off").arun("x")
    none = await Agent(leaking, [add], leaked_tool_call_formats=[]).arun("x")
    assert off.message == none.message == LEAK
    generic = ScriptedModel([text('```json\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n```'), text("three")])
    assert (await Agent(generic, [add], text_tool_calls="on").arun("x")).message == "three"
    assert (await Agent(generic, [add]).arun("x")).tool_executions == ()


# conversations


@pytest.mark.spec("API-10", "MEM-1")
async def test_the_conversation_manager_shortens_requests_and_not_the_state(runtime: Runtime, tmp_path: Path) -> None:
    agent = Agent(Echo(), conversation_manager=SlidingWindow(1), checkpointer=f"sqlite:///{tmp_path}/t.db")
    await agent.arun("one", thread_id="t")
    second = await agent.arun("two", thread_id="t")
    assert "['system', 'user']" in second.message
    assert roles(second.messages) == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.spec("API-10")
async def test_the_window_decides_about_compaction_unless_it_is_off(runtime: Runtime) -> None:
    looks = [tool_call("peek", page=number) for number in range(6)]
    long = "word " * 800
    settings: dict[str, Any] = {"tools": [peek], "context_window": 1_000, "tool_loop_threshold": 9}
    stopped = await Agent(ScriptedModel([*looks, text("end")]), **settings).arun(long)
    assert stopped.stop_reason == "context_exhausted"
    off = await Agent(ScriptedModel([*looks, text("end")]), compaction=False, **settings).arun(long)
    assert off.message == "end"


class Clerk:
    """Calls a tool twice, then says how many checkpoints its thread's store holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        done = sum(message.role == "assistant" for message in messages)
        return tool_call("add", a=done, b=1) if done < 2 else text(str(checkpoints_in(self.path)))


def checkpoints_in(path: Path) -> int:
    if not path.exists():
        return 0
    with sqlite3.connect(path) as database:
        [(count,)] = database.execute("select count(*) from umbel_checkpoints")
    return int(count)


@pytest.mark.spec("API-10")
@pytest.mark.parametrize(("every", "saved"), [(None, 2), (2, 1), (0, 0)])
async def test_iterations_are_saved_as_often_as_asked(runtime: Runtime, tmp_path: Path, every: Any, saved: int) -> None:
    @tool(idempotent=True, name="add")
    async def harmless(a: int, b: int) -> int:
        """Add two integers; a tool with effects would have saves of its own."""
        return a + b

    path = tmp_path / "t.db"
    often: dict[str, Any] = {"checkpoint_every_n_iterations": every, "keep_iteration_checkpoints": True}
    agent = Agent(Clerk(path), [harmless], checkpointer=f"sqlite:///{path}", **often)
    assert (await agent.arun("x", thread_id="t")).message == str(saved)
    assert checkpoints_in(path) == saved + 1, "the end of a turn is always saved"


# held text


async def polite(answer: FinalAnswer) -> str | None:
    return None if "please" in answer.text else "Say please."


class AgainIfShort(Hook):
    async def on_after_model_call(self, event: Any) -> None:
        event.retry = event.response.content == "Hm."


@pytest.mark.spec("API-10", "LOOP-115", "LOOP-116")
async def test_held_text_of_a_tool_step_is_released_or_dropped(runtime: Runtime) -> None:
    step = tool_calls(("add", {"a": 1, "b": 1}), content="Let me add.")
    settings: dict[str, Any] = {"tools": [add], "final_answer_verifier": polite, "hold_final_answer_tokens": True}

    async def streamed(**more: Any) -> tuple[list[str], str]:
        agent = Agent(ScriptedModel([step, text("Two, please.")]), **settings, **more)
        events = [event async for event in agent.run("x", stream_tokens=True)]
        order = [event.event_type for event in events]
        said = [event.content or "" for event in events if isinstance(event, ModelChunkEvent)]
        return order, "".join(said)

    order, said = await streamed()
    assert said == "Let me add.Two, please."
    assert order.index("model_chunk") < order.index("tool_start"), "a tool step is over when its call ends"
    order, said = await streamed(hold_tool_step_text=True)
    assert said == "Two, please." and order.index("model_chunk") < order.index("tool_start")


@pytest.mark.spec("LOOP-115")
async def test_held_text_of_a_reply_that_a_hook_threw_away_is_dropped(runtime: Runtime, tmp_path: Path) -> None:
    def reply(messages: list[Message]) -> ModelResponse:
        first = not (tmp_path / "asked").exists()
        (tmp_path / "asked").touch()
        return text("Hm." if first else "Yes, please.")

    agent = Agent(
        ScriptedModel([reply], loop=True), final_answer_verifier=polite, hold_final_answer_tokens=True, hooks=[AgainIfShort()]
    )
    events = [event async for event in agent.run("x", stream_tokens=True)]
    assert "".join(event.content or "" for event in events if isinstance(event, ModelChunkEvent)) == "Yes, please."


# names


@pytest.mark.spec("API-10")
async def test_names_and_ids_are_on_events_and_in_the_state(runtime: Runtime) -> None:
    agent = Agent(Echo(), [add], "Be brief.", agent_id="a-1", name="Ann")
    assert (agent.name, agent.tools, agent.system_prompt) == ("Ann", (add,), "Be brief.") and isinstance(agent.model, Echo)
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("x")
    assert {event.agent_name for event in events} == {"Ann"} and result.state.agent_id == "a-1"


@pytest.mark.spec("API-41")
async def test_one_agent_serves_many_runs_at_once(runtime: Runtime) -> None:
    def reply(messages: list[Message]) -> ModelResponse:
        number = int(messages[1].content or "")
        return text(f"sum {messages[-1].content}") if messages[-1].role == "tool" else tool_call("add", a=number, b=number)

    agent = Agent(ScriptedModel([reply], loop=True), [add])
    results = await asyncio.gather(*(agent.arun(str(number)) for number in range(20)))
    assert [result.message for result in results] == [f"sum {2 * number}" for number in range(20)]
    assert all(len(result.tool_executions) == 1 and len(result.messages) == 5 for result in results)
