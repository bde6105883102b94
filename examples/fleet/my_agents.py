"""The agents of fleet.yaml. `offline:` stands in for a model; put your own there, for example openai:gpt-4o-mini."""

from umbel import Agent, sequential, tool

ORDERS = {"4821": "shipped", "4822": "lost in transit", "4823": "delivered"}


@tool(idempotent=True)
async def look_up_order(order_id: str) -> str:
    """Look up the state of an order."""
    return f"order {order_id}: {ORDERS.get(order_id, 'unknown')}"


support = Agent(
    name="support",
    model="offline:reviewer",
    tools=[look_up_order],
    system_prompt="You are support. Look up the order, then answer the customer.",
)

reviewed = sequential([support, Agent(name="reviewer", model="offline:reviewer", system_prompt="Check the answer.")])
