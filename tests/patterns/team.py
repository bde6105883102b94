"""Members for tests of patterns: models that note who works at the same moment, and take their turns in any order."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from umbel import Agent, Message, ModelResponse
from umbel.testing import ScriptedModel


class Floor:
    """Where members work: who is there now, how many there were at most, and how often each came."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.now: list[str] = []
        self.most = 0
        self.came: Counter[str] = Counter()
        self.more = asyncio.Event()

    @asynccontextmanager
    async def visit(self, name: str, together: int) -> AsyncIterator[None]:
        """Be there, until ``together`` have been there at one moment."""
        self.came[name] += 1
        self.now.append(name)
        self.most = max(self.most, len(self.now))
        self.more.set()
        try:
            while self.most < together:
                self.more.clear()
                await self.more.wait()
            yield
        finally:
            self.now.remove(name)


FLOOR = Floor()  # of an inline runtime, whose members all work in the test's process


class FloorModel(ScriptedModel):
    """A script that is on the floor, under the name of its task, while it answers.

    Args:
        *turns: as for ``ScriptedModel``.
        together: how many must have been there at one moment before anybody leaves.
        slow: it stays for up to so many turns of the event loop; how many follows from ``seed`` and the request.
    """

    def __init__(self, *turns: Any, together: int = 1, slow: int = 0, seed: int = 0) -> None:
        super().__init__(turns)
        self.together, self.slow, self.seed = together, slow, seed

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        task = asked(messages)
        async with FLOOR.visit(task, self.together):
            for _ in range(random.Random(f"{self.seed} {task}").randint(0, self.slow)):
                await asyncio.sleep(0)
            return await super().complete(messages, tools, **settings)


def asked(messages: list[Message]) -> str:
    """The task of a request: what stands behind the last ``Your task:``, else its whole text."""
    return task_in(next(message.content or "" for message in reversed(messages) if message.role == "user"))


def task_in(request: str) -> str:
    found = re.findall(r"^Your task: (.*)$", request, re.MULTILINE)
    return str(found[-1]) if found else request


def member(name: str, *turns: Any, **settings: Any) -> Agent:
    """An agent with a script."""
    return Agent(ScriptedModel(list(turns)), name=name, **settings)


def replying(answer: Callable[[str], str]) -> Any:
    """A turn that answers with what ``answer`` makes of the request's text."""

    def turn(messages: list[Message]) -> ModelResponse:
        request = next(message.content or "" for message in reversed(messages) if message.role == "user")
        return ModelResponse(message=Message.assistant(answer(request)))

    return turn


DONE = replying(lambda request: f"done: {task_in(request)}")


def worker(name: str, *turns: Any, **model: Any) -> Agent:
    """An agent that is on the floor while it does its task."""
    return Agent(FloorModel(*(turns or (DONE,)), **model), name=name)


async def kinds_of(pattern: Any, prompt: Any) -> list[str]:
    """The kinds of the pattern's own events, in order."""
    return [event.kind async for event in pattern.run(prompt) if event.event_type == "pattern"]
