"""A driver that begins a durable turn on the inline runtime, for tests that kill it: ``killed_driver.py FOLDER``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from umbel import Agent, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_calls


def agent_in(folder: Path) -> Agent:
    """An agent whose tools write down that they run; the first process that pays a second time never comes back."""
    log = folder / "log"

    def mark(line: str) -> int:
        with log.open("a") as file:
            file.write(line + "\n")
        return log.read_text().split().count(line)

    @tool
    async def pay(amount: int) -> str:
        """A side effect."""
        if mark(f"pay-{amount}") == 1 and amount == 3:
            await asyncio.sleep(600)
        return f"paid {amount}"

    @tool(idempotent=True)
    async def read(page: int) -> str:
        """Safe to repeat."""
        if mark(f"read-{page}") == 1 and page == 2:
            await asyncio.sleep(600)
        return f"page {page}"

    calls: list[tuple[str, dict[str, Any]]] = [("pay", {"amount": 2}), ("pay", {"amount": 3}), ("read", {"page": 2})]
    script = [tool_calls(("pay", {"amount": 1}), ("read", {"page": 1})), tool_calls(*calls), text("done")]
    settings: dict[str, Any] = {"checkpointer": f"sqlite:///{folder}/t.db", "lease_seconds": 1.0}
    return Agent(ScriptedModel(script), [pay, read], **settings)


async def main(folder: Path) -> None:
    async with Runtime(inline=True) as runtime:
        await agent_in(folder).arun("go", thread_id="t", runtime=runtime)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
