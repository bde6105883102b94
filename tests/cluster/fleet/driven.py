"""A driver that runs a fleet with a name, for tests that end or kill it: ``driven.py FOLDER durable|volatile TASKS``.

Every model call is written down as it begins, so that a test can count what was paid for.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from umbel import Agent, Fleet, Message, ModelResponse, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call

CONCURRENCY = 8


class Counted(ScriptedModel):
    """Takes a moment, and writes down whose call it is and which."""

    def __init__(self, log: Path, seconds: float) -> None:
        super().__init__([tool_call("look", page=1), tool_call("look", page=2), text("done")])
        self.log = log
        self.seconds = seconds

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        prompt = next(message.content for message in messages if message.role == "user")
        number = sum(message.role == "assistant" for message in messages)
        with self.log.open("a") as log:
            log.write(f"{prompt}.{number}\n")
        await asyncio.sleep(self.seconds * random.uniform(0.5, 1.5))
        return await super().complete(messages, tools, **settings)


@tool(idempotent=True)
async def look(page: int) -> str:
    """Read a page."""
    return f"page {page}"


def agent_in(folder: Path, kind: str, seconds: float) -> Agent:
    """The agent of the fleet."""
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{folder}/threads.sqlite"} if kind == "durable" else {}
    return Agent(Counted(folder / "calls", seconds), [look], **settings)


async def main(folder: Path, kind: str, tasks: int, seconds: float, grace: float) -> int:
    """Begin the fleet, or go on with it."""
    async with Runtime(inline=True) as runtime:
        fleet = Fleet(
            agent_in(folder, kind, seconds),
            name="f",
            store=f"sqlite:///{folder}/fleets.sqlite",
            concurrency=CONCURRENCY,
            runtime=runtime,
            grace=grace,
        )
        (folder / "ready").touch()
        prompts = [{"id": f"t{number}", "prompt": f"t{number}"} for number in range(tasks)]
        files = [folder / "results.jsonl", folder / "results.parquet"]
        report = await fleet.run_until_signal(prompts, files, resume=True)
    return report.exit_code


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(asyncio.run(main(Path(given[0]), given[1], int(given[2]), float(given[3]), float(given[4]))))
