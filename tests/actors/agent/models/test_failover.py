"""Several models as one: who is asked, who rests, and what is never hidden."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from umbel.actors.agent.models import (
    FailoverModel,
    ModelProtocol,
    OpenAICompatibleModel,
    RetryingModel,
    RetryPolicy,
    breaker as breakers,
    collect,
    register_provider,
)
from umbel.actors.agent.models.breaker import Breaker
from umbel.actors.agent.models.gate import Gate
from umbel.protocol.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigurationError,
    ContextOverflow,
    MalformedResponse,
    ModelConnectionError,
    ModelServerError,
    ModelTimeout,
    Overloaded,
    RateLimited,
)
from umbel.protocol.messages import Message, ModelChunk, ModelResponse

HI = [Message.user("hi")]


class Model:
    """Gives its outcomes in order, the last one for ever: a text, a failure, or (streamed) failure after some pieces."""

    def __init__(self, name: str, *outcomes: Any, pieces: int = 0) -> None:
        self.name = name
        self.outcomes = list(outcomes)
        self.pieces = pieces
        self.asked = 0

    def _next(self) -> Any:
        self.asked += 1
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    async def complete(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> ModelResponse:
        outcome = self._next()
        if isinstance(outcome, BaseException):
            raise outcome
        return ModelResponse(message=Message.assistant(outcome))

    async def stream(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> AsyncIterator[ModelChunk]:
        outcome = self._next()
        for _ in range(self.pieces):
            yield ModelChunk(content="piece")
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome:
            yield ModelChunk(content=outcome)
            yield ModelChunk(done=True, stop_reason="stop")


async def ask(model: ModelProtocol, streaming: bool = False) -> ModelResponse:
    return await (collect(model.stream(HI)) if streaming else model.complete(HI))


async def listen(model: ModelProtocol, heard: list[str | None]) -> None:
    async for chunk in model.stream(HI):
        heard.append(chunk.content)  # noqa: PERF401 - what was heard before a failure must stay


both = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
PASSING = [
    RateLimited("x"),
    Overloaded("x"),
    ModelServerError("x"),
    ModelTimeout("x"),
    ModelConnectionError("x"),
    MalformedResponse("x"),
    AuthenticationFailed("x"),
    TimeoutError(),
    ConnectionResetError(),
]


@both
@pytest.mark.parametrize("failure", PASSING, ids=lambda failure: type(failure).__name__)
async def test_the_next_model_answers_and_is_named(failure: Exception, streaming: bool, virtual: Any) -> None:
    first, second = Model("first", failure), Model("second", "fine")
    response = await ask(FailoverModel([first, second], timing=virtual.timing), streaming)
    assert (response.content, response.model) == ("fine", "second")
    assert (first.asked, second.asked) == (1, 1)


@both
@pytest.mark.parametrize("failure", [BadRequest("x"), ContextOverflow("x"), ValueError("bug"), ConfigurationError("x")])
async def test_what_is_the_requests_own_fault_is_raised(failure: Exception, streaming: bool, virtual: Any) -> None:
    first, second = Model("first", failure), Model("second", "fine")
    model = FailoverModel([first, second], failures=1, timing=virtual.timing)
    for _ in range(3):  # and is not held against the model
        with pytest.raises(type(failure)):
            await ask(model, streaming)
    assert (first.asked, second.asked) == (3, 0)


@pytest.mark.spec("LOOP-49")
async def test_nothing_is_tried_again_once_a_piece_was_handed_on(virtual: Any) -> None:
    first, second = Model("first", Overloaded("in the middle"), pieces=2), Model("second", "fine")
    model = FailoverModel([first, second], failures=2, timing=virtual.timing)
    for _ in range(2):
        heard: list[str | None] = []
        with pytest.raises(Overloaded, match="in the middle"):
            await listen(model, heard)
        assert heard == ["piece", "piece"]
    assert second.asked == 0
    assert (await ask(model, True)).content == "fine"  # it counts as a failure all the same: now the first one rests


async def test_an_empty_stream_is_a_failure(virtual: Any) -> None:
    model = FailoverModel([Model("first", ""), Model("second", "fine")], timing=virtual.timing)
    assert (await ask(model, True)).content == "fine"


@both
async def test_a_model_that_keeps_failing_rests_and_is_probed(streaming: bool, virtual: Any) -> None:
    first, second = Model("first", Overloaded("x")), Model("second", "fine")
    model = FailoverModel([first, second], failures=3, rest_seconds=30, timing=virtual.timing)
    for _ in range(10):
        assert (await ask(model, streaming)).content == "fine"
    assert first.asked == 3
    virtual.now += 30
    for _ in range(5):  # one probe, which fails: it rests again
        await ask(model, streaming)
    assert first.asked == 4
    virtual.now += 30
    first.outcomes = ["back"]
    for _ in range(3):
        assert (await ask(model, streaming)).content == "back"


async def test_failures_count_in_a_row_only(virtual: Any) -> None:
    first = Model("first", *[Overloaded("x"), Overloaded("x"), "ok"] * 4)
    model = FailoverModel([first, Model("second", "fine")], failures=3, timing=virtual.timing)
    assert [(await ask(model)).model for _ in range(9)] == ["second", "second", "first"] * 3


async def test_only_one_probe_at_a_time_and_a_cancelled_one_gives_its_place_back(virtual: Any) -> None:
    started = asyncio.Event()

    class Slow(Model):
        async def complete(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> ModelResponse:
            outcome = self._next()
            if outcome == "hangs":
                started.set()
                await asyncio.Event().wait()
            raise outcome

    first = Slow("first", Overloaded("x"), "hangs")
    model = FailoverModel([first, Model("second", "fine")], failures=1, rest_seconds=5, timing=virtual.timing)
    await ask(model)
    virtual.now += 5
    probe = asyncio.ensure_future(ask(model))
    await started.wait()
    assert (await ask(model)).content == "fine"
    assert first.asked == 2
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    first.outcomes = [Overloaded("x")]
    await ask(model)
    assert first.asked == 3


@both
async def test_when_all_failed_the_soonest_to_pass_is_raised(streaming: bool, virtual: Any) -> None:
    failures = [AuthenticationFailed("a"), RateLimited("b", retry_after=9), Overloaded("c", retry_after=2)]
    model = FailoverModel([Model(str(n), failure) for n, failure in enumerate(failures)], timing=virtual.timing)
    with pytest.raises(Overloaded, match="c"):
        await ask(model, streaming)
    with pytest.raises(AuthenticationFailed):
        await ask(FailoverModel([Model("only", failures[0])], timing=virtual.timing), streaming)


@pytest.mark.case(24)
async def test_when_all_rest_a_retry_waits_until_one_may_be_probed(virtual: Any) -> None:
    first = Model("first", Overloaded("x"), "back")
    model = FailoverModel([first], failures=1, rest_seconds=20, timing=virtual.timing)
    with pytest.raises(Overloaded):
        await ask(model)
    with pytest.raises(Overloaded, match="rests") as caught:
        await ask(model)
    assert caught.value.retry_after == 20
    response = await virtual.run(RetryingModel(model, RetryPolicy(), timing=virtual.timing).complete(HI))
    assert response.content == "back"
    assert 20 <= virtual.now < 25
    assert first.asked == 2


@pytest.mark.case(24)
async def test_a_known_rate_limit_is_not_waited_for_while_another_model_is_free(virtual: Any) -> None:
    asked: list[str] = []

    def server(name: str, status: int) -> Any:
        def handle(request: httpx.Request) -> httpx.Response:
            asked.append(name)
            choice = {"message": {"content": name}, "finish_reason": "stop"}
            return httpx.Response(status, json={"choices": [choice]}, headers={"retry-after": "60"})

        return OpenAICompatibleModel(
            name,
            base_url=f"http://{name}.test",
            gate=Gate(timing=virtual.timing),
            timing=virtual.timing,
            transport=httpx.MockTransport(handle),
        )

    limited, free = server("limited", 429), server("free", 200)
    model = FailoverModel([limited, free], timing=virtual.timing)
    for _ in range(5):
        assert (await ask(model)).content == "free"
    assert virtual.now == 0
    assert asked == ["limited", *["free"] * 5]
    await model.aclose()


async def test_what_is_known_of_an_endpoint_is_shared_by_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakers, "_shared", {})
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(500)

    def model(key: str) -> FailoverModel:
        settings: Any = {"base_url": "http://down.test", "api_key": key, "transport": httpx.MockTransport(handle)}
        return FailoverModel([OpenAICompatibleModel("m", **settings), Model("second", "fine")], failures=2)

    for _ in range(4):
        await ask(model("one"))
    assert len(asked) == 2
    await ask(model("another"))
    assert len(asked) == 3


def test_texts_are_resolved_where_the_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = FailoverModel(["openai:gpt-4o", ("deepseek:deepseek-chat", {"api_key": "k"})])  # no key is read here
    copy = pickle.loads(pickle.dumps(model))
    assert repr(copy) == "FailoverModel(['openai:gpt-4o', 'deepseek:deepseek-chat'])"
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        _ = copy.native_tools
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert (copy.native_tools, copy.supports_response_format, copy.stateful, copy.family) == (True, False, False, "deepseek")


async def test_factories_travel_along(monkeypatch: pytest.MonkeyPatch) -> None:
    from umbel.actors.agent.models import registry

    monkeypatch.setattr(registry, "_factories", {})
    register_provider("mine", fine)
    data = pickle.dumps(FailoverModel(["mine:a"]))
    registry._factories.clear()  # as in another process
    assert (await ask(pickle.loads(data))).content == "from mine"


def fine(name: str, **settings: Any) -> Model:
    return Model(name, "from mine")


@pytest.mark.parametrize("wrong", [[], "openai:x", [7], [("openai:x",)], [("openai:x", 3)]])
def test_what_is_no_list_of_models(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        FailoverModel(wrong)


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"rest_seconds": -1}])
def test_wrong_settings(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        FailoverModel(["offline:x"], **wrong)


def test_a_breaker_that_was_abandoned_in_a_probe_stays_open() -> None:
    breaker = Breaker()
    breaker.fail(0.0, 1)
    assert not breaker.admit(9.0, 10.0)
    assert breaker.reopens(9.0, 10.0) == 1.0
    assert breaker.admit(10.0, 10.0)
    assert not breaker.admit(10.0, 10.0)
    breaker.abandon()
    assert breaker.admit(10.0, 10.0)
    breaker.fail(10.0, 5)  # a failed probe opens at once, whatever the limit
    assert not breaker.admit(11.0, 10.0)
