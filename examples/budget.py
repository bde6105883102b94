"""A run that may cost so much and no more: a nudge when the money runs out, and no call that could exceed the limit.

Offline, the model is a script with a name and a price. For a real one, name it on the line marked MODEL, say
``"openai:gpt-4o-mini"``: the prices of well-known models are known, those of others are registered as here.
"""

from umbel import Agent, Message, ModelResponse, Usage, register_model, tool
from umbel.events import CustomEvent, Event
from umbel.testing import ScriptedModel, text, tool_call

register_model("tiny-1", input_price=1.0, output_price=5.0)  # US dollars per million tokens


class Tiny(ScriptedModel):
    """The script, under a name that prices are known for."""

    name = "tiny-1"


@tool
async def read_page(page: int) -> str:
    """Read a page of the report."""
    return f"page {page}: more of the same"


def reply(messages: list[Message]) -> ModelResponse:
    """Read page after page, until told to come to an end."""
    told = any("Come to an end" in (message.content or "") for message in messages)
    read = sum(message.role == "tool" for message in messages)
    answer = text(f"After {read} pages: more of the same.") if told else tool_call("read_page", page=read + 1)
    return answer.evolve(usage=Usage(prompt_tokens=1_000, completion_tokens=200))  # 0.002 dollars


def show(event: Event) -> None:
    if isinstance(event, CustomEvent) and event.name == "budget_nudge":
        print(f"  nudge at {event.data['detail']}")


def main() -> None:
    for limit, nudge_at in ((0.02, 0.8), (0.011, None)):
        agent = Agent(
            model=Tiny([reply], loop=True),  # MODEL
            tools=[read_page],
            max_cost_usd=limit,
            max_tokens=200,  # of one reply; with it the worst case of a call is known before it is made
            budget_nudge_at=nudge_at,
            callback_handler=show,
        )
        result = agent.run_sync("What does the report say?")
        spent = f"${result.metrics.cost_usd:.3f} of ${limit:.3f} in {result.metrics.model_calls} calls"
        print(f"{result.stop_reason}, {spent}: {result.message or '(no answer)'}")


if __name__ == "__main__":
    main()
