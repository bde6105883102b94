"""Tools: plain and async functions, called in parallel with checked arguments; a failure is a result, not the end.

Offline, the model is one of fixed rules. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from typing import Literal

from umbel import Agent, ToolContext, tool


@tool
async def convert(amount: float, currency: Literal["EUR", "GBP"], ctx: ToolContext) -> str:
    """Convert US dollars.

    Args:
        amount: US dollars.
        currency: What to convert them to.
    """
    return f"{amount * ctx.metadata['rates'][currency]:.2f} {currency}"


@tool(timeout=10)  # not async, so it runs in a worker process, which is killed when the time is up
def count_words(sentence: str) -> int:
    """Count the words of a sentence."""
    return len(sentence.split())


@tool
async def check_stock(item: str) -> int:
    """Look up how many of an item are in stock."""
    raise LookupError(f"no item is called {item!r}")


agent = Agent(model="offline:reviewer", tools=[convert, count_words, check_stock])  # MODEL


def main() -> None:
    result = agent.run_sync(
        'Convert 250 to EUR, count the words of "to be or not to be", and check the stock of item=teapot.',
        metadata={"rates": {"EUR": 0.9, "GBP": 0.8}},
    )
    for call in result.tool_executions:
        print(f"{call.tool_name}({call.arguments}) -> {call.result or call.error}")
    print(f"{result.stop_reason}: {result.metrics.tool_calls} calls, {result.metrics.tool_errors} failed")


if __name__ == "__main__":
    main()
