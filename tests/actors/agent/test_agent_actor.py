"""The agent actor: conversations by delta, models by definition."""

from __future__ import annotations

from typing import Any

import pytest

from umbel import Agent, Message, ModelChunk, ModelResponse
from umbel.actors.agent.actor import AgentActor
from umbel.actors.definitions import LocalDefinitions
from umbel.errors import ConfigurationError, MalformedResponse, ModelError
from umbel.protocol.commands import ForgetRuns, ThinkReply, ThinkRequest
from umbel.testing import ScriptedModel, text


class Caller:
    """Collects partial replies."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def flow(self) -> None:
        """Never behind."""


class Counts:
    """Says how many messages it was handed."""

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        return text(str(len(messages)))


def host(agent: Agent, **options: Any) -> tuple[AgentActor, str]:
    definitions = LocalDefinitions()
    return AgentActor(definitions, **options), definitions.register(agent)


def ask(definition: str, base: int, *messages: Message, run_id: str = "r", **options: Any) -> ThinkRequest:
    return ThinkRequest(run_id=run_id, definition=definition, base=base, messages=messages, **options)


def said(reply: ThinkReply) -> str | None:
    assert reply.response is not None
    return reply.response.content


ONE = Message.user("one")


async def test_only_new_messages_travel() -> None:
    agent = Agent(Counts())
    actor, key = host(agent)
    assert said(await actor.think(ask(key, 0, ONE, ONE), Caller())) == "2"
    assert said(await actor.think(ask(key, 2, ONE), Caller())) == "3"
    assert said(await actor.think(ask(key, 3, ONE, ONE), Caller())) == "5"
    assert said(await actor.think(ask(key, 0, ONE), Caller())) == "1", "a whole conversation replaces what was held"


async def test_a_conversation_it_does_not_hold_is_asked_for() -> None:
    agent = Agent(Counts())
    actor, key = host(agent)
    assert (await actor.think(ask(key, 3, ONE), Caller())).need_conversation
    await actor.think(ask(key, 0, ONE), Caller())
    assert (await actor.think(ask(key, 7, ONE), Caller())).need_conversation, "another length than the supervisor thinks"
    await actor.forget(ForgetRuns(run_ids=("r", "unknown")), Caller())
    assert (await actor.think(ask(key, 1, ONE), Caller())).need_conversation


async def test_it_keeps_a_bounded_number_of_conversations() -> None:
    agent = Agent(Counts())
    actor, key = host(agent, conversations=2)
    for run_id in "abc":
        await actor.think(ask(key, 0, ONE, run_id=run_id), Caller())
    assert (await actor.think(ask(key, 1, ONE, run_id="a"), Caller())).need_conversation
    assert said(await actor.think(ask(key, 1, ONE, run_id="c"), Caller())) == "2"


async def test_streaming_sends_the_chunks_and_replies_with_the_whole() -> None:
    agent = Agent(ScriptedModel([text("two words")]))
    actor, key = host(agent)
    caller = Caller()
    assert said(await actor.think(ask(key, 0, ONE, stream=True), caller)) == "two words"
    assert "".join(chunk.content or "" for chunk in caller.sent if isinstance(chunk, ModelChunk)) == "two words"


async def test_the_auxiliary_model_answers_where_it_is_asked_for() -> None:
    agent = Agent(ScriptedModel([text("main")]), auxiliary_model=ScriptedModel([text("side")]))
    actor, key = host(agent)
    assert said(await actor.think(ask(key, 0, ONE), Caller())) == "main"
    assert said(await actor.think(ask(key, 0, ONE, role="auxiliary"), Caller())) == "side"


async def test_what_is_not_a_reply_is_a_typed_error() -> None:
    class Chatty:
        async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> str:
            return "plain text"

    actor, key = host(agent := Agent(Chatty()))
    with pytest.raises(MalformedResponse, match="Chatty"):
        await actor.think(ask(key, 0, ONE), Caller())
    actor, key = host(agent := Agent(object()))
    with pytest.raises(ModelError, match="no complete"):
        await actor.think(ask(key, 0, ONE), Caller())
    del agent


@pytest.mark.spec("API-8")
async def test_a_bad_provider_surfaces_at_the_first_call() -> None:
    agent = Agent("nobody:model")
    actor, key = host(agent)
    with pytest.raises(ConfigurationError, match="nobody"):
        await actor.think(ask(key, 0, ONE), Caller())


class KnowsNoFormat:
    """Refuses keywords that it does not know, as a function of the user's does."""

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem

    async def complete(self, messages: list[Message], tools: Any = None, *, seed: int = 0) -> ModelResponse:
        if self.problem is not None:
            raise TypeError(self.problem)
        return text(f"seed {seed}")

    async def stream(self, messages: list[Message], tools: Any = None, *, seed: int = 0) -> Any:
        yield ModelChunk(content=f"seed {seed}")
        yield ModelChunk(done=True, stop_reason="stop")
        if self.problem is not None:
            raise TypeError(self.problem)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_knows_no_response_format_is_called_without(stream: bool) -> None:
    agent = Agent(KnowsNoFormat())
    actor, key = host(agent)
    wanted = {"response_format": {"type": "json_schema"}, "seed": 7}
    assert said(await actor.think(ask(key, 0, ONE, model_kwargs=wanted, stream=stream), Caller())) == "seed 7"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_type_error_about_something_else_is_raised_and_nothing_is_said_twice(stream: bool) -> None:
    agent = Agent(KnowsNoFormat("broken"))
    actor, key = host(agent)
    caller = Caller()
    wanted = {"response_format": {"type": "json_schema"}}
    with pytest.raises(TypeError, match=r"broken|response_format"):
        await actor.think(ask(key, 0, ONE, model_kwargs=wanted, stream=stream), caller)
    assert [chunk.content for chunk in caller.sent] == (["seed 0", None] if stream else [])
