"""What the loop does when an actor it needs dies: think elsewhere, repeat only what is safe, say what is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from umbel import Agent, Message, tool
from umbel.actors.definitions import LocalDefinitions
from umbel.actors.supervisor.actor import SupervisorActor
from umbel.errors import PeerLost
from umbel.protocol.commands import ExecuteCall, StartRun, ThinkReply, ThinkRequest, ToolReply
from umbel.protocol.messages import ToolResult
from umbel.protocol.results import RunOutcome
from umbel.testing import text, tool_call, tool_calls, validate_history


@tool
async def charge(order: str) -> str:
    """Charge an order."""
    return order


@tool(idempotent=True)
async def lookup(order: str) -> str:
    """Look an order up."""
    return order


class Channel:
    """Answers requests with a function; remembers them."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    async def request(self, message: Any, **options: Any) -> Any:
        self.requests.append(message)
        reply = self.answer(message)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send(self, message: Any) -> None:
        """One-way messages are of no interest here."""

    def define(self, definition: str, blob: Any) -> None:
        """Everything is known."""


class Peers:
    """One channel for every kind of actor, made by the test."""

    def __init__(self, think: Channel, execute: Channel) -> None:
        self.think, self.execute = think, execute
        self.attempts: list[int] = []

    def agent(self, agent: Any, run_id: str, attempt: int = 0) -> Channel:
        self.attempts.append(attempt)
        return self.think

    def tools(self, tool: Any, run_id: str) -> Channel:
        return self.execute

    def blob(self, definition: str) -> bytes:
        return b""


class Caller:
    def send(self, message: Any) -> None:
        """Nobody listens."""

    async def flow(self) -> None:
        """Never behind."""


def lost(delivered: str = "unknown") -> PeerLost:
    return PeerLost("died", peer="x", delivered=delivered)


async def run(agent: Agent, think: Channel, execute: Channel) -> tuple[RunOutcome, Peers]:
    definitions = LocalDefinitions()
    peers = Peers(think, execute)
    supervisor = SupervisorActor(definitions, peers)  # type: ignore[arg-type]  # only what this turn needs
    request = StartRun(run_id="r", definition=definitions.register(agent), prompt="go")
    finished = await supervisor.start(request, Caller())
    assert supervisor.active == 0
    return finished.outcome, peers


def think_with(*replies: Any) -> Channel:
    turns = iter(replies)

    def answer(message: ThinkRequest) -> Any:
        reply = next(turns)
        return reply if isinstance(reply, ThinkReply | Exception) else ThinkReply(response=reply)

    return Channel(answer)


def done(message: ExecuteCall) -> ToolReply:
    return ToolReply(result=ToolResult(tool_call_id=message.call.id, name=message.call.name, content="done"))


async def test_think_goes_to_another_agent_actor_with_the_whole_conversation() -> None:
    think = think_with(lost(), tool_call("lookup", order="1"), lost(), text("ok"))
    outcome, peers = await run(Agent(object(), [lookup]), think, Channel(done))
    assert outcome.stop_reason == "complete"
    assert peers.attempts == [0, 1, 1], "the one that holds the conversation is asked again"
    bases = [(request.base, len(request.messages)) for request in think.requests]
    assert bases == [(0, 2), (0, 2), (2, 2), (0, 4)]


async def test_an_agent_actor_that_forgot_gets_the_whole_conversation() -> None:
    think = think_with(tool_call("lookup", order="1"), ThinkReply(need_conversation=True), text("ok"))
    outcome, _ = await run(Agent(object(), [lookup]), think, Channel(done))
    assert outcome.stop_reason == "complete"
    assert [(request.base, len(request.messages)) for request in think.requests] == [(0, 2), (2, 2), (0, 4)]


async def test_think_gives_up_after_four_lost_actors() -> None:
    outcome, peers = await run(Agent(object()), think_with(*[lost()] * 4), Channel(done))
    assert outcome.stop_reason == "error" and outcome.error is not None and outcome.error["code"] == "peer_lost"
    assert peers.attempts == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "delivered", "tries", "succeeds"),
    [("lookup", "unknown", 2, True), ("charge", "no", 2, True), ("charge", "unknown", 1, False)],
)
async def test_a_call_is_repeated_only_when_that_is_safe(name: str, delivered: str, tries: int, succeeds: bool) -> None:
    answers = iter([lost(delivered), None])
    execute = Channel(lambda message: next(answers) or done(message))
    outcome, _ = await run(Agent(object(), [charge, lookup]), think_with(tool_call(name, order="1"), text("ok")), execute)
    assert len(execute.requests) == tries
    assert outcome.stop_reason == "complete" and outcome.state is not None
    (execution,) = outcome.state.tool_executions
    assert execution.success is succeeds
    if not succeeds:
        assert execution.code == "outcome_unknown" and "Verify" in (execution.error or "")
    validate_history(outcome.state.messages)


async def test_a_poisonous_call_does_not_spin() -> None:
    execute = Channel(lambda message: lost())
    outcome, _ = await run(Agent(object(), [lookup]), think_with(tool_call("lookup", order="1"), text("ok")), execute)
    assert len(execute.requests) == 3
    assert outcome.state is not None and outcome.state.tool_executions[0].code == "outcome_unknown"
    assert [message.role for message in outcome.state.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert isinstance(outcome.state.messages[0], Message)


@pytest.mark.spec("LOOP-81")
async def test_when_the_executor_fails_every_call_gets_its_error_and_the_turn_goes_on() -> None:
    calls = tool_calls(("charge", {"order": "1"}), ("lookup", {"order": "2"}), ("charge", {"order": "3"}))
    outcome, _ = await run(Agent(object(), [charge, lookup]), think_with(calls, text("ok")), Channel(lambda message: lost()))
    assert (outcome.stop_reason, outcome.message) == ("complete", "ok") and outcome.state is not None
    assert [done.code for done in outcome.state.tool_executions] == ["outcome_unknown"] * 3
    validate_history(outcome.state.messages)
