"""Handoffs: one conversation, passed from agent to agent by a tool that each of them has.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, Handoff, tool
from umbel.testing import ScriptedModel, text, tool_call


@tool(idempotent=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


passes_on = tool_call("transfer_to_billing", reason="specialization", message="They want their money back for ord-7.")
reception = Agent(model=ScriptedModel([passes_on]), name="reception")  # MODEL
refunds = [tool_call("refund", order="ord-7"), text("Your money is on its way.")]
billing = Agent(model=ScriptedModel(refunds), tools=[refund], name="billing")  # MODEL
desk = Handoff([reception, billing], allow={"reception": ["billing"], "billing": []})

if __name__ == "__main__":
    result = desk.run_sync("I want my money back for ord-7.")
    for hop in result.details["hops"]:
        print(f"{hop['source']} -> {hop['target']}: {hop['message']}")
    print(f"{result.stop_reason}: {result.final_output}")
