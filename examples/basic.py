"""A conversation of two turns, and what it took.

Offline, the model is a script. For a real one, name it on the line marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, Message, ModelResponse
from umbel.testing import ScriptedModel, text


def reply(messages: list[Message]) -> ModelResponse:
    """Answer as somebody who has read the whole conversation."""
    said = [message.content or "" for message in messages if message.role == "user"]
    if len(said) == 1:
        return text("Nice to meet you, Ada.")
    return text(f"Your first message was: {said[0]!r}")


agent = Agent(
    model=ScriptedModel([reply]),  # MODEL
    system_prompt="You are a friendly assistant.",
    checkpointer="memory://",  # "sqlite:///umbel.db" keeps conversations on disk
)


def main() -> None:
    first = agent.run_sync("My name is Ada.", thread_id="ada")
    print(first.message)
    second = agent.run_sync("What did I tell you first?", thread_id="ada")
    print(second.message)
    print(f"{second.stop_reason}: {second.metrics.model_calls} model call, {len(second.messages)} messages in the thread")


if __name__ == "__main__":
    main()
