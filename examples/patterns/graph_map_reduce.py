"""A state graph: a task for each item (``Send``), whose results come together in item order, however fast they were.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from typing import Annotated, TypedDict

from umbel import END, START, Agent, Send, StateGraph
from umbel.reducers import append
from umbel.testing import ScriptedModel, text


class Meadow(TypedDict, total=False):
    """The state; lists are appended to, whoever writes."""

    plants: list[str]
    plant: str
    facts: Annotated[list[str], append]
    report: str


reporter = Agent(model=ScriptedModel([lambda messages: text(f"Known are {messages[-1].content}.")]), name="reporter")  # MODEL


def look_up(state: Meadow) -> dict[str, str]:
    """What is known of one plant."""
    return {"facts": "hemlock: deadly" if state["plant"] == "hemlock" else f"{state['plant']}: harmless"}


graph = StateGraph(Meadow, name="meadow")
graph.add_node("look_up", look_up)
graph.add_node("sum_up", reporter, input=lambda state: "; ".join(state["facts"]), output="report")
graph.add_conditional_edges(START, lambda state: [Send("look_up", {"plant": plant}) for plant in state["plants"]], ["look_up"])
graph.add_edge("look_up", "sum_up")
graph.add_edge("sum_up", END)
meadow = graph.compile()

if __name__ == "__main__":
    result = meadow.run_sync({"plants": ["carrot", "hemlock", "dill"]})
    print(f"{result.stop_reason}: {result.value['report']}")
    for step in result.members:
        print(f"{step.step}: {step.status}")
