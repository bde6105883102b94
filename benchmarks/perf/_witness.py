"""What ``fleet_jobs.py`` runs: an instant agent whose model notes every call in a file, a file a process.

The notes are the witness: they are written beside the runtime, and say which tasks were run how often, whatever the fleet says.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from umbel import Agent, Message, ModelResponse, Runtime, tool
from umbel.testing import text, tool_call

FOLDER = "UMBEL_BENCH_WITNESS"
LINE_BYTES = 10
QUESTION = re.compile(r"#(\d+): (\d+) \+ (\d+)")


def prompt(number: int) -> str:
    return f"Task #{number}: {number} + {number % 997}"


def answer(number: int) -> str:
    return f"#{number} is {number + number % 997}"


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Notes:
    """The file of this process; a note is one write, so a killed process leaves whole lines."""

    file: int | None = None

    @classmethod
    def take(cls, place: str, what: str, number: int) -> None:
        if cls.file is None:
            path = Path(os.environ[FOLDER]) / place / f"{os.getpid()}-{time.time_ns()}"
            cls.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(cls.file, f"{what} {number:07d}\n".encode())


class Adder:
    """Asks for the tool once, then answers with what came back; both calls are noted.

    Args:
        place: the subfolder for the notes.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    async def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **_: Any) -> ModelResponse:
        asked = next(message.content or "" for message in messages if message.role == "user")
        number, a, b = map(int, QUESTION.findall(asked)[0])
        last = messages[-1]
        Notes.take(self.place, "E" if last.role == "tool" else "B", number)
        return text(f"#{number} is {last.content}") if last.role == "tool" else tool_call("add", a=a, b=b)


def adding(place: str) -> Agent:
    return Agent(Adder(place), tools=[add], system_prompt="You add.")


agent = adding("fleet")


async def burst(count: int) -> float:
    """W3: ``count`` tool turns at once; runs a second."""
    agent = adding("w3")
    async with Runtime() as runtime:
        runtime.start()
        await asyncio.gather(*(agent.arun(prompt(number), full=False) for number in range(200)))
        start = time.perf_counter()
        results = await asyncio.gather(*(agent.arun(prompt(number), full=False) for number in range(count)))
        seconds = time.perf_counter() - start
    wrong = [number for number, result in enumerate(results) if result.message != answer(number)]
    if wrong:
        raise RuntimeError(f"wrong answers: {wrong[:5]}")
    return count / seconds


if __name__ == "__main__":
    print(json.dumps({"runs_per_s": asyncio.run(burst(int(sys.argv[1])))}))
