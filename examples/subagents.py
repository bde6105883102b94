"""Agents as tools: children run in parallel, spend from their parent's budget, and are seen through its events.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, ModelResponse, Usage, tool
from umbel.events import Event, SubagentEvent, ToolCompleteEvent
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


def scripted(replies: list[ModelResponse]) -> ScriptedModel:
    """A script whose every call takes 100 tokens."""
    return ScriptedModel([reply.evolve(usage=Usage(prompt_tokens=90, completion_tokens=10)) for reply in replies])


@tool
async def search(query: str) -> str:
    """Search the library."""
    return f"three books about {query}"


research = [tool_call("search", query="umbels"), text("Carrots have umbels.")]
hoarding = [tool_call("search", query=f"shelf {shelf}") for shelf in range(20)]  # searches on until it is stopped
asking = [tool_calls(("botanist", {"prompt": "Which plants?"}), ("collector", {"prompt": "Find every book."}))]
answer = text("An umbel is what carrots bloom with.")

botanist = Agent(model=scripted(research), tools=[search], name="botanist")  # MODEL
collector = Agent(model=scripted(hoarding), tools=[search], name="collector")  # MODEL
editor = Agent(
    model=scripted([*asking, answer]),  # MODEL
    tools=[botanist.as_tool(), collector.as_tool()],
    token_budget=1_100,  # for the editor and all that it asks: after its first call, 500 are left for each of the two
    name="editor",
)


def show(event: Event) -> None:
    if isinstance(event, SubagentEvent) and isinstance(event.event, ToolCompleteEvent):
        print(f"  {event.event.agent_name} got {event.event.result!r}")


if __name__ == "__main__":
    result = editor.with_settings(callback_handler=show).run_sync("Write about umbels.")
    for call in result.tool_executions:
        print(f"{call.tool_name}: {call.result or call.error}")
    print(f"{result.stop_reason}: {result.message}")
    print(f"{result.metrics.total_tokens} of 1100 tokens in {result.metrics.model_calls} model calls, the children's included")
