from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Metrics:
    total_tokens: int = 10
    cost_usd: float | None = 0.25


@dataclass
class Outcome:
    message: str | None = "done"
    success: bool = True
    stop_reason: str = "complete"
    metrics: Metrics = field(default_factory=Metrics)
    error: Any = None


@dataclass
class FakeAgent:
    """Answers with what ``reply(prompt, attempt)`` returns or raises, and remembers how it was called."""

    reply: Callable[[str, int], Any] = lambda prompt, attempt: Outcome(message=f"did {prompt}")
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0

    async def arun(self, prompt: str, **options: Any) -> Any:
        self.calls.append((prompt, options))
        self.attempts[prompt] = self.attempts.get(prompt, 0) + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            outcome = self.reply(prompt, self.attempts[prompt])
            return await outcome if asyncio.iscoroutine(outcome) else outcome
        finally:
            self.running -= 1

    @property
    def prompts(self) -> list[str]:
        return [prompt for prompt, _ in self.calls]


@pytest.fixture
def make_agent() -> type[FakeAgent]:
    return FakeAgent


@pytest.fixture
def outcome() -> type[Outcome]:
    return Outcome


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


@pytest.fixture
def read_results() -> Callable[[Path], dict[str, dict[str, Any]]]:
    def read(path: Path) -> dict[str, dict[str, Any]]:
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        by_id = {line["id"]: line for line in lines}
        assert len(by_id) == len(lines), "a task has two lines"
        return by_id

    return read


@pytest.fixture
def write_tasks(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any, name: str = "tasks.jsonl") -> Path:
        path = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write
