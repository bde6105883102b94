"""Which manager an agent gets, and where the size of a model's context comes from."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import pytest

from umbel.actors.agent.conversation import (
    CompactionConfig,
    LLMCompactor,
    NullManager,
    Selection,
    SlidingWindow,
    choose,
    window_of,
)
from umbel.protocol.errors import ConfigurationError
from umbel.protocol.messages import Message


class Config(NamedTuple):
    conversation_manager: Any = None
    compaction: Any = None
    context_window: int | None = None
    max_iterations: int = 20


class Model:
    def __init__(self, name: str | None = None, context_window: Any = None) -> None:
        self.name = name
        self.context_window = context_window


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMBEL_CONTEXT_WINDOW", raising=False)
    monkeypatch.delenv("UMBEL_MODELS", raising=False)


@pytest.mark.spec("MEM-10")
def test_the_window_is_looked_up_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model("gpt-4o", context_window=7)
    assert window_of(Config(), Model(context_window=7)) == 7
    assert window_of(Config(), Model()) is None
    assert window_of(Config(), model) == window_of(Config(), "openai:gpt-4o") == 128_000
    monkeypatch.setenv("UMBEL_CONTEXT_WINDOW", "5000")
    assert window_of(Config(), model) == 5_000
    assert window_of(Config(context_window=9), model) == 9


@pytest.mark.spec("MEM-10")
@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "1_000", "²"])
def test_a_window_of_the_environment_must_be_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("UMBEL_CONTEXT_WINDOW", text)
    with pytest.raises(ConfigurationError, match="UMBEL_CONTEXT_WINDOW must be a positive whole number"):
        window_of(Config(), Model())


@pytest.mark.parametrize("own", [0, True, "many", 1.5])
def test_so_must_a_models_own(own: Any) -> None:
    with pytest.raises(ConfigurationError, match="context_window of Model"):
        window_of(Config(), Model(context_window=own))


@pytest.mark.spec("MEM-9")
def test_a_manager_that_is_named_wins() -> None:
    manager = SlidingWindow(5)
    assert choose(Config(conversation_manager=manager), Model(), 1_000) == Selection(manager, None, 1_000)
    with pytest.raises(ConfigurationError, match="Model has no apply"):
        choose(Config(conversation_manager=Model()), Model(), None)


@pytest.mark.spec("MEM-9")
def test_a_known_window_has_the_context_compactor() -> None:
    chosen = choose(Config(compaction={"tail_turns": 3}), Model(), 1_000)
    assert isinstance(chosen.manager, NullManager)
    assert (chosen.compaction, chosen.window) == (CompactionConfig(tail_turns=3), 1_000)
    with pytest.raises(ConfigurationError, match="reserved_tokens"):
        choose(Config(compaction={"reserved_tokens": 1_000}), Model(), 1_000)


@pytest.mark.spec("MEM-9")
def test_with_compaction_off_requests_are_compacted() -> None:
    chosen = choose(Config(compaction=False), Model(), 1_000)
    assert isinstance(chosen.manager, LLMCompactor)
    assert (chosen.manager.context_length, chosen.manager.slide_step, chosen.compaction) == (1_000, 8, None)


@pytest.mark.spec("MEM-9")
@pytest.mark.parametrize(("iterations", "size", "step"), [(3, 20, 5), (20, 40, 10), (500, 1_000, 250)])
def test_an_unknown_window_has_a_sliding_one(iterations: int, size: int, step: int) -> None:
    chosen = choose(Config(max_iterations=iterations), Model(), None)
    assert isinstance(chosen.manager, SlidingWindow)
    assert (chosen.manager.window_size, chosen.manager.slide_step, chosen.compaction, chosen.window) == (size, step, None, None)


@pytest.mark.spec("MEM-9")
def test_an_unknown_window_is_said_once_a_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "umbel.conversation"):
        for name in ("unheard-of-1", "unheard-of-2", "unheard-of-1"):
            manager = choose(Config(), Model(name), None).manager
            before = len(caplog.records)
            manager.apply([Message.user("short")])
            assert len(caplog.records) == before  # nothing was left out
            manager.apply([Message.user(str(number)) for number in range(100)])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "unheard-of-1" in said[0] and "Agent(context_window=...)" in said[0]
