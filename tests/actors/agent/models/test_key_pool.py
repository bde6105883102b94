"""Several keys of one endpoint: who is asked, who rests, and that no error or log shows a key."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from umbel.actors.agent.models import OpenAICompatibleModel, RetryingModel, collect, resolve_model
from umbel.actors.agent.models.gate import Gate
from umbel.actors.agent.models.key_pool import REST_SECONDS, KeyPool
from umbel.protocol.config import Limits
from umbel.protocol.errors import AuthenticationFailed, ConfigurationError
from umbel.protocol.messages import Message

HI = [Message.user("hi")]
DONE = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]}
KEYS = ["sk-secret-a", "sk-secret-b", "sk-secret-c"]
Answer = Callable[[str], httpx.Response]


def pool(virtual: Any, answer: Answer, **limits: Any) -> tuple[KeyPool, list[tuple[float, str]]]:
    asked: list[tuple[float, str]] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        key = request.headers["authorization"].removeprefix("Bearer ")
        asked.append((virtual.now, key))
        await virtual.sleep(0.05)
        return answer(key)

    models = [
        OpenAICompatibleModel(
            "m",
            base_url="http://h/v1",
            api_key=key,
            transport=httpx.MockTransport(serve),
            gate=Gate("h", timing=virtual.timing, limits=Limits(**limits)),
            timing=virtual.timing,
        )
        for key in KEYS
    ]
    return KeyPool(models, timing=virtual.timing), asked


def done(key: str) -> httpx.Response:
    return httpx.Response(200, json=DONE)


async def test_requests_are_spread_over_the_keys_and_each_has_its_own_limit(virtual: Any) -> None:
    model, asked = pool(virtual, done, requests_per_minute=60)
    await virtual.run(asyncio.gather(*(model.complete(HI) for _ in range(30))))
    assert Counter(key for _, key in asked) == dict.fromkeys(KEYS, 10)
    assert 9 < virtual.now < 11.5, "three times as fast as one key"


async def test_a_refused_key_rests_and_is_reported_by_its_place(virtual: Any, caplog: pytest.LogCaptureFixture) -> None:
    def answer(key: str) -> httpx.Response:
        return done(key) if key != KEYS[1] else httpx.Response(401, json={"error": {"message": f"bad key {key}"}})

    model, asked = pool(virtual, answer)
    with caplog.at_level(logging.WARNING, "umbel.models"):
        for _ in range(9):
            assert (await virtual.run(model.complete(HI))).content == "done"
    assert Counter(key for _, key in asked)[KEYS[1]] == 1
    assert [record.getMessage() for record in caplog.records] == [
        "API key 2 of 3 for http://h/v1 is refused (401): it rests for 300 s"
    ]
    virtual.now += REST_SECONDS
    for _ in range(3):
        await virtual.run(model.complete(HI))
    assert Counter(key for _, key in asked)[KEYS[1]] == 2


async def test_when_every_key_is_refused_that_is_said_without_a_key(virtual: Any) -> None:
    model, asked = pool(virtual, lambda key: httpx.Response(403, json={"error": {"message": f"no access for {key}"}}))
    for _ in range(2):
        with pytest.raises(AuthenticationFailed) as caught:
            await virtual.run(model.complete(HI))
        assert not [key for key in KEYS if key in str(caught.value)]
    assert len(asked) == 3


async def test_a_key_at_its_limit_is_left_for_one_that_is_free(virtual: Any) -> None:
    def answer(key: str) -> httpx.Response:
        if key == KEYS[0]:
            return httpx.Response(429, headers={"retry-after": "30"}, json={"error": {"message": "slow down"}})
        return done(key)

    model, asked = pool(virtual, answer)
    for _ in range(6):
        assert (await virtual.run(collect(RetryingModel(model, timing=virtual.timing).stream(HI)))).content == "done"
    assert virtual.now < 5
    assert Counter(key for _, key in asked)[KEYS[0]] == 1


async def test_all_at_their_limits_are_waited_for(virtual: Any) -> None:
    limited = dict.fromkeys(KEYS, 1)

    def answer(key: str) -> httpx.Response:
        if virtual.now < 5:
            return httpx.Response(429, headers={"retry-after": f"{5 + limited[key]}"}, json={"error": {"message": "slow down"}})
        return done(key)

    model, asked = pool(virtual, answer)
    assert (await virtual.run(RetryingModel(model, timing=virtual.timing).complete(HI))).content == "done"
    assert 6 <= virtual.now < 8
    assert Counter(key for _, key in asked[:3]) == dict.fromkeys(KEYS, 1)


def test_keys_come_as_texts_or_references(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "b").write_text("sk-secret-b\n")
    monkeypatch.setenv("KEY_A", "sk-secret-a")
    model = resolve_model("openai:gpt-4o-mini", api_keys=["env:KEY_A", f"file:{tmp_path}/b", "sk-secret-c"])
    assert isinstance(model, KeyPool)
    assert "keys=3" in repr(model)
    assert "sk-secret" not in repr(model)
    assert len(set(model.endpoint.partition("#")[2].split(","))) == 3
    assert pickle.loads(pickle.dumps(model)).endpoint == model.endpoint


@pytest.mark.parametrize("given", ["sk-secret", [], [""], [7], ["env:NOT_SET_ANYWHERE"]])
def test_keys_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="api_keys"):
        resolve_model("openai:gpt-4o-mini", api_keys=given)


def test_a_model_object_takes_one_key() -> None:
    with pytest.raises(ConfigurationError, match="api_keys"):
        OpenAICompatibleModel("m", base_url="http://h/v1", api_keys=["sk-secret"])
