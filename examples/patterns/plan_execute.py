"""Plan and execute: a manager writes a plan, says who does what next, and plans anew when it stalls.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import json

from umbel import Agent, Message, ModelResponse, PlanExecute
from umbel.testing import ScriptedModel, text


def manage(messages: list[Message]) -> ModelResponse:
    """A manager: a plan, then who is next, then the final answer."""
    request = messages[-1].content or ""
    if "Write the final answer" in request:
        return text("Twelve carrots, washed.")
    if "make a plan" in request:
        return text(json.dumps({"facts": "carrots are in the bed", "plan": ["ann pulls them", "bob washes them"]}))
    turns = [("ann", "pull the carrots"), ("bob", "wash the carrots"), ("", "")]
    name, instruction = turns[request.count(", told to: ")]
    return text(json.dumps({"is_done": not name, "next_speaker": name, "instruction": instruction}))


def worker(name: str, answer: str) -> Agent:
    """Who does something."""
    return Agent(model=ScriptedModel([text(answer)]), name=name)  # MODEL


manager = ScriptedModel([manage])
harvest = PlanExecute([worker("ann", "pulled twelve"), worker("bob", "washed them")], model=manager)  # MODEL

if __name__ == "__main__":
    result = harvest.run_sync("Bring in the carrots.")
    for member in result.members:
        print(f"{member.step}: {member.text[:60]}")
    print(f"{result.stop_reason}: {result.final_output}")
