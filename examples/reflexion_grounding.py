"""Two checks on a run: reflexion judges its progress after every step, grounding compares the answer with the evidence.

Offline, the model is a script and the judge is a rule. For real ones, name them on the lines marked MODEL and JUDGE, say
``"openai:gpt-4o-mini"`` (the judge may be a smaller model; without one the agent's own judges).
"""

import re

from umbel import Agent, GroundingConfig, Message, ModelResponse, tool
from umbel.events import Event, GroundingEvent, ReflectEvent
from umbel.testing import ScriptedModel, text, tool_call


@tool
async def read_sensor(place: str) -> str:
    """Read a thermometer."""
    if place == "attic":
        raise LookupError("there is no sensor in the attic")
    return f"the {place} has 21 degrees"


def judge(messages: list[Message]) -> ModelResponse:
    """Score each claim: 1.0 if every number in it stands in the evidence."""
    evidence, claims = (messages[-1].content or "").split("Claims:")
    rows = re.findall(r"^(\d+)\. (.+)$", claims, re.MULTILINE)
    scores = [(row, all(number in evidence for number in re.findall(r"\d+", claim))) for row, claim in rows]
    return text("\n".join(f"{row}: {float(backed)} - a matter of numbers" for row, backed in scores))


def show(event: Event) -> None:
    if isinstance(event, ReflectEvent):
        print(f"reflexion: {event.assessment}, confidence {event.new_confidence:.2f}")
    if isinstance(event, GroundingEvent):
        print(f"grounding: score {event.score:g}, not backed: {list(event.ungrounded_claims)}")


script = ScriptedModel(
    [
        tool_call("read_sensor", place="attic"),
        tool_call("read_sensor", place="kitchen"),
        text("The kitchen has 21 degrees. The attic is colder, with 12 degrees."),
        text("The kitchen has 21 degrees. The attic has no sensor to read."),
    ]
)
agent = Agent(
    model=script,  # MODEL
    tools=[read_sensor],
    reflexion=True,
    grounding=GroundingConfig(threshold=0.8, model=ScriptedModel([judge])),  # JUDGE
    callback_handler=show,
)


if __name__ == "__main__":
    result = agent.run_sync("How warm are the kitchen and the attic?")
    print(f"{result.stop_reason}, grounded {result.grounding_score:g}: {result.message}")
