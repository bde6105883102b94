"""A group chat: members speak in turn and each reads everything, until one of them says the word.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, GroupChat
from umbel.testing import ScriptedModel, text

cook = Agent(
    model=ScriptedModel(
        [lambda messages: text("Dill, then. DONE" if "dill" in str(messages[-1].content) else "Parsley?")]
    ),  # MODEL
    name="cook",
)
gardener = Agent(model=ScriptedModel([text("There is only dill.")]), name="gardener")  # MODEL
kitchen = GroupChat([cook, gardener], until=lambda message: "DONE" in message, max_rounds=6)

if __name__ == "__main__":
    result = kitchen.run_sync("Which herb goes into the soup?")
    for speaker, message in zip(result.details["speakers"], result.outputs, strict=True):
        print(f"{speaker}: {message}")
    print(f"{result.stop_reason}, ended by {result.details['ended_by']}")
