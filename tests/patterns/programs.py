"""Patterns of one function, for tests of the stage, and members for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from umbel import Agent, Runtime, ToolContext, tool
from umbel.actors.supervisor.stage import Stage
from umbel.patterns.pattern import Pattern
from umbel.protocol.patterns import Ending
from umbel.testing import ScriptedModel, text, tool_call

Play = Callable[[Stage], Awaitable[Any]]


class Program(Pattern):
    """Does what a function does; its value is the pattern's, a text its final output."""

    def __init__(self, play: Play, members: Any = (), **settings: Any) -> None:
        super().__init__(members, **settings)
        self.play = play

    def user_code(self) -> list[Any]:
        return [self.play]

    async def conduct(self, stage: Stage) -> Ending:
        given = await self.play(stage)
        if isinstance(given, Ending):
            return given
        return Ending(final_output=given if isinstance(given, str) else "", value=given)


@tool
async def ask_person(question: str, ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt(question))


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    return "seen"


def says(name: str, *texts: str, **settings: Any) -> Agent:
    """An agent that says a text in each turn."""
    return Agent(ScriptedModel([text(one) for one in texts or (f"{name} said",)]), name=name, **settings)


def asks(name: str, *questions: str, **settings: Any) -> Agent:
    """An agent that asks a person these questions, one after another, and then says what it was told last."""
    calls = [tool_call("ask_person", question=question) for question in questions or (f"{name}?",)]
    answer = [lambda messages: text(f"{name}: {messages[-1].content}")]
    return Agent(ScriptedModel([*calls, *answer]), [ask_person], name=name, **settings)


class Gate(ScriptedModel):
    """A model that says who calls, and replies when it is let. It is known in the test's process only.

    Attributes:
        waiting: how many wait.
        most: how many waited at the same moment.
    """

    def __init__(self, *turns: Any) -> None:
        super().__init__([*turns] or [text("let")], loop=True)
        self.open = asyncio.Event()
        self.came = asyncio.Event()
        self.waiting = self.most = self.calls = self.stopped = 0

    def __reduce__(self) -> Any:
        return Gate, tuple(self.turns)

    async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
        self.calls += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.came.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        finally:
            self.waiting -= 1
        return await super().complete(messages, tools, **settings)


@asynccontextmanager
async def new_runtime() -> AsyncIterator[Runtime]:
    """A runtime of its own that is the current one, as a process of its own would have it."""
    before = Runtime._current
    async with Runtime(inline=True) as runtime:
        Runtime._current = runtime
        try:
            yield runtime
        finally:
            Runtime._current = before
