"""Members side by side on the same question; the most frequent answer wins, and one failure is survived.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, parallel
from umbel.testing import ScriptedModel, error, text


def juror(name: str, answer: str) -> Agent:
    """One voice; an empty answer stands for a model that is down."""
    script = ScriptedModel([text(answer) if answer else error("the model is down")])
    return Agent(model=script, name=name)  # MODEL


jury = parallel(
    juror("ann", "Hemlock"), juror("bob", "carrot"), juror("cy", "hemlock"), juror("dan", ""), merge="vote", on_error="continue"
)

if __name__ == "__main__":
    result = jury.run_sync("Which umbel is poisonous?")
    for member in result.members:
        print(f"{member.member}: {member.text or member.problem}")
    print(f"{result.stop_reason}: {result.final_output}")
