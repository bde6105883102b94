"""A pipeline: members one after another; each gets what the one before it said.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, sequential
from umbel.testing import ScriptedModel, text

researcher = Agent(model=ScriptedModel([text("Umbels: carrots, dill, hemlock.")]), name="researcher")  # MODEL
writer = Agent(model=ScriptedModel([lambda messages: text(f"Draft of: {messages[-1].content}")]), name="writer")  # MODEL


def shorten(draft: str) -> str:
    """A function is a member, too; it runs in a tool executor."""
    return draft.removeprefix("Draft of: ")


report = sequential(researcher, writer, shorten, name="report")

if __name__ == "__main__":
    result = report.run_sync("Which plants have umbels?")
    for member in result.members:
        print(f"{member.step}: {member.text}")
    print(f"{result.stop_reason}: {result.final_output}")
