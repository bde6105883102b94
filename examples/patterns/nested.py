"""Patterns in patterns: every member is an agent or another pattern, and results, events and budgets are a tree.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, MemberResult, draw_ascii, loop, parallel, sequential
from umbel.events import Event, MemberEvent, StepStartEvent
from umbel.testing import ScriptedModel, text


def agent(name: str, answer: str) -> Agent:
    """One of many."""
    return Agent(model=ScriptedModel([text(answer)]), name=name)  # MODEL


polish = loop(agent("writer", "Umbels are clusters."), critic=agent("critic", "APPROVED"), name="polish")
panel = parallel(polish, agent("sceptic", "Are they?"), name="panel")
report = sequential(agent("researcher", "Carrots bloom in umbels."), panel, name="report", token_budget=10_000)


def show(members: tuple[MemberResult, ...], indent: str = "") -> None:
    """The tree of results."""
    for member in members:
        print(f"{indent}{member.step}: {member.status}")
        show(member.members, indent + "  ")


def watch(event: Event) -> None:
    """Events come up through the tree, and keep who they are of."""
    if isinstance(event, MemberEvent) and isinstance(event.innermost, StepStartEvent):
        print(f"started below {event.step}: {event.innermost.step}")


if __name__ == "__main__":
    print(draw_ascii(report), end="")
    report.callback_handler = watch
    result = report.run_sync("What is an umbel?")
    show(result.members)
    print(f"{result.stop_reason}: {result.metrics.model_calls} model calls")
