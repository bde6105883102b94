"""The agents that the benchmarks run: instant, stateless models that decide from the conversation they are handed.

The actors import this module by name, so that ``Counter`` counts in the process that runs the tools.
"""

from __future__ import annotations

import asyncio
from typing import Any

from umbel import Agent, Message, ModelResponse, Parallel, parallel, tool
from umbel.testing import text, tool_call, tool_calls

PROMPT = "What is 2 + 2? Use the tool."
SYSTEM = "You are a calculator."
ANSWER = "The answer is 4"


class Counter:
    """Executions of ``add`` in this process."""

    calls = 0


async def add(a: int, b: int) -> int:
    """Add two integers."""
    Counter.calls += 1
    return a + b


async def executions() -> int:
    """How often ``add`` ran in the process that answers."""
    return Counter.calls


addition = tool(add)
counting = tool(executions)


class Calculator:
    """Asks for the tool once, then answers with what came back."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **_: Any) -> ModelResponse:
        if self.delay:
            await asyncio.sleep(self.delay)
        last = messages[-1]
        return text(f"The answer is {last.content}") if last.role == "tool" else tool_call("add", a=2, b=2)


class Speaker:
    """Answers at once."""

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **_: Any) -> ModelResponse:
        return text(ANSWER)


class Bookkeeper:
    """Asks how often ``add`` ran, and passes the figure on."""

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **_: Any) -> ModelResponse:
        last = messages[-1]
        return text(last.content or "") if last.role == "tool" else tool_call("executions")


class Dispatcher:
    """Asks everybody it was offered the same question in one reply, then lists their answers."""

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **_: Any) -> ModelResponse:
        answers = [message.content or "" for message in messages if message.role == "tool"]
        if answers:
            return text("\n".join(answers))
        return tool_calls(*((offer["function"]["name"], {"prompt": PROMPT}) for offer in tools or ()))


def one_turn() -> Agent:
    """W1: the tool is offered and not used."""
    return Agent(model=Speaker(), tools=[addition], system_prompt=SYSTEM)


def tool_turn(delay: float = 0.0, **settings: Any) -> Agent:
    """W2: one tool call, then the answer."""
    return Agent(model=Calculator(delay), tools=[addition], system_prompt=SYSTEM, **settings)


def fan_out(width: int, delay: float = 0.0) -> Parallel:
    """W5: ``width`` agents side by side; each of them is an agent object of its own."""
    return parallel([tool_turn(delay, name=f"member_{number}") for number in range(width)], merge="list")


def asking_all(width: int) -> Agent:
    """W5 by way of a model: an agent that asks ``width`` sub-agents in one reply."""
    members = [tool_turn(name=f"member_{number}") for number in range(width)]
    return Agent(model=Dispatcher(), tools=[member.as_tool() for member in members], system_prompt="Ask everybody.")


def bookkeeper() -> Agent:
    """Says how often ``add`` ran where the tools run."""
    return Agent(model=Bookkeeper(), tools=[counting])
