"""Orchestrators: who is chosen, what each is told, what is made of it, and that failures are never an answer."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pydantic import BaseModel

from umbel import Agent, Message, ModelResponse, Runtime, ToolContext, tool
from umbel.errors import ConfigurationError, MemberFailed, NothingRan
from umbel.events import (
    MemberEvent,
    OrchestratorDecisionEvent,
    PatternEvent,
    SpecialistCompleteEvent,
    SpecialistStartEvent,
    ThinkEvent,
)
from umbel.patterns.orchestrator import Orchestrator
from umbel.patterns.pipeline import parallel, sequential
from umbel.patterns.routing import Routing
from umbel.patterns.specialist import (
    Playbook,
    Specialist,
    code_analyst,
    confidence_of,
    log_analyst,
    metrics_analyst,
    purpose_of,
    security_analyst,
)
from umbel.protocol.patterns import MemberResult
from umbel.testing import ScriptedModel, error, text, tool_call


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def specialist(name: str, *turns: Any, tools: Any = (), **settings: Any) -> Specialist:
    return Specialist(ScriptedModel(list(turns)), list(tools), f"You are {name}.", name=name, **settings)


def routing(*names: str, done: bool = False, reasoning: str = "", **tasks: str) -> ModelResponse:
    chosen = [{"specialist": name} for name in names] + [{"specialist": name, "task": task} for name, task in tasks.items()]
    return text(Routing.model_validate({"assignments": chosen, "done": done, "reasoning": reasoning}).model_dump_json())


def model(*replies: Any, summary: Any = None, correlations: Any = None) -> ScriptedModel:
    """A model for all parts of an orchestrator: the router's replies by round, the summary, the correlations."""

    def reply(messages: list[Message]) -> ModelResponse:
        role, asked = messages[0].content or "", messages[-1].content or ""
        if "compare what several" in role:
            return text(correlations)
        if "unite the findings" in role:
            return summary(messages) if callable(summary) else text(summary or "All in all: fine.")
        done = int(asked.partition("Findings of ")[2].partition(" ")[0] or 0)
        given = replies[done]
        if isinstance(given, Exception):
            raise given
        return given(messages) if callable(given) else given  # type: ignore[no-any-return]

    return ScriptedModel([reply], loop=True)  # a repair would be one call more


def echo(messages: list[Message]) -> ModelResponse:
    return text(messages[-1].content or "")


async def run(pattern: Orchestrator, prompt: Any = "Why is it down?", **options: Any) -> Any:
    return await pattern.arun(prompt, **options)


def statuses(result: Any) -> dict[str, str]:
    return {found["specialist"]: found["status"] for found in result.details["specialists"]}


# routing


@pytest.mark.spec("PAT-10", "PAT-12", "PAT-14", "OURS-24")
async def test_the_router_chooses_and_directs_and_the_tools_run(runtime: Runtime) -> None:
    chosen = model(routing(maths="Add 3 and 4.", reasoning="It is a sum."), summary=echo)
    maths = specialist(
        "maths", tool_call("add", a=3, b=4), lambda messages: text(f"It is {messages[-1].content}."), tools=[add]
    )
    result = await run(Orchestrator([maths, specialist("poet", text("never"))], model=chosen), "3 + 4?")
    assert result.success and statuses(result) == {"maths": "completed"}
    assert "It is 7." in result.final_output and "asked: Add 3 and 4." in result.final_output, "the summary saw it"
    assert result.outputs == ["It is 7."] and result.metrics.tool_calls == 1
    assert [made["decision"] for made in result.details["decisions"]] == ["invoke", "summarise"]
    first = result.details["decisions"][0]
    assert (first["specialists"], first["reasoning"], first["source"]) == (["maths"], "It is a sum.", "router")
    assert [member.step for member in result.members] == ["round-1/router", "round-1/maths", "summarise"]


@pytest.mark.spec("PAT-10")
@pytest.mark.parametrize(
    ("reply", "chosen", "source"),
    [
        (text("I would ask b, and then b-side."), ["b"], "mentions"),
        (text("No idea."), ["a", "b", "c"], "all"),
        (text('{"assignments": "b"}'), ["b"], "mentions"),
        (text('{"assignments": [], "done": true}'), ["a", "b", "c"], "all"),
        (error("overloaded"), ["a", "b", "c"], "all"),
        (routing("c", "a"), ["c", "a"], "router"),
    ],
)
async def test_an_answer_that_cannot_be_read_falls_back(inline: Runtime, reply: Any, chosen: list[str], source: str) -> None:
    people = [specialist(name, text(name.upper())) for name in "abc"]
    result = await run(Orchestrator(people, model=model(reply)))
    assert result.success and list(statuses(result)) == chosen
    assert result.details["decisions"][0]["source"] == source
    assert [member.member for member in result.members].count("router") == 1, "one call, whatever comes of it"


@pytest.mark.spec("PAT-10")
async def test_without_a_model_all_run_on_the_whole_task(inline: Runtime) -> None:
    result = await run(Orchestrator([specialist("a", echo), specialist("b", echo)], max_rounds=3))
    assert result.final_output == "a:\nWhy is it down?\n\n---\n\nb:\nWhy is it down?" and result.metrics.model_calls == 2
    assert [made["decision"] for made in result.details["decisions"]] == ["invoke"]
    alone = await run(Orchestrator([specialist("a", text("A"))]))
    assert alone.final_output == "A"


@pytest.mark.spec("PAT-11", "OURS-25")
async def test_an_unknown_specialist_is_a_failed_result(inline: Runtime) -> None:
    people = [specialist("a", text("A"))]
    result = await run(Orchestrator(people, model=model(routing("a", "ghost"))))
    assert result.success and statuses(result) == {"a": "completed", "ghost": "failed"} and result.outputs == ["A", ""]
    assert "there is no specialist 'ghost'; there are: a" in result.details["specialists"][1]["problem"]
    strict = await run(Orchestrator(people, model=model(routing("a", "ghost")), on_error="fail"))
    assert not strict.success and "ghost" in str(strict.error) and strict.outputs == ["A", ""]
    only = await run(Orchestrator(people, model=model(routing("ghost"))))
    assert not only.success and isinstance(only.error, MemberFailed)


@pytest.mark.spec("PAT-10", "OURS-25")
async def test_the_router_asks_for_more_until_it_is_done(inline: Runtime) -> None:
    shown: list[str] = []

    def second(messages: list[Message]) -> ModelResponse:
        shown.append(messages[-1].content or "")
        return routing(b="Look closer.")

    def first(messages: list[Message]) -> ModelResponse:
        shown.append(messages[-1].content or "")
        return routing("a")

    people = [specialist("a", text("disk full"), specialist_type="disks", description="Knows disks."), specialist("b", echo)]
    chosen = model(first, second, routing(done=True, reasoning="enough"), summary="Disk.")
    result = await run(Orchestrator(people, model=chosen, max_rounds=5, purposes={"b": "Sees to the rest."}))
    assert "Specialists:\n- a (disks): Knows disks.\n- b (general): Sees to the rest." in shown.pop(0)
    assert (result.final_output, result.details["rounds"], result.success) == ("Disk.", 2, True)
    assert "a (confidence 0.5):\ndisk full" in shown[0] and "Findings of 1 of at most 5 rounds" in shown[0]
    told = result.details["specialists"][1]["text"]
    assert told.startswith("Look closer.") and "Task: Why is it down?" in told and "disk full" in told
    decisions = [(made["decision"], made.get("round")) for made in result.details["decisions"]]
    assert decisions == [("invoke", 1), ("invoke", 2), ("done", 3), ("summarise", None)]
    both = model(routing("a"), routing("b", done=True))
    assert (await run(Orchestrator(people, model=both, max_rounds=5))).details["rounds"] == 1, "done is done"
    twice = text('{"assignments": [{"specialist": "b", "task": "Look."}, {"specialist": "b", "task": "Smell."}]}')
    assert (await run(Orchestrator(people, model=model(twice)))).outputs[0].startswith("Look.\nSmell."), "one message"
    unread = await run(Orchestrator(people, model=model(routing("a"), text("Hm.")), max_rounds=5))
    assert unread.success and unread.details["rounds"] == 1, "later, what cannot be read asks for nobody"


@pytest.mark.spec("PAT-9")
async def test_no_more_calls_and_messages_than_the_bounds_of_the_centralized_form(inline: Runtime) -> None:
    """Calls <= r n k + r, one for correlations and one for the summary; messages <= r n. Source: arXiv 2512.08296."""
    n, k, r = 4, 3, 3
    names = [f"s{number}" for number in range(n)]
    script = [*([tool_call("add", a=1, b=1)] * (k - 1)), text("2")]
    people = [specialist(name, *script, tools=[add], max_iterations=k, tool_loop_threshold=9) for name in names]
    again = routing(*names, *names)  # each twice: still one message to each
    wild = model(again, again, again, correlations='{"correlations": []}')
    result = await run(Orchestrator(people, model=wild, max_rounds=r, correlate=True))
    assert result.success and len(result.details["specialists"]) == r * n
    assert result.metrics.model_calls == r * n * k + r + 2
    bad = await run(Orchestrator(people, model=model(text("?"), text("??"), text("?")), max_rounds=r, summarise=False))
    assert bad.metrics.model_calls == n * k + 2 <= r * n * k + r


# specialists


@pytest.mark.spec("PAT-11", "PAT-9")
async def test_no_more_than_the_cap_are_at_work(inline: Runtime) -> None:
    at_work, most = 0, 0

    class Counting(ScriptedModel):
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.01)
            at_work -= 1
            return await super().complete(messages, tools, **settings)

    people = [Specialist(Counting([text("x")]), name=f"s{number}") for number in range(9)]
    assert Orchestrator(people).max_parallel_specialists == 5
    for cap, seen in ((5, 5), (2, 2), (100, 9)):
        most = 0
        result = await run(Orchestrator(people, max_parallel_specialists=cap))
        assert most == seen and len(result.outputs) == 9


@pytest.mark.spec("PAT-11")
async def test_an_empty_answer_is_asked_for_once_more(inline: Runtime) -> None:
    asked: list[str] = []

    def shy(prompt: str) -> str:
        asked.append(prompt)
        return "" if len(asked) == 1 else "Here."

    result = await run(Orchestrator({"shy": shy}))
    assert result.success and result.final_output == "Here." and len(asked) == 2
    assert [member.step for member in result.members] == ["round-1/shy", "round-1/shy/again"]
    silent = await run(Orchestrator({"silent": lambda prompt: "  "}))
    assert not silent.success and statuses(silent) == {"silent": "failed"} and len(silent.members) == 2


@pytest.mark.spec("PAT-9")
async def test_the_context_reaches_router_and_specialists(inline: Runtime) -> None:
    seen: list[str] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """See what the run is about."""
        return str(ctx.metadata.get("context"))

    def route(messages: list[Message]) -> ModelResponse:
        seen.append(messages[-1].content or "")
        return routing("a")

    people = [specialist("a", tool_call("look"), lambda m: text(f"{m[-3].content} | {m[-1].content}"), tools=[look])]
    where = Orchestrator(people, model=model(route), summarise=False, context="the cellar")
    assert "Context: the cellar" in (await run(where)).final_output and "Context: the cellar" in seen[0]
    other = await run(where, metadata={"context": {"place": "attic"}})
    assert 'Context: {"place": "attic"}' in other.final_output and "{'place': 'attic'}" in other.final_output
    third = await run(where, {"task": "Why?", "context": "roof"})
    assert "Context: roof" in third.final_output and third.final_output.startswith("Why?")


@pytest.mark.spec("PAT-13", "OURS-25")
async def test_when_every_specialist_failed_it_is_no_success(inline: Runtime) -> None:
    """Nor is a summary asked for."""
    stuck = specialist("stuck", *([tool_call("add", a=1, b=1)] * 2), text("so far"), tools=[add], max_iterations=2)
    result = await run(Orchestrator([specialist("broken", error("no credit")), stuck], model=model(routing("broken", "stuck"))))
    assert (result.success, result.stop_reason, result.final_output) == (False, "error", "")
    assert isinstance(result.error, MemberFailed)
    assert "no credit" in result.error.message and "max_iterations" in result.error.message
    assert [made["decision"] for made in result.details["decisions"]] == ["invoke"] and result.outputs == ["", ""]
    some = await run(Orchestrator([specialist("broken", error("no credit")), specialist("fine", text("F"))], summarise=False))
    assert some.success and statuses(some) == {"broken": "failed", "fine": "completed"} and some.final_output == "F"
    people = [specialist("broken", error("no credit")), specialist("fine", text("F"))]
    strict = await run(
        Orchestrator(people, model=model(routing("broken", "fine"), routing("fine")), on_error="fail", max_rounds=3)
    )
    assert not strict.success and strict.outputs == ["", "F"] and strict.details["rounds"] == 1, "no further round"
    empty = await run(Orchestrator([]))
    assert not empty.success and isinstance(empty.error, NothingRan)


@pytest.mark.spec("OURS-25")
async def test_a_slow_specialist_is_stopped_and_the_others_count(inline: Runtime) -> None:
    slow = Specialist(ScriptedModel([text("late")], delay=30), name="slow")
    result = await run(Orchestrator([slow, specialist("quick", text("Q"))], specialist_timeout=0.2))
    assert result.success and result.final_output == "Q"
    assert "time_budget" in result.details["specialists"][0]["problem"]
    late = await run(Orchestrator([slow, specialist("quick", text("Q"))], time_budget_seconds=0.2))
    assert (late.success, late.stop_reason) == (False, "time_budget")


# one answer


@pytest.mark.spec("PAT-12", "PAT-9")
async def test_only_correlations_of_enough_strength_are_passed_on(inline: Runtime) -> None:
    pairs = '{"correlations": [{"statement": "both saw the disk", "specialists": ["a", "b"], "strength": %s}, '
    pairs += '{"statement": "both were tired", "specialists": ["a", "b"], "strength": 0.69}]}'
    people = [specialist("a", text("disk full")), specialist("b", text("disk at 100 %"))]

    def asked(strength: str, **settings: Any) -> Orchestrator:
        chosen = model(routing("a", "b"), summary=echo, correlations=pairs % strength)
        return Orchestrator(people, model=chosen, correlate=True, **settings)

    result = await run(asked("0.7"))
    assert [one["statement"] for one in result.details["correlations"]] == ["both saw the disk"]
    assert "- both saw the disk (a, b)" in result.final_output and "tired" not in result.final_output
    assert [made["decision"] for made in result.details["decisions"]] == ["invoke", "correlate", "summarise"]
    assert (result.details["decisions"][1]["kept"], result.details["decisions"][1]["dropped"]) == (1, 1)
    loose = await run(asked("0.7", correlation_threshold=0.5))
    assert len(loose.details["correlations"]) == 2 and "tired" in loose.final_output
    broken = await run(asked("2"))
    assert broken.success and broken.details["correlations"] == [], "what cannot be read correlates nothing"


@pytest.mark.spec("PAT-12", "OURS-25")
async def test_a_summary_that_fails_is_not_passed_off_as_one(inline: Runtime) -> None:
    people = [specialist("a", text("A")), specialist("b", text("B"))]
    ill = Agent(ScriptedModel([error("ill")]), name="writer")
    lenient = await run(Orchestrator(people, summarise=ill))
    assert lenient.success and lenient.final_output == "a:\nA\n\n---\n\nb:\nB"
    assert lenient.details["decisions"][-1]["status"] == "failed" and "ill" in lenient.details["decisions"][-1]["problem"]
    strict = await run(Orchestrator(people, summarise=ill, on_error="fail"))
    assert not strict.success and "ill" in str(strict.error) and strict.outputs == ["A", "B"]
    unrelated = await run(Orchestrator(people, model=model(routing("a", "b")), correlate=ill, on_error="fail"))
    assert not unrelated.success and [made["decision"] for made in unrelated.details["decisions"]] == ["invoke", "correlate"]
    alone = await run(Orchestrator(people[:1], model=model(routing("a")), correlate=ill, on_error="fail"))
    assert alone.success, "one finding has nothing to be compared with"


class Answer(BaseModel):
    cause: str
    confidence: float


async def test_parts_may_be_agents_of_ones_own(inline: Runtime) -> None:
    router = Agent(ScriptedModel([routing("b")]), name="chief")
    writer = Agent(ScriptedModel([text('{"cause": "rain", "confidence": 0.2}')]), output_schema=Answer)
    result = await run(Orchestrator([specialist("a", text("A")), specialist("b", text("B"))], model=router, summarise=writer))
    assert result.success and result.outputs == ["B"] and result.value == {"cause": "rain", "confidence": 0.2}
    assert result.details["decisions"][0]["source"] == "router", "it is told what to answer with"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_parallel_specialists": 0}, "max_parallel_specialists"),
        ({"max_rounds": 21}, "max_rounds"),
        ({"correlation_threshold": 1.5}, "correlation_threshold"),
        ({"specialist_timeout": 0}, "specialist_timeout"),
        ({"correlate": True}, "correlator needs a model"),
        ({"summarise": True}, "summariser needs a model"),
        ({"on_error": "ignore"}, "on_error"),
        ({"purposes": {"ghost": "x"}}, "ghost"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Orchestrator([specialist("a")], **settings)


# a specialist by itself


@pytest.mark.spec("PAT-14")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("The disk is full.", 0.5),
        ("Confirmed: the disk is clearly full. Confirmed!", 0.7),
        ("Maybe it is the disk; I am unsure, it might be.", 0.2),
        ("Uncertain.", 0.4),
        ("confirmed verified certain clearly definitely proven reproduced", 1.0),
        ("maybe perhaps possibly probably unclear unknown guess", 0.0),
    ],
)
def test_confidence_is_read_off_the_wording(said: str, expected: float) -> None:
    assert confidence_of(MemberResult(step="s", member="m", text=said)) == expected


@pytest.mark.spec("PAT-14")
async def test_a_structured_confidence_wins(inline: Runtime) -> None:
    sure = specialist("sure", text('{"cause": "maybe rain", "confidence": 0.95}'), output_schema=Answer)
    result = await run(Orchestrator([sure, specialist("vague", text("Perhaps."))]))
    assert [found["confidence"] for found in result.details["specialists"]] == [0.95, 0.4]
    assert result.details["confidence"] == 0.675
    failed = MemberResult(step="s", member="m", status="failed", text="certainly", value={"confidence": 1})
    assert confidence_of(failed) == 0.0
    assert confidence_of(MemberResult(step="s", member="m", text="certainly", value={"confidence": True})) == 0.6


@pytest.mark.spec("PAT-14")
async def test_the_playbook_of_the_task_is_part_of_the_system_prompt(inline: Runtime) -> None:
    def system(messages: list[Message]) -> ModelResponse:
        return text(messages[0].content or "")

    books = [
        Playbook(keywords=("crash", "core dump"), steps="Read the core."),
        Playbook(keywords=("slow",), steps="Measure first."),
    ]
    expert = Specialist(ScriptedModel([system]), system_prompt="You are an expert.", playbooks=books, name="expert")
    assert (await expert.arun("A CORE dump after the crash; it was slow.")).message.endswith("Read the core.")
    assert (await expert.arun("It is slow.")).message.endswith("Measure first.")
    assert (await expert.arun("It is slowly crashing.")).message == "You are an expert.", "whole words"
    changed = expert.with_settings(max_iterations=3)
    assert (await changed.arun("slow")).message.count("Measure first.") == 1 and changed.playbooks == tuple(books)
    written = expert.with_settings(system_prompt=lambda turn: f"About {turn['prompt']}.")
    briefing: Any = written.config.system_prompt
    assert (await written.arun("slow")).message.startswith("About slow.") and briefing.prompt in written.parts()
    again = expert.with_settings(system_prompt="Be brief.")
    assert (await again.arun("slow")).message.startswith("Be brief.")
    assert (await run(Orchestrator([expert]), "It is slow.")).final_output.endswith("Measure first.")


def test_a_specialist_stays_one_wherever_it_is_sent() -> None:
    given = specialist("a", specialist_type="logs", description="Reads logs.\nAll of them.", playbooks=[])
    sent = pickle.loads(cloudpickle.dumps(given))
    assert (type(sent), sent.specialist_type, sent.description, sent.name) == (Specialist, "logs", given.description, "a")
    assert purpose_of(sent) == "Reads logs." and sent.stored_in("memory://").specialist_type == "logs"
    assert purpose_of(specialist("b")) == "You are b." and purpose_of(Agent(ScriptedModel([]))) == ""


@pytest.mark.spec("PAT-15")
@pytest.mark.parametrize(
    ("make", "task", "step"),
    [
        (log_analyst, "There is a traceback.", "first error"),
        (metrics_analyst, "Explain the spike.", "noise"),
        (code_analyst, "Worse since the last release", "what changed"),
        (security_analyst, "A possible breach", "contains it"),
    ],
)
async def test_four_analysts_are_ready_made(inline: Runtime, make: Callable[..., Specialist], task: str, step: str) -> None:
    analyst = make(ScriptedModel([lambda messages: text(messages[0].content or "")]), [add], max_iterations=7)
    assert analyst.name == f"{analyst.specialist_type}_analyst" and analyst.description and "add" in analyst.tools_by_name
    assert step in (await analyst.arun(task)).message and analyst.config.max_iterations == 7
    assert make(ScriptedModel([]), name="mine", description="other").description == "other"


# in a tree, told, paused, cancelled


@pytest.mark.spec("PAT-16", "OURS-24")
async def test_what_is_decided_and_done_is_told(inline: Runtime) -> None:
    people = [specialist("a", text("Confirmed."), specialist_type="logs"), specialist("b", text("B"))]
    chosen = model(routing(a="Look.", reasoning="logs first"), summary="S")
    events = [event async for event in Orchestrator(people, model=chosen).run("go")]
    decisions = [event for event in events if isinstance(event, OrchestratorDecisionEvent)]
    assert [event.decision for event in decisions] == ["invoke", "summarise"]
    assert (decisions[0].specialists_selected, decisions[0].reasoning) == (("a",), "logs first")
    kinds = [event.kind for event in events if isinstance(event, PatternEvent)]
    assert kinds == ["routing_completed", "specialists_invoked", "summary_completed"]
    (start,) = [event for event in events if isinstance(event, SpecialistStartEvent)]
    (end,) = [event for event in events if isinstance(event, SpecialistCompleteEvent)]
    assert (start.specialist_id, start.specialist_type, start.task) == ("a", "logs", "Look.")
    assert (end.specialist_id, end.result, end.confidence) == ("a", "Confirmed.", 0.6) and end.duration_ms > 0
    inner = [event.innermost for event in events if isinstance(event, MemberEvent)]
    assert [event.agent_name for event in inner if isinstance(event, ThinkEvent)] == ["router", "a", "summariser"]


@tool
async def book(hotel: str, ctx: ToolContext) -> str:
    """Book a hotel, once a person has agreed."""
    return f"booked {hotel}: {ctx.interrupt(f'Book {hotel}?')}"


@pytest.mark.spec("OURS-3", "OURS-24")
@pytest.mark.parametrize("durable", [False, True])
async def test_specialists_three_patterns_deep_ask_and_go_on(inline: Runtime, durable: bool) -> None:
    routed: list[int] = []

    def route(messages: list[Message]) -> ModelResponse:
        routed.append(1)
        return routing("travel", "weather")

    clerk = specialist(
        "clerk", tool_call("book", hotel="Ritz"), lambda messages: text(messages[-1].content or ""), tools=[book]
    )
    travel = Orchestrator([sequential(clerk, name="desk")], name="travel")
    people = [travel, specialist("weather", text("sunny"))]
    where: dict[str, Any] = {"thread_id": f"t{durable}"} if durable else {}
    trip = Orchestrator(people, model=model(route, summary=echo), checkpointer="memory://" if durable else None)
    paused = await run(trip, "Plan it.", **where)
    assert paused.stop_reason == "interrupted" and [asked["question"] for asked in paused.interrupts] == ["Book Ritz?"]
    done: Any = await trip.aresume("yes", **(where or {"result": paused}))
    assert done.success and "booked Ritz: yes" in done.final_output and "sunny" in done.final_output
    assert routed == [1], "the router is not asked again"


@pytest.mark.spec("OURS-24", "OURS-25")
async def test_patterns_and_functions_as_specialists(inline: Runtime) -> None:
    pair = parallel(specialist("x", text("X")), specialist("y", text("Y")), name="pair")
    result = await run(Orchestrator({"pair": pair, "count": lambda prompt: str(len(prompt))}), "four")
    assert result.success and result.outputs == ["X\n\n---\n\nY", "4"]
    inner = Orchestrator([specialist("deep", error("flooded"))], name="inner")
    failed = await run(Orchestrator([sequential(inner, name="middle")]))
    assert not failed.success and "flooded" in str(failed.error)


async def test_a_cancel_stops_all_of_them_and_a_continuation_asks_only_who_has_not_answered(
    inline: Runtime, tmp_path: Path
) -> None:
    asked: list[str] = []
    hangs = asyncio.Event()

    class Noted(ScriptedModel):
        def __init__(self, name: str) -> None:
            super().__init__([text(name.upper())])
            self.name = name

        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
            asked.append(self.name)
            if self.name == "slow" and asked.count("slow") == 1:
                hangs.set()
                await asyncio.sleep(60)
            return await super().complete(messages, tools, **settings)

    people = [Specialist(Noted(name), name=name) for name in ("quick", "slow")]
    pattern = Orchestrator(people, checkpointer=f"sqlite:///{tmp_path}/t.db", max_parallel_specialists=1)
    running = asyncio.ensure_future(run(pattern, "go", thread_id="t"))
    await hangs.wait()
    pattern.cancel("t")
    stopped = await running
    assert (stopped.stop_reason, stopped.success) == ("cancelled", False)
    done: Any = await pattern.continue_turn("t")
    assert done.success and done.outputs == ["QUICK", "SLOW"] and asked == ["quick", "slow", "slow"]
