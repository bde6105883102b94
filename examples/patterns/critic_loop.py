"""A loop: a writer drafts until a critic is content. Reaching the cap without that is no success.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, loop
from umbel.testing import ScriptedModel, text

drafting = ScriptedModel([lambda messages: text("An umbel is a flower" + " cluster" * str(messages[-1].content).count("more"))])
judging = ScriptedModel([lambda messages: text("APPROVED" if "cluster" in str(messages[-1].content) else "Say more.")])
writer = Agent(model=drafting, name="writer")  # MODEL
critic = Agent(model=judging, name="critic")  # MODEL
polish = loop(writer, critic=critic, max_loops=3)
stubborn = loop(writer, until=lambda draft: False, max_loops=2)

if __name__ == "__main__":
    result = polish.run_sync("What is an umbel?")
    for member in result.members:
        print(f"{member.step}: {member.text}")
    print(f"{result.stop_reason} after {result.details['rounds']} rounds: {result.final_output}")
    capped = stubborn.run_sync("What is an umbel?")
    print(f"{capped.success} {capped.stop_reason}: {capped.error}")
