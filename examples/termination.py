"""Stop conditions of your own, combined with ``&``, ``|`` and ``~``. The result says which one ended the run.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, tool
from umbel.termination import MaxIterations, TerminationCondition, TextMention, ToolCallCount, ToolCalled
from umbel.testing import ScriptedModel, tool_calls


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return f"nothing about {query}"


@tool
async def publish(title: str) -> str:
    """Publish what was found."""
    return f"published {title}"


script = ScriptedModel(
    [
        tool_calls(("search", {"query": "umbels"}), content="First the obvious word."),
        tool_calls(("search", {"query": "flowers"}), content="Nothing. A wider one, then."),
        tool_calls(("publish", {"title": "Umbels"}), content="That is ENOUGH."),
        tool_calls(("search", {"query": "rays"}), content="One more."),
    ]
)
conditions: list[TerminationCondition] = [
    ToolCalled("publish", require_success=True) | MaxIterations(10),
    ToolCallCount(2, "search"),
    TextMention("enough"),
    TextMention("one more") & ToolCalled("publish"),
    ToolCallCount(2) & ~ToolCalled("publish"),
]


def main() -> None:
    for condition in conditions:
        agent = Agent(model=script, tools=[search, publish], termination=condition)  # MODEL
        result = agent.run_sync("Write about umbels.")
        outcome = "success" if result.success else "stopped early"
        print(f"{result.reason} -> {result.stop_reason}, {outcome}, {result.iterations} iterations")


if __name__ == "__main__":
    main()
