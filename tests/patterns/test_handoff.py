"""Handoffs: who gets what, when a chain must end, and that no conversation is ever broken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from umbel import Agent, Hook, Message, ModelResponse, Runtime, ToolCall, ToolContext, tool
from umbel.errors import CapReached, ConfigurationError, HandoffCycle, MemberFailed, ModelError, NothingRan, RunFailed
from umbel.events import HandoffEvent, MemberEvent, ModelChunkEvent, PatternEvent, ThinkEvent, ToolCompleteEvent
from umbel.hooks import BeforeToolCall
from umbel.patterns.handoff import Handoff
from umbel.patterns.pipeline import sequential
from umbel.patterns.transfer import Hop, confidence_of, consistent, digest, transcript, transfer_names
from umbel.protocol.markers import COMPACTION_SUMMARY
from umbel.testing import ScriptedModel, error, text, tool_call, tool_calls, validate_history

from ..cases.killing import kill, until


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def agent(name: str, *turns: Any, tools: Any = (), **settings: Any) -> Agent:
    return Agent(ScriptedModel(list(turns)), list(tools), f"You are {name}.", name=name, **settings)


def passing(name: str, target: str, **arguments: Any) -> Agent:
    """An agent that hands over at once."""
    return agent(name, tool_call(f"transfer_to_{target}", **arguments))


def echo(messages: list[Message]) -> ModelResponse:
    """A reply that is what the model was given, a line a message."""
    return text("\n".join(f"{message.role}: {message.content}" for message in messages))


async def run(pattern: Handoff, prompt: str, **options: Any) -> Any:
    return await pattern.arun(prompt, **options)


# a chain


@pytest.mark.spec("OURS-24", "OURS-27", "PAT-26", "PAT-27")
@pytest.mark.case(12)
@pytest.mark.case(13)
async def test_the_calls_beside_a_handoff_run_and_the_next_agent_sees_them(runtime: Runtime) -> None:
    def answer(messages: list[Message]) -> ModelResponse:
        calls = [call.name for message in messages for call in message.tool_calls]
        assert calls[:2] == ["add", "transfer_to_bob"]
        return text(f"The sum is {next(m.content for m in messages if m.name == 'add')}.")

    both = tool_calls(("add", {"a": 3, "b": 4}), ("transfer_to_bob", {"reason": "delegation", "message": "Say it nicely."}))
    alice = agent("alice", both, tools=[add])
    bob = agent("bob", tool_call("add", a=1, b=1), answer, tools=[add])
    result: Any = await Handoff([alice, bob]).arun("3 + 4?")
    assert (result.success, result.final_output, result.outputs) == (True, "The sum is 7.", ["", "The sum is 7."])
    assert result.metrics.tool_calls == 3 and result.metrics.tool_errors == 0, "bob's own tools run, too"
    hop = result.details["hops"][0]
    assert (hop["source"], hop["target"], hop["reason"], hop["message"]) == ("alice", "bob", "delegation", "Say it nicely.")
    assert [member.step for member in result.members] == ["0.alice", "1.bob"]


@pytest.mark.spec("OURS-27")
@pytest.mark.case(12)
async def test_full_context_is_the_whole_conversation_as_messages(inline: Runtime) -> None:
    both = tool_calls(("add", {"a": 3, "b": 4}), ("transfer_to_bob", {"findings": "It is 7."}), content="Let me see.")
    short = tool_calls(("transfer_to_bob", {}), content="It is 7.")
    said = (await run(Handoff([agent("alice", short), agent("bob", echo)]), "3 + 4?")).details["hops"][0]
    assert said["findings"] == "It is 7.", "what was said with it, where nothing else is given"
    result: Any = await Handoff([agent("alice", both, tools=[add]), agent("bob", echo)]).arun("3 + 4?")
    assert result.final_output.splitlines()[:5] == [
        "system: You are bob.",
        "user: 3 + 4?",
        "assistant: Let me see.",
        "tool: 7",
        "tool: Handed over to bob.",
    ]
    assert "Findings: It is 7." in result.final_output and "You are alice" not in result.final_output


@pytest.mark.spec("OURS-27")
@pytest.mark.case(13)
async def test_the_first_of_several_handoffs_wins_and_the_others_are_told_so(inline: Runtime) -> None:
    several = tool_calls(
        ToolCall(name="transfer_to_bob", malformed_arguments='{"reason'),
        ("transfer_to_bob", {"reason": "no such reason"}),
        ("transfer_to_carol", {}),
        ("transfer_to_bob", {}),
        ("add", {"a": 1, "b": 2}),
        ("transfer_to_carol", {}),
    )
    result: Any = await Handoff([agent("alice", several, tools=[add]), agent("bob", text("B")), agent("carol", echo)]).arun(
        "go"
    )
    assert result.details["path"] == ["alice", "carol"] and result.success
    told = [line for line in result.final_output.splitlines() if line.startswith("tool:")]
    assert "Invalid arguments" in told[1] and told[2] == "tool: Handed over to carol." and told[4] == "tool: 3"
    assert all("not carried out: transfer_to_carol came first" in told[index] for index in (3, 5))
    assert "Error" in told[0]


@pytest.mark.spec("PAT-26", "PAT-29", "OURS-27")
async def test_who_may_not_be_handed_to_is_not_offered_and_refused(inline: Runtime) -> None:
    offered: list[list[str]] = []

    class Watching(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            offered.append([each["function"]["name"] for each in tools or ()])
            return await super().complete(messages, tools, **settings)

    script = [tool_call("transfer_to_carol"), tool_call("transfer_to_nobody"), tool_call("transfer_to_bob")]
    alice = Agent(Watching(script), name="alice")
    bob = agent("bob", echo)
    handoff = Handoff([alice, bob, agent("carol", text("never"))], allow={"alice": ["bob"], "bob": []})
    result: Any = await handoff.arun("go")
    assert offered[0] == ["transfer_to_bob"] and handoff.targets("bob") == {}
    assert list(handoff.targets("carol")) == ["alice", "bob"], "who is not listed may hand over to all"
    assert result.details["path"] == ["alice", "bob"] and result.success
    refused = [line for line in result.final_output.splitlines() if line.startswith("tool: Error")]
    assert len(refused) == 2 and all("transfer_to_bob" in line for line in refused), "the model is told what there is"
    assert result.metrics.tool_errors == 2


@pytest.mark.spec("OURS-27")
@pytest.mark.case(11)
async def test_agents_that_hand_to_each_other_are_found_out(runtime: Runtime) -> None:
    result: Any = await Handoff([passing("alice", "bob"), passing("bob", "alice")], max_handoffs=100).arun("go")
    assert (result.success, result.stop_reason, len(result.members)) == (False, "error", 3)
    assert isinstance(result.error, HandoffCycle)
    trail = [f"{source} -> {target} (specialization)" for source, target in (("alice", "bob"), ("bob", "alice"))]
    assert result.error.details["trail"] == [trail[0], trail[1], trail[0]] and "; ".join(trail) in result.error.message
    assert result.error.details["agents"] == ["alice", "bob"]
    assert [hop["target"] for hop in result.details["hops"]] == ["bob", "alice"], "only what was carried out"
    assert result.details["refused"]["target"] == "bob"


@pytest.mark.spec("OURS-27", "OURS-25", "PAT-24", "PAT-25")
@pytest.mark.case(11)
async def test_the_cap_counts_one_chain_and_is_a_typed_failure(inline: Runtime) -> None:
    ring = Handoff([passing("a", "b"), passing("b", "c"), passing("c", "a")])
    assert ring.max_handoffs == 5
    for _ in range(2):  # not what the definition ever did
        result: Any = await ring.arun("go")
        assert isinstance(result.error, CapReached) and (result.stop_reason, result.success) == ("max_iterations", False)
        assert (result.error.details["cap"], result.error.details["limit"]) == ("max_handoffs", 5)
        assert len(result.members) == 6 and len(result.error.details["trail"]) == 6 and len(result.details["hops"]) == 5
    chain = Handoff([*(passing(f"a{n}", f"a{n + 1}") for n in range(5)), agent("a5", text("there"))])
    assert (await run(chain, "go")).final_output == "there", "five are allowed"


@pytest.mark.spec("OURS-27")
async def test_a_wider_window_or_none_lets_two_agents_go_on(inline: Runtime) -> None:
    pair = [passing("alice", "bob"), passing("bob", "alice")]
    wide: dict[str, Any] = {"cycle_window": 6}
    for settings in (wide, {"cycle_window": 0}):
        result: Any = await Handoff(pair, max_handoffs=4, **settings).arun("go")
        assert isinstance(result.error, CapReached) and len(result.members) == 5
    three: Any = await Handoff(pair, cycle_window=3, cycle_min_agents=3).arun("go")
    assert isinstance(three.error, HandoffCycle) and len(three.members) == 2


@pytest.mark.spec("PAT-28", "PAT-27", "PAT-24")
async def test_every_finding_stands_under_who_made_it_and_travels_with_the_chain(inline: Runtime) -> None:
    a = agent("a", tool_call("transfer_to_b", findings="disk full", reason="specialization", confidence=0.9))
    b = agent("b", tool_call("transfer_to_c", findings="log rotation off", reason="escalation", message="decide"))
    result: Any = await Handoff([a, b, agent("c", echo)], context="summary").arun("why is it down?")
    answer = result.final_output
    assert result.details["findings"] == {"a": ["disk full"], "b": ["log rotation off"], "c": [answer]}
    assert [hop["confidence"] for hop in result.details["hops"]] == [0.9, 1.0], "0.9 + 0.2 - 0.1"
    for part in ("Task: why is it down?", "Found: disk full", "Found: log rotation off", "Message: decide", "(escalation"):
        assert part in answer


@pytest.mark.spec("PAT-27")
@pytest.mark.parametrize(
    ("given", "reason", "findings", "worked", "expected"),
    [
        (0.3, "failure", "x", True, 0.3),
        (7, "delegation", "", False, 1.0),
        (None, "delegation", "x", False, 0.7),
        (None, "escalation", "", False, 0.4),
        (None, "failure", "x", True, 0.7),
        (True, "completion", "", True, 0.6),
    ],
)
def test_confidence_is_what_the_agent_says_or_a_rule_of_thumb(
    given: Any, reason: Any, findings: str, worked: bool, expected: float
) -> None:
    hop = Hop(source="a", target="b", reason=reason, findings=findings)
    assert confidence_of(given, 0.5, hop, worked=worked) == expected


# what goes along


@pytest.mark.spec("OURS-27", "PAT-27")
async def test_the_last_message_or_what_a_function_makes_of_the_conversation(inline: Runtime) -> None:
    both = tool_calls(("add", {"a": 3, "b": 4}), ("transfer_to_bob", {"message": "go on"}), content="It is seven.")

    def pair(**settings: Any) -> Handoff:
        return Handoff([agent("alice", both, tools=[add]), agent("bob", echo)], **settings)

    last = (await run(pair(context="last"), "3 + 4?")).final_output
    assert "Task: 3 + 4?" in last and "The last message: It is seven." in last and "tool:" not in last
    assert [line.partition(":")[0] for line in last.splitlines() if line.startswith(("system:", "user:", "tool:"))] == [
        "system",
        "user",
    ]

    def shout(messages: tuple[Message, ...], hop: Hop | None) -> str:
        assert hop is not None
        return f"{hop.source.upper()} SAID {len(messages)} THINGS"

    assert "ALICE SAID 4 THINGS" in (await run(pair(context=shout), "3 + 4?")).final_output

    async def broken(messages: tuple[Message, ...], hop: Hop | None) -> list[Message]:
        return [message for message in messages if message.name != "add"]  # a call without its result

    kept = (await run(pair(context=broken), "3 + 4?")).final_output
    assert "tool: Handed over to bob." in kept and "tool: 7" not in kept
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        await pair(context=lambda messages, hop: 1 / 0).arun("go")


@pytest.mark.case(13)
def test_what_is_passed_on_is_always_a_valid_conversation() -> None:
    asked = tool_calls(("add", {"a": 1, "b": 1}), ("add", {"a": 2, "b": 2})).message
    calls = tuple(call.evolve(id=f"c{n}") for n, call in enumerate(asked.tool_calls))
    asked = asked.evolve(tool_calls=calls)
    result = Message(role="tool", content="2", tool_call_id="c0", name="add")
    stray = Message(role="tool", content="?", tool_call_id="c9", name="add")
    note = Message.user("Answer now.", automated=True)
    summed_up = Message(role="system", content="Earlier: nothing.", metadata={COMPACTION_SUMMARY: True})
    assert consistent([summed_up]) == [summed_up], "what stands for the conversation is part of it"
    kept = consistent([Message.system("You are alice."), stray, asked, result, result, note, Message.assistant("Two.")])
    validate_history(kept)
    assert [message.role for message in kept] == ["assistant", "tool", "assistant"] and len(kept[0].tool_calls) == 1
    assert transcript(kept).splitlines() == ["assistant: calls add({'a': 1, 'b': 1})", "tool add: 2", "assistant: Two."]


class Verdict(BaseModel):
    guilty: bool


@pytest.mark.spec("OURS-27", "OURS-24")
async def test_agents_keep_their_settings_and_a_handoff_is_no_answer_to_be_parsed(inline: Runtime) -> None:
    """The schema is the answer's: handing over costs no repair."""
    clerk = agent("clerk", tool_call("transfer_to_judge"), output_schema=Verdict, terminal_tools=frozenset({"stop"}))
    judge = agent("judge", text('{"guilty": false}'), output_schema=Verdict, max_iterations=1)
    handoff = Handoff([clerk, judge])
    result: Any = await handoff.arun("guilty?")
    assert (result.value, result.metrics.model_calls, result.success) == ({"guilty": False}, 2, True)
    kept = handoff.members["clerk"].config
    assert kept.terminal_tools == {"stop", "transfer_to_judge"} and kept.output_schema is Verdict
    assert list(clerk.tools_by_name) == [], "the agent that was given is as it was"


async def test_an_agent_may_hand_over_with_its_last_iteration(inline: Runtime) -> None:
    triage = agent("triage", tool_call("transfer_to_desk"), max_iterations=1)  # there is nothing to sum up
    result: Any = await Handoff([triage, agent("desk", text("Done."))]).arun("go")
    assert (result.success, result.final_output, result.details["path"]) == (True, "Done.", ["triage", "desk"])
    assert result.metrics.model_calls == 2 and [step.status for step in result.members] == ["completed", "completed"]


@pytest.mark.spec("OURS-24", "OURS-27")
async def test_patterns_and_functions_take_over_but_do_not_hand_over(inline: Runtime) -> None:
    def count(prompt: str) -> str:
        return f"{len(prompt.splitlines())} lines, {'user: what?' in prompt}"

    inner = sequential(agent("x", text("X")), agent("y", lambda messages: text(f"{messages[-1].content}Y")), name="inner")
    for target, answer in (("inner", "XY"), ("count", "4 lines, True")):
        result: Any = await Handoff([passing("alice", target), inner, count]).arun("what?")
        assert result.success and result.details["path"] == ["alice", target]
        assert result.final_output == answer or target == "count"
    assert "True" in result.final_output, "who takes no messages gets them as text"


@pytest.mark.spec("OURS-24")
async def test_chains_within_chains(inline: Runtime) -> None:
    inner = Handoff([passing("c", "d"), agent("d", text("deep"))], name="inner")
    middle = Handoff([passing("b", "inner"), inner], name="middle")
    result: Any = await Handoff([passing("a", "middle"), middle]).arun("go")
    assert result.success and result.final_output == "deep" and result.metrics.model_calls == 4
    below = result.members[1].members[1]
    assert [member.member for member in below.members] == ["c", "d"] and below.text == "deep"
    failing = Handoff([passing("c", "d"), agent("d", error("flooded"))], name="inner")
    failed: Any = await Handoff([passing("b", "inner"), failing]).arun("go")
    assert not failed.success and "flooded" in str(failed.error)


# failures


@pytest.mark.spec("OURS-25", "OURS-27")
async def test_when_an_agent_fails_the_one_to_escalate_to_takes_over(inline: Runtime) -> None:
    broken = agent("broken", error("no credit"))
    boss = agent("boss", echo)
    result: Any = await Handoff([passing("alice", "broken"), broken, boss], escalate_to="boss").arun("go")
    assert result.success and result.details["path"] == ["alice", "broken", "boss"]
    hop = result.details["hops"][1]
    assert (hop["reason"], hop["confidence"]) == ("escalation", 0.4) and "no credit" in result.final_output
    assert [member.status for member in result.members] == ["completed", "failed", "completed"]
    boss_too = Handoff([broken, agent("boss", error("ill"))], escalate_to="boss")
    failed: Any = await boss_too.arun("go")
    assert not failed.success and isinstance(failed.error, MemberFailed) and "ill" in failed.error.message
    assert failed.details["trail"] == ["broken -> boss (escalation)"]


@pytest.mark.spec("OURS-25")
async def test_a_failed_agent_fails_the_chain_or_gives_back(inline: Runtime) -> None:
    stuck = agent("stuck", *([tool_call("add", a=1, b=1)] * 2), text("I got stuck."), tools=[add], max_iterations=2)
    alice = agent(
        "alice", lambda messages: text("I will do it myself.") if len(messages) > 3 else tool_call("transfer_to_stuck")
    )
    failed: Any = await Handoff([alice, stuck]).arun("go")
    assert (failed.success, failed.stop_reason) == (False, "error") and isinstance(failed.error, MemberFailed)
    assert "stuck: stopped: max_iterations" in failed.error.message and failed.error.details["steps"] == ["1.stuck"]
    back: Any = await Handoff([alice, stuck], on_error="continue").arun("go")
    assert back.success and back.final_output == "I will do it myself." and back.details["path"] == ["alice", "stuck", "alice"]
    assert [hop["reason"] for hop in back.details["hops"]] == ["specialization", "failure"]
    boss = agent("boss", text("Leave it."))
    up: Any = await Handoff([alice, stuck, boss], on_error="continue", escalate_to="boss").arun("go")
    assert up.final_output == "Leave it." and up.details["path"] == ["alice", "stuck", "boss"], "escalation comes first"
    alone: Any = await Handoff([agent("alice", error("down"))], on_error="continue").arun("go")
    assert not alone.success and "down" in str(alone.error)


@pytest.mark.spec("OURS-25")
async def test_nothing_ran_and_a_budget_are_no_success(inline: Runtime) -> None:
    empty: Any = await Handoff([]).arun("go")
    assert not empty.success and isinstance(empty.error, NothingRan)
    slow = Agent(ScriptedModel([text("late")], delay=30), name="slow")
    late: Any = await Handoff([passing("alice", "slow"), slow], time_budget_seconds=0.3).arun("go")
    assert (late.success, late.stop_reason) == (False, "time_budget")
    own: Any = await Handoff([passing("alice", "slow"), slow.with_settings(time_budget_seconds=0.2)]).arun("go")
    assert (own.success, own.stop_reason) == (False, "time_budget") and own.details["active"] == "slow"
    spent: Any = await Handoff([passing("alice", "bob"), agent("bob", text("B"))], token_budget=1).arun("go")
    assert (spent.success, spent.stop_reason) == (False, "token_budget")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"entry": "carol"}, "carol"),
        ({"allow": {"alice": ["dave"]}}, "dave"),
        ({"escalate_to": "eve"}, "eve"),
        ({"purposes": {"frank": "x"}}, "frank"),
        ({"max_handoffs": 0}, "max_handoffs"),
        ({"cycle_window": 2}, "cycle_min_agents"),
        ({"context": "some"}, "context"),
        ({"resume_at": "middle"}, "resume_at"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Handoff([agent("alice"), agent("bob")], **settings)


def test_what_is_passed_on_as_text_is_bounded() -> None:
    long = "x" * 100_000
    hops = [Hop(source="a", target="b", message=long, findings=long)] * 3
    assert len(digest("task", hops, [Message.assistant(long)] * 9)) < 20_000


def test_agents_that_one_tool_would_reach_are_refused() -> None:
    names = transfer_names(["a b", "x" * 100])
    assert names["a b"] == "transfer_to_a_b" and len(names["x" * 100]) == 64, "providers allow no more"
    with pytest.raises(ConfigurationError, match="transfer_to_a_b"):
        Handoff({"a b": agent("x"), "a/b": agent("y")})
    with pytest.raises(ConfigurationError, match="transfer_to_bob"):
        Handoff([agent("alice", tools=[transfer_to_bob]), agent("bob")])


@tool
async def transfer_to_bob() -> str:
    """A tool of the agent's own."""
    return ""


# turns, pauses, crashes


@pytest.mark.spec("OURS-27")
async def test_the_next_turn_begins_where_the_last_one_ended(inline: Runtime) -> None:
    def second(messages: list[Message]) -> ModelResponse:
        return echo(messages) if messages[-1].content == "And now?" else text("Seven.")

    alice = agent("alice", lambda messages: echo(messages) if len(messages) > 3 else tool_call("transfer_to_bob"))
    chain = Handoff([alice, agent("bob", second)], checkpointer="memory://")
    assert (await run(chain, "3 + 4?", thread_id="t")).final_output == "Seven."
    again: Any = await chain.arun("And now?", thread_id="t")
    assert again.details["path"] == ["bob"] and again.success
    roles = [line.partition(":")[0] for line in again.final_output.splitlines() if ": " in line]
    assert [role for role in roles if role in {"system", "user", "assistant", "tool"}] == [
        *("system", "user", "assistant", "tool", "user", "assistant", "user")
    ]
    third: Any = await chain.arun("And now?", thread_id="t")
    assert third.final_output.count("3 + 4?") >= 1 and third.details["path"] == ["bob"]
    entry = Handoff([alice, agent("bob", second)], checkpointer="memory://", resume_at="entry")
    assert (await run(entry, "And now?", thread_id="t")).details["path"] == ["alice"]
    without_alice = Handoff([agent("carol", text("C")), agent("bob", second)], checkpointer="memory://")
    assert (await run(without_alice, "And now?", thread_id="t")).details["path"] == ["carol"], "who is gone does not begin"


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    return f"booked {hotel}: {ctx.interrupt(f'Book {hotel}?')}"


@pytest.mark.spec("OURS-2", "OURS-3", "OURS-24")
@pytest.mark.parametrize("durable", [False, True])
async def test_an_agent_that_asks_pauses_the_chain_which_goes_on_where_it_was(inline: Runtime, durable: bool) -> None:
    ask = tool_calls(("book", {"hotel": "Ritz"}), ("transfer_to_carol", {}))
    asked: list[str] = []

    def hand_over(messages: list[Message]) -> ModelResponse:
        asked.append("alice")
        return tool_call("transfer_to_bob")

    bob = agent("bob", ask, tools=[book])
    settings: dict[str, Any] = {"checkpointer": "memory://"} if durable else {}
    chain = Handoff([agent("alice", hand_over), bob, agent("carol", echo)], **settings)
    where: dict[str, Any] = {"thread_id": "pause"} if durable else {}
    paused: Any = await chain.arun("Paris", **where)
    assert (paused.stop_reason, paused.success) == ("interrupted", False)
    assert [waits["question"] for waits in paused.interrupts] == ["Book Ritz?"]
    done: Any = await chain.aresume("yes", **(where or {"result": paused}))
    assert done.success and done.details["path"] == ["alice", "bob", "carol"]
    assert "tool: booked Ritz: yes" in done.final_output and asked == ["alice"], "alice is not asked again"


async def test_a_cancelled_chain_ends_at_once_and_can_be_continued(inline: Runtime, tmp_path: Path) -> None:
    started = asyncio.Event()

    class Hangs(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            if not started.is_set():
                started.set()
                await asyncio.sleep(60)
            return await super().complete(messages, tools, **settings)

    bob = Agent(Hangs([text("B")]), name="bob")
    chain = Handoff([passing("alice", "bob"), bob], checkpointer=f"sqlite:///{tmp_path}/t.db")
    running = asyncio.ensure_future(chain.arun("go", thread_id="t"))
    await started.wait()
    chain.cancel("t")
    result: Any = await running
    assert (result.stop_reason, result.success) == ("cancelled", False)
    done: Any = await chain.continue_turn("t")
    assert done.success and done.final_output == "B" and done.details["path"] == ["alice", "bob"]


@pytest.mark.spec("OURS-24", "OURS-25")
async def test_a_chain_that_failed_is_continued_with_the_agent_that_failed(inline: Runtime) -> None:
    asked: list[str] = []

    def alice(messages: list[Message]) -> ModelResponse:
        asked.append("alice")
        return tool_call("transfer_to_bob", message="your turn")

    def bob(messages: list[Message]) -> ModelResponse:
        asked.append("bob")
        if len(asked) == 2:
            raise ModelError("no credit")
        return echo(messages)

    chain = Handoff([agent("alice", alice), agent("bob", bob)], checkpointer="memory://")
    failed = await run(chain, "go", thread_id="credit")
    assert not failed.success and "no credit" in str(failed.error) and failed.details["active"] == "bob"
    done: Any = await chain.continue_turn("credit")
    assert done.success and "your turn" in done.final_output and asked == ["alice", "bob", "bob"]


@pytest.mark.spec("OURS-24", "OURS-27")
async def test_hooks_and_guards_of_an_agent_stay_its_own(inline: Runtime) -> None:
    """A hook that refuses a handoff keeps the agent at work."""

    class Guard(Hook):
        async def on_before_tool_call(self, event: BeforeToolCall) -> None:
            event.cancel = "not now"

    alice = agent("alice", tool_call("transfer_to_bob"), text("Then I answer."), hooks=[Guard()])
    result: Any = await Handoff([alice, agent("bob", text("B"))]).arun("go")
    assert result.success and result.final_output == "Then I answer." and result.details["path"] == ["alice"]


@pytest.mark.spec("PAT-16", "OURS-24")
async def test_handoffs_are_told(inline: Runtime) -> None:
    both = tool_calls(("add", {"a": 3, "b": 4}), ("transfer_to_bob", {"reason": "delegation", "message": "yours"}))
    chain = Handoff([agent("alice", both, tools=[add]), agent("bob", text("B"))])
    events = [event async for event in chain.run("go", stream_tokens=True)]
    (hop,) = [event for event in events if isinstance(event, HandoffEvent)]
    assert (hop.source, hop.target, hop.reason) == ("alice", "bob", "delegation") and "yours" in (hop.context_summary or "")
    (done,) = [event for event in events if isinstance(event, PatternEvent)]
    assert (done.kind, done.data) == ("handoff_completed", {"source": "alice", "target": "bob", "status": "completed"})
    inner = [event.innermost for event in events if isinstance(event, MemberEvent)]
    assert [event.agent_name for event in inner if isinstance(event, ThinkEvent)] == ["alice", "bob"]
    tools = [event.tool_name for event in inner if isinstance(event, ToolCompleteEvent)]
    assert tools == ["add", "transfer_to_bob"] and any(isinstance(event, ModelChunkEvent) for event in inner)
    at = [events.index(hop), events.index(done)]
    assert at == sorted(at) and [event.seq for event in events] == list(range(len(events)))


@pytest.mark.ray
@pytest.mark.spec("OURS-1", "OURS-24")
async def test_a_durable_chain_survives_the_death_of_its_supervisor(fragile_runtime: Runtime, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Noted(ScriptedModel):
        def __init__(self, name: str, *turns: Any) -> None:
            super().__init__(list(turns))
            self.name = name

        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            before = log.read_text().split() if log.exists() else []
            with log.open("a") as file:
                file.write(f"{self.name}\n")
            if self.name == "bob" and "bob" not in before:
                await asyncio.sleep(600)
            return await super().complete(messages, tools, **settings)

    both = tool_calls(("add", {"a": 3, "b": 4}), ("transfer_to_bob", {}))
    alice = Agent(Noted("alice", both), [add], name="alice")
    chain = Handoff([alice, Agent(Noted("bob", echo), name="bob")], checkpointer=f"sqlite:///{tmp_path}/t.db")
    running = asyncio.ensure_future(chain.arun("go", thread_id="t", runtime=fragile_runtime))
    await until(lambda: log.exists() and "bob" in log.read_text())
    kill(fragile_runtime, "supervisor")
    async with asyncio.timeout(60):
        result: Any = await running
    assert result.success and "tool: 7" in result.final_output and result.details["path"] == ["alice", "bob"]
    assert log.read_text().split().count("alice") == 1, "what was done is not done again"
