"""Map-reduce: one member on each of many items, at most so many at once; every item is accounted for.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, MapReduce, Message, ModelResponse
from umbel.testing import ScriptedModel, error, text


def grade(messages: list[Message]) -> ModelResponse:
    """A model that cannot read one of the essays."""
    essay = messages[-1].content or ""
    if essay == "essay 3":
        raise error("unreadable")
    return text(str(len(essay) + int(essay[-1])))


grader = Agent(model=ScriptedModel([grade]), name="grader")  # MODEL
grades = MapReduce(
    grader,
    lambda outputs: max(map(int, outputs)),
    items=[f"essay {number}" for number in range(1, 6)],
    concurrency=2,
    on_error="continue",
)

if __name__ == "__main__":
    result = grades.run_sync("What is the best grade?")
    for record in result.details["items"]:
        print(f"{record['item']}: {record['status']}{' ' + record['error'] if record['error'] else ''}")
    print(f"{result.stop_reason}: {result.outputs} -> {result.value}")
