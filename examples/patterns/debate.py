"""A debate: members answer, read each other's answers and answer again, until they agree or the rounds are over.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, Debate
from umbel.testing import ScriptedModel, text

sure = Agent(model=ScriptedModel([text("hemlock")]), name="sure")  # MODEL
unsure = Agent(
    model=ScriptedModel(
        [lambda messages: text("hemlock" if "others answered" in str(messages[-1].content) else "carrot")]
    ),  # MODEL
    name="unsure",
)
debate = Debate([sure, unsure], rounds=3)

if __name__ == "__main__":
    result = debate.run_sync("Which of the two is poisonous, carrot or hemlock?")
    for member in result.members:
        print(f"{member.step}: {member.text}")
    print(f"{result.stop_reason}, {result.details['rounds']} rounds, consensus: {result.details['consensus']}")
    print(result.final_output)
