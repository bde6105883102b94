"""Hooks see and change what a run does; a plugin brings hooks and tools together under one name.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, Hook, Plugin, hook, tool
from umbel.events import CustomEvent, Event
from umbel.hooks import AfterToolCall, BeforeToolCall, Priority
from umbel.testing import ScriptedModel, text, tool_calls


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


class Guard(Hook):
    """Refuses to delete anything outside of build/. The model is told why, and nothing is run."""

    priority = Priority.SECURITY

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        path = str(event.arguments.get("path", ""))
        if event.tool_name == "delete_file" and not path.startswith("build/"):
            event.cancel = f"refused: {path} is not in build/"


class Journal(Plugin):
    """Reports every call to the program that started the run, and gives the model a tool to take notes."""

    @tool
    async def take_note(self, note: str) -> str:
        """Note something down."""
        return f"noted: {note}"

    @hook("on_after_tool_call")
    async def report(self, event: AfterToolCall) -> None:
        event.emit(CustomEvent(name="journal", data={"line": f"{event.tool_name}: {event.result}"}))


def show(event: Event) -> None:
    if isinstance(event, CustomEvent):
        print(f"journal: {event.data['line']}")


clean_up = [("delete_file", {"path": "build/old.log"}), ("delete_file", {"path": "README.md"}), ("take_note", {"note": "ok"})]
script = ScriptedModel([tool_calls(*clean_up), text("One file is gone, the other one had to stay.")])
agent = Agent(model=script, tools=[delete_file], hooks=[Guard()], plugins=[Journal()], callback_handler=show)  # MODEL


if __name__ == "__main__":
    result = agent.run_sync("Clean up.")
    for call in result.tool_executions:
        print(f"{call.tool_name}({call.arguments}) -> {call.error or call.result}")
    print(result.message)
