"""A state graph that asks a person: it pauses in the node, and another process (days later) goes on with the answer.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import tempfile
from pathlib import Path
from typing import TypedDict

from umbel import START, Agent, Command, CompiledGraph, StateGraph, interrupt
from umbel.testing import ScriptedModel, text


class Letter(TypedDict, total=False):
    """The state."""

    task: str
    draft: str
    status: str


def approve(state: Letter) -> dict[str, str]:
    """Ask before it is sent; the node runs again from its beginning with the answer."""
    answer = interrupt(f"Send {state['draft']!r}?", options=["yes", "no"])
    return {"status": "sent" if answer == "yes" else "thrown away"}


def make_graph(database: Path) -> CompiledGraph:
    """The same definition wherever it is needed; the paused run is in the database."""
    writer = Agent(model=ScriptedModel([text("Dear Ada, umbels bloom.")]), name="writer")  # MODEL
    graph = StateGraph(Letter)
    graph.add_node("draft", writer)
    graph.add_node("approve", approve)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "approve")
    return graph.compile(checkpointer=f"sqlite:///{database}")


def main(database: Path) -> None:
    paused = make_graph(database).run_sync({"task": "Write to Ada."}, thread_id="letter")
    print(f"{paused.stop_reason}: {paused.interrupts[0]['question']}")
    result = make_graph(database).run_sync(Command(resume="yes"), thread_id="letter")
    print(f"{result.stop_reason}: {result.value['status']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "threads.db")
