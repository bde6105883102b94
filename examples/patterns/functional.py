"""Plain code as a pattern: its tasks, agents and questions are durable steps; a pause or a crash repeats none of them.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import asyncio
import tempfile
from pathlib import Path

from umbel import Agent, Entrypoint, ask, entrypoint, step, task
from umbel.testing import ScriptedModel, text

writer = Agent(model=ScriptedModel([lambda messages: text(f"About {messages[-1].content}.")]), name="writer")  # MODEL


@task(retries=2, cache=True)
async def fetch(plant: str) -> str:
    """Runs in a tool executor."""
    return f"{plant}s"


async def body(plants: list[str]) -> dict[str, str]:
    """What is done: deterministic code, which is played again after a pause."""
    pages = await asyncio.gather(*(fetch(plant) for plant in plants))
    draft = await step(writer, " and ".join(pages))
    return {"draft": draft.text, "published": await ask("Publish it?", options=["yes", "no"])}


def make_report(database: Path) -> Entrypoint[..., dict[str, str]]:
    """As ``@entrypoint(checkpointer=...)`` above the function."""
    return entrypoint(name="report", checkpointer=f"sqlite:///{database}")(body)


def main(database: Path) -> None:
    paused = make_report(database).run_sync({"plants": ["carrot", "hemlock", "carrot"]}, thread_id="t")
    print(f"{paused.stop_reason}: {paused.interrupts[0]['question']}")
    result = make_report(database).resume_sync("yes", thread_id="t")
    for done in result.details["tasks"]:
        print(f"{done['step']}: {'cached' if done.get('cached') else done['status']}")
    print(f"{result.stop_reason}: {result.value}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "threads.db")
