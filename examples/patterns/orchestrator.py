"""An orchestrator: a router gives parts of the task to specialists, side by side, and one answer is made of what they find.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

import json

from umbel import Agent, Orchestrator, Specialist
from umbel.testing import ScriptedModel, text

routing = {
    "reasoning": "Roots and poison, no weather.",
    "assignments": [
        {"specialist": "botanist", "task": "Describe the roots."},
        {"specialist": "toxicologist", "task": "Which is dangerous?"},
    ],
}


def specialist(name: str, answer: str) -> Specialist:
    """A full agent: it could have tools, too."""
    return Specialist(model=ScriptedModel([text(answer)]), name=name, description=f"what a {name} knows")  # MODEL


router = Agent(model=ScriptedModel([text(json.dumps(routing))]), name="router")  # MODEL
summariser = Agent(
    model=ScriptedModel([text("Carrots have taproots; hemlock is certainly deadly.")]), name="summariser"
)  # MODEL
team = Orchestrator(
    [
        specialist("botanist", "Carrots have taproots."),
        specialist("toxicologist", "Hemlock is certainly deadly."),
        specialist("meteorologist", "It rains."),
    ],
    model=router,
    summarise=summariser,
)

if __name__ == "__main__":
    result = team.run_sync("Compare carrots and hemlock.")
    for finding in result.details["specialists"]:
        print(f"{finding['specialist']} was asked {finding['task']!r}: {finding['text']}")
    print(f"{result.stop_reason}: {result.final_output}")
