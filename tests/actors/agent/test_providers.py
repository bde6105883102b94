"""Providers of the user's own, and several models as one, in the processes where agents think."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, FailoverModel, Runtime, register_provider
from umbel.actors.agent.models import registry
from umbel.actors.definitions import pack_definition
from umbel.errors import ConfigurationError, Overloaded
from umbel.protocol.messages import Message, ModelChunk, ModelResponse


class Echo:
    """A model of this test module, which no actor can import."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.text = f"{name} {settings}"

    async def complete(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> ModelResponse:
        if "down" in self.text:
            raise Overloaded("down")
        return ModelResponse(message=Message.assistant(self.text))

    async def stream(self, messages: list[Message], tools: Any = None, **kwargs: Any) -> AsyncIterator[ModelChunk]:
        yield ModelChunk(content=self.text, done=True, stop_reason="stop")


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", {})
    register_provider("echo", Echo)


async def test_a_factory_travels_with_the_agents_that_name_it(runtime: Runtime) -> None:
    result = await Agent("echo:a", model_kwargs={"b": 1}).arun("hi")
    assert result.message == "a {'b': 1}"


async def test_failover_between_texts_is_resolved_in_the_actor(runtime: Runtime) -> None:
    model = FailoverModel([("echo:first", {"state": "down"}), ("echo:second", {"state": "up"})])
    result = await Agent(model, model_retry=False).arun("hi")
    assert result.message == "second {'state': 'up'}"


async def test_an_unknown_prefix_is_a_clear_error(runtime: Runtime) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown provider 'opnai'.*did you mean 'openai'.*register_provider\(\)"):
        await Agent("opnai:a").arun("hi")


async def test_an_actor_does_not_know_a_factory_that_came_too_late(
    ray_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "_current", ray_runtime)
    agent = Agent("late:a")
    assert agent.packed  # sent as it was
    register_provider("late", Echo)
    with pytest.raises(ConfigurationError, match=r"unknown provider 'late'.*before the first run"):
        await agent.arun("hi")
    assert (await Agent("late:a").arun("hi")).message == "a {}"


def test_two_definitions_may_mean_different_things_by_one_prefix(tmp_path: Path) -> None:
    code = (
        "import sys, asyncio; from umbel.actors.definitions import unpack_definition as load;"
        "from umbel.actors.agent.models import resolve_model;"
        "agents = [load(open(path, 'rb').read()) for path in sys.argv[1:]];"
        "models = [resolve_model(agent.model, agent.providers) for agent in agents];"
        "print([model.text for model in models])"
    )
    paths = [tmp_path / "one", tmp_path / "two"]
    for number, path in enumerate(paths):
        register_provider("echo", lambda name, number=number: Echo(f"{name}{number}"))
        path.write_bytes(pack_definition(Agent("echo:x"))[1])
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['x0 {}', 'x1 {}']\n"
