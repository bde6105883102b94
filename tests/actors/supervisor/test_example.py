"""The worked example of the contract (spec/example.md): a support agent that looks up an order and refunds it once."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Agent, ReflexionConfig, Runtime, tool
from umbel.events import Event, ReflectEvent, TerminateEvent, ThinkEvent, ToolCompleteEvent, ToolStartEvent
from umbel.termination import ConfidenceMet, MaxIterations, ToolCalled
from umbel.testing import ScriptedModel, text, tool_call

PROMPT = "Process refund request R-42 for order ord-4821: verify, then refund if it is eligible."


@tool
async def lookup_order(order_id: str) -> dict[str, Any]:
    """What is known of an order."""
    return {"order_id": order_id, "status": "delivered", "eligible": True}


@tool(idempotent=True)
async def issue_refund(order_id: str, request_id: str) -> dict[str, Any]:
    """Refund an order once."""
    return {"receipt": "RF-58291"}


def support_agent(*last: Any) -> Agent:
    return Agent(
        ScriptedModel(
            [
                tool_call("lookup_order", order_id="ord-4821"),
                tool_call("issue_refund", order_id="ord-4821", request_id="R-42"),
                *last,
            ]
        ),
        [lookup_order, issue_refund],
        reflexion=ReflexionConfig(evaluate_every_n_iterations=2),
        termination=(ToolCalled("issue_refund") & ConfidenceMet(0.9)) | MaxIterations(8),
    )


async def watched(agent: Agent) -> tuple[list[Event], Any]:
    events: list[Event] = []
    result = await agent.with_settings(callback_handler=events.append).arun(PROMPT)
    return events, result


@pytest.mark.spec("LOOP-96", "LOOP-97", "LOOP-20", "REAS-14", "EVT-12", "TERM-22")
async def test_three_iterations_two_calls_one_reflection(runtime: Runtime) -> None:
    events, result = await watched(support_agent(text("Refunded, receipt RF-58291.")))
    assert [event.event_type for event in events] == [
        "think",
        "tool_start",
        "tool_complete",
        "think",
        "tool_start",
        "tool_complete",
        "reflect",
        "think",
        "terminate",
    ]
    thinks = [event for event in events if isinstance(event, ThinkEvent)]
    assert [event.iteration for event in thinks] == [1, 2, 3]
    assert [call.name for event in thinks for call in event.tool_calls] == ["lookup_order", "issue_refund"]
    [reflected] = [event for event in events if isinstance(event, ReflectEvent)]
    assert (reflected.iteration, reflected.confidence_delta, reflected.new_confidence) == (2, 0.15, 0.15)
    [ended] = [event for event in events if isinstance(event, TerminateEvent)]
    assert (ended.reason, ended.iterations_used, ended.total_tool_calls) == ("complete", 3, 2)
    assert result.stop_reason == "complete" and result.success and result.confidence == 0.15
    assert [done.result is not None and "RF-58291" in done.result for done in result.tool_executions] == [False, True]


@pytest.mark.spec("LOOP-76", "LOOP-79", "OURS-18")
async def test_a_repeated_refund_comes_from_the_record(runtime: Runtime) -> None:
    again = tool_call("issue_refund", order_id="ord-4821", request_id="R-42")
    events, result = await watched(support_agent(again, text("Done.")))
    assert [done.idempotent_cache_hit for done in result.tool_executions] == [False, False, True]
    assert result.tool_executions[2].result == result.tool_executions[1].result
    assert sum(isinstance(event, ToolStartEvent) for event in events) == 3
    assert sum(isinstance(event, ToolCompleteEvent) for event in events) == 3
    assert sum(isinstance(event, TerminateEvent) for event in events) == 1
