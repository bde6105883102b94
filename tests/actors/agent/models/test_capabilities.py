"""What the loop learns of a model, and native structured output of OpenAI-compatible ones."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.actors.agent.models import Capabilities, ModelProtocol, collect, resolve_model
from umbel.testing import ScriptedModel, text

WANTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ollama:qwen3:8b", Capabilities(supports_response_format=True, family="qwen")),
        ("deepseek:deepseek-chat", Capabilities(supports_response_format=False, family="deepseek")),
        ("openai:gpt-4o", Capabilities(supports_response_format=True)),
        ("anthropic:claude-sonnet-4-5", Capabilities(supports_response_format=True)),
    ],
)
def test_what_http_models_say(spec: str, expected: Capabilities) -> None:
    assert Capabilities.of(resolve_model(spec, api_key="k")) == expected


def test_settings_win_over_the_name() -> None:
    model = resolve_model("vllm:mine", native_tools=False, supports_response_format=False, family="kimi")
    assert Capabilities.of(model) == Capabilities(native_tools=False, family="kimi")


def test_a_model_that_says_nothing_is_an_ordinary_one() -> None:
    model: ModelProtocol = ScriptedModel([text("x")])
    assert Capabilities.of(model) == Capabilities()


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_response_format_is_passed_through(server: Any, answers: Any, model_at: Any, streaming: bool) -> None:
    server.default = answers.json({"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]})
    model = model_at(server.url)
    call = model.stream([], response_format=WANTED) if streaming else None
    response = await (collect(call) if call is not None else model.complete([], response_format=WANTED))
    assert response.content == "{}"
    assert server.requests[0].body["response_format"] == WANTED
