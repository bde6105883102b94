"""A tool asks a person: the run pauses, and another agent object (another process, days later) goes on with the answer.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import tempfile
from pathlib import Path

from umbel import Agent, ToolContext, tool
from umbel.testing import ScriptedModel, text, tool_calls


@tool
async def transfer(amount: int, to: str, ctx: ToolContext) -> str:
    """Transfer money, after a person has agreed."""
    if ctx.interrupt(f"Transfer {amount} to {to}?", options=["yes", "no"]) != "yes":
        return f"not transferred: {amount} to {to} was turned down"
    return f"transferred {amount} to {to}"


def make_agent(database: Path) -> Agent:
    """The same definition wherever it is needed; the paused run is in the database, not in the object."""
    payments = [("transfer", {"amount": 900, "to": "Ada"}), ("transfer", {"amount": 5, "to": "Bob"})]
    script = ScriptedModel([tool_calls(*payments), text("The payments are settled.")])
    return Agent(model=script, tools=[transfer], checkpointer=f"sqlite:///{database}")  # MODEL


def main(database: Path) -> None:
    paused = make_agent(database).run_sync("Pay the invoices.", thread_id="invoices")
    print(f"{paused.stop_reason}:")
    for asked in paused.interrupts:
        print(f"  {asked['question']} {asked['options']}")

    first, second = (asked["interrupt_id"] for asked in paused.interrupts)
    answers = {first: "no", second: "yes"}
    result = make_agent(database).resume_sync(answers=answers, thread_id="invoices")
    for call in result.tool_executions:
        print(call.result)
    print(f"{result.stop_reason}: {result.message}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "threads.db")
