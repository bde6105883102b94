"""Reflexion, grounding and typed grounding through real runs. On the inline runtime and on Ray."""

from __future__ import annotations

import json
from typing import Any

import pytest

from umbel import Agent, GroundingConfig, GsarConfig, GsarRejected, Message, ModelResponse, ReflexionConfig, Runtime, tool
from umbel.events import CustomEvent, GroundingEvent, ReflectEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls

ANSWER = "The tower is certainly 42 metres high, as the lookup says."


@tool
async def lookup(topic: str) -> str:
    """Look something up."""
    return f"{topic} is 42 metres high."


@tool
async def broken(topic: str) -> str:
    """Fail."""
    raise ValueError(f"no such {topic}")


@tool
async def survey(topic: str) -> str:
    """Return much."""
    return f"{topic}: " + "fact " * 60


async def watched(agent: Agent) -> tuple[list[Any], Any]:
    events: list[Any] = []
    result = await agent.with_settings(callback_handler=events.append).arun("go")
    return events, result


def lookups(count: int) -> list[ModelResponse]:
    return [tool_call("lookup", topic=f"tower {number}") for number in range(count)]


def notes(result: Any) -> list[str]:
    return [message.content for message in result.messages if message.role == "system" and message.metadata.get("automated")]


# reflexion


@pytest.mark.spec("REAS-14", "REAS-7", "REAS-5", "REAS-6", "LOOP-96", "API-50", "EVT-12")
async def test_confidence_grows_with_successes_and_ends_the_run(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel([*lookups(5), text("42")]), [lookup], reflexion=ReflexionConfig(confidence_threshold=0.3))
    events, result = await watched(agent)
    reflections = [event for event in events if isinstance(event, ReflectEvent)]
    assert [(each.iteration, each.assessment, each.confidence_delta) for each in reflections] == [
        (1, "on_track", 0.15),
        (2, "on_track", 0.15),
        (3, "on_track", 0.15),
    ]
    assert [round(each.new_confidence, 4) for each in reflections] == [0.15, 0.2775, 0.3859], "a gain is damped once"
    assert (result.stop_reason, result.success, result.iterations) == ("confidence_met", True, 3)
    assert result.confidence == reflections[-1].new_confidence and result.metrics.reflexion_evaluations == 3


@pytest.mark.spec("REAS-1", "REAS-14")
async def test_reflexion_may_be_rare_undamped_or_off(runtime: Runtime) -> None:
    script = ScriptedModel([*lookups(4), text("42")])
    rare = Agent(script, [lookup], reflexion=ReflexionConfig(evaluate_every_n_iterations=2, diminishing_returns=False))
    events, result = await watched(rare)
    assert [event.iteration for event in events if isinstance(event, ReflectEvent)] == [2, 4]
    assert round(result.confidence, 4) == 0.3
    events, result = await watched(Agent(script, [lookup], reflexion=False))
    assert not any(isinstance(event, ReflectEvent) for event in events) and result.confidence == 0.0


@pytest.mark.spec("REAS-8", "REAS-9", "REAS-15", "LOOP-96")
async def test_guidance_becomes_a_note_that_stays(runtime: Runtime) -> None:
    script = ScriptedModel([tool_call("broken", topic="moon"), tool_call("survey", topic="sun"), text("done")])
    tools = [broken, survey]
    events, result = await watched(Agent(script, tools, reflexion=True))
    assert [event.assessment for event in events if isinstance(event, ReflectEvent)] == ["stuck", "new_findings"]
    stuck, found = notes(result)
    assert "no such moon" in stuck and "Found: sun: fact" in found
    assert [message.role for message in result.messages] == [
        *("system", "user", "assistant", "tool", "system", "assistant", "tool", "system", "assistant")
    ]
    _, silent = await watched(Agent(script, tools, reflexion=ReflexionConfig(include_guidance=False)))
    assert notes(silent) == []
    _, planned = await watched(Agent(script, tools, reflexion=True, planning=True))
    assert "write a new plan" in notes(planned)[1], "the first note asks for the plan itself"


@pytest.mark.spec("REAS-16")
async def test_in_explicit_mode_confidence_ends_nothing(runtime: Runtime) -> None:
    script = ScriptedModel([*lookups(3), tool_call("task_complete", summary="42")])
    agent = Agent(script, [lookup], reflexion=ReflexionConfig(confidence_threshold=0.1), completion_mode="explicit")
    result = await agent.arun("go")
    assert (result.stop_reason, result.iterations) == ("terminal_tool", 4) and result.confidence > 0.1


@pytest.mark.spec("OURS-12", "REAS-12", "BUG-26")
async def test_searches_with_different_queries_are_no_loop(runtime: Runtime) -> None:
    _, result = await watched(Agent(ScriptedModel([*lookups(5), text("42")]), [lookup], reflexion=True))
    assert result.message == "42" and result.confidence > 0.5
    same = ScriptedModel([tool_call("lookup", topic="tower")], loop=True)
    events, looping = await watched(Agent(same, [lookup], reflexion=True))
    assert [event.assessment for event in events if isinstance(event, ReflectEvent)][2:] == ["loop_detected"] * 2
    assert looping.stop_reason == "tool_loop"


# grounding


class Scorer:
    """A judge that gives every claim the same score."""

    def __init__(self, score: str) -> None:
        self.score = score

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        assert tools is None and [message.role for message in messages] == ["user"]
        return text("\n".join(f"{number}: {self.score} - so" for number in range(1, 5)))


class Failing:
    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        raise RuntimeError("the judge is out")


def answering(**settings: Any) -> Agent:
    return Agent(ScriptedModel([tool_call("lookup", topic="tower"), text(ANSWER)]), [lookup], **settings)


@pytest.mark.spec("REAS-17", "REAS-22")
async def test_grounding_asks_the_auxiliary_model_where_it_has_none_itself(runtime: Runtime) -> None:
    _, judged = await watched(answering(grounding=True, auxiliary_model=Scorer("0.9")))
    assert (judged.stop_reason, judged.grounding_score, judged.metrics.model_calls) == ("complete", 0.9, 3)
    own = GroundingConfig(model=Scorer("0.7"))
    _, by_its_own = await watched(answering(grounding=own, auxiliary_model=Scorer("0.9")))
    assert by_its_own.grounding_score == 0.7
    strict = GroundingConfig(model=Scorer("0.7"), threshold=0.8, max_replans=0)
    _, refused = await watched(answering(grounding=strict))
    assert (refused.stop_reason, refused.message) == ("grounding_failed", ANSWER)


@pytest.mark.spec("REAS-17", "REAS-20")
async def test_grounding_that_is_off_or_has_no_evidence_asks_nobody(runtime: Runtime) -> None:
    for off in (False, GroundingConfig(enabled=False), GroundingConfig(check_before_final=False, model=Failing())):
        _, result = await watched(answering(grounding=off))
        assert result.success and result.grounding_score is None and result.metrics.model_calls == 2
    events, plain = await watched(Agent(ScriptedModel([text(ANSWER)]), [lookup], grounding=GroundingConfig(model=Failing())))
    assert plain.message == ANSWER and not any(isinstance(event, GroundingEvent) for event in events)


@pytest.mark.spec("REAS-23", "OURS-11")
async def test_a_grounding_judge_that_fails_is_an_event_and_no_verdict(runtime: Runtime) -> None:
    events, result = await watched(answering(grounding=GroundingConfig(model=Failing())))
    [told] = [event for event in events if isinstance(event, GroundingEvent)]
    assert "the judge is out" in (told.error or "") and told.score is None
    assert result.message == ANSWER and result.grounding_score is None


# typed grounding


class Sorter:
    """A judge that puts every claim into one cell."""

    def __init__(self, *cells: str, status: str = "resolved") -> None:
        self.cells = cells
        self.status = status

    async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
        claims = [{"text": f"claim {number}", "cell": cell, "kind": "tool_match"} for number, cell in enumerate(self.cells)]
        return text(json.dumps({"status": self.status, "reason": "as found", "claims": claims}))


@pytest.mark.spec("REAS-37", "REAS-39", "API-14", "API-21", "API-47", "OURS-13", "OURS-14")
async def test_typed_grounding_looks_once_and_changes_nothing(runtime: Runtime) -> None:
    agent = answering(gsar=GsarConfig(judge=Sorter("grounded", "ungrounded")))
    events, result = await watched(agent)
    assert (result.stop_reason, result.message, result.messages[-1].content) == ("complete", ANSWER, ANSWER)
    assert (result.gsar_score, result.gsar_decision) == (0.5, "replan")
    assert result.gsar_judgement["partition"]["ungrounded"][0]["text"] == "claim 1" and result.metrics.model_calls == 3
    streamed = [event async for event in agent.run("go")]
    for seen in (events, streamed):
        [told] = [event for event in seen if isinstance(event, CustomEvent)]
        assert (told.name, told.data["score"], told.data["decision"]) == ("gsar", 0.5, "replan")


@pytest.mark.spec("API-14", "REAS-30", "REAS-31", "REAS-39")
async def test_every_setting_of_typed_grounding_counts(runtime: Runtime) -> None:
    half = Sorter("grounded", "contradicted")
    cases: list[tuple[dict[str, Any], float, str]] = [
        ({}, 2 / 3, "regenerate"),
        ({"contradiction_penalty": 0.0}, 1.0, "proceed"),
        ({"tau_proceed": 0.66, "tau_regenerate": 0.1}, 2 / 3, "proceed"),
        ({"tau_regenerate": 0.7}, 2 / 3, "replan"),
        ({"weight_map": {"tool_match": 0.0}}, 0.5, "replan"),
    ]
    for settings, score, decision in cases:
        result = await answering(gsar=GsarConfig(judge=half, **settings)).arun("go")
        assert result.gsar_score == pytest.approx(score), settings
        assert result.gsar_decision == decision, settings


@pytest.mark.spec("REAS-40", "API-14", "OURS-11")
@pytest.mark.parametrize("cells", [("grounded", "contradicted"), ("ungrounded",)])
async def test_the_gate_refuses_what_does_not_pass(runtime: Runtime, cells: tuple[str, ...]) -> None:
    with pytest.raises(GsarRejected, match="did not pass") as refused:
        await answering(gsar=GsarConfig(judge=Sorter(*cells), fail_on_low_score=True)).arun("go")
    details = refused.value.details
    assert details["decision"] in {"regenerate", "replan"} and details["score"] < 0.8
    passed = await answering(gsar=GsarConfig(judge=Sorter("grounded"), fail_on_low_score=True)).arun("go")
    assert passed.success and passed.gsar_decision == "proceed"


@pytest.mark.spec("REAS-41", "REAS-33", "OURS-11")
async def test_a_judge_that_fails_abstains_and_the_gate_stays_shut(runtime: Runtime) -> None:
    _, open_ = await watched(answering(gsar=GsarConfig(judge=Failing())))
    assert open_.success and (open_.gsar_decision, open_.gsar_score) == ("abstain", 0.5)
    assert "the judge is out" in open_.gsar_judgement["error"]
    with pytest.raises(GsarRejected, match="the judge is out"):
        await answering(gsar=GsarConfig(judge=Failing(), fail_on_low_score=True)).arun("go")


@pytest.mark.spec("REAS-38")
async def test_a_reused_result_is_evidence_once(runtime: Runtime) -> None:
    @tool(idempotent=True)
    async def measure(topic: str) -> str:
        """Measure."""
        return f"{topic} measures 42"

    class Counter:
        async def complete(self, messages: list[Message], tools: Any = None, **_: Any) -> ModelResponse:
            seen = (messages[-1].content or "").count("tower measures 42")
            claim = {"text": f"seen {seen}", "cell": "grounded", "kind": "tool_match"}
            return text(json.dumps({"status": "resolved", "claims": [claim]}))

    twice = tool_calls(("measure", {"topic": "tower"}), ("measure", {"topic": "tower"}))
    agent = Agent(ScriptedModel([twice, text(ANSWER)]), [measure], gsar=GsarConfig(judge=Counter()))
    result = await agent.arun("go")
    assert (result.gsar_judgement or {})["partition"]["grounded"][0]["text"] == "seen 1"
