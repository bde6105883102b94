"""A run as a stream of typed events: the text as it is written, tools as they start, report and finish, and the end.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import asyncio

from umbel import Agent, ToolContext, tool
from umbel.events import ModelChunkEvent, TerminateEvent, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from umbel.testing import ScriptedModel, text, tool_call


@tool(emits_progress=True)
async def download(pages: int, ctx: ToolContext) -> str:
    """Download the pages of a report."""
    for page in range(pages):
        ctx.report_progress(page + 1, pages, f"page {page + 1}")
    return f"{pages} pages"


script = ScriptedModel([tool_call("download", pages=2), text("The report has two pages.")])
agent = Agent(model=script, tools=[download])  # MODEL


async def main() -> None:
    async for event in agent.run("How long is the report?", stream_tokens=True):
        match event:
            case ToolStartEvent():
                print(f"[{event.tool_name} starts with {event.arguments}]")
            case ToolProgressEvent():
                print(f"[{event.tool_name}: {event.progress:g} of {event.total:g}, {event.message}]")
            case ToolCompleteEvent():
                print(f"[{event.tool_name} returned {event.result!r}]")
            case ModelChunkEvent(content=str(piece)):
                print(piece, end="|", flush=True)
            case TerminateEvent():
                print(f"\n[{event.reason} after {event.iterations_used} iterations: {event.final_message!r}]")


if __name__ == "__main__":
    asyncio.run(main())
