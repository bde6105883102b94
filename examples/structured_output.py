"""An answer as an object: the reply is validated, and a model whose reply does not fit is told what is wrong with it.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from pydantic import BaseModel, Field

from umbel import Agent
from umbel.testing import ScriptedModel, text


class Ticket(BaseModel):
    """What the help desk needs to know."""

    subject: str
    priority: int = Field(ge=1, le=3, description="1 is the most urgent")
    tags: list[str] = []


script = ScriptedModel(
    [
        text('{"subject": "Printer on fire", "priority": "urgent", "tags": ["printer"]}'),
        text('{"subject": "Printer on fire", "priority": 1, "tags": ["printer"]}'),
    ]
)
agent = Agent(model=script, output_schema=Ticket)  # MODEL


def main() -> None:
    result = agent.run_sync("The printer on the third floor is on fire!")
    ticket = result.parsed_as(Ticket)
    print(repr(ticket))
    print(f"{result.stop_reason} after {result.metrics.model_calls} model calls")


if __name__ == "__main__":
    main()
