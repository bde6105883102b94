"""Transfers: the tool by which an agent hands over, and what goes along. Source: PAT-24, PAT-27, OURS-27."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, get_args

from ..actors.agent.models.history import paired
from ..actors.tools.context import ToolContext
from ..actors.tools.decorator import Tool
from ..protocol.errors import ConfigurationError, ToolError
from ..protocol.markers import COMPACTION_SUMMARY, HANDOFF, is_request
from ..protocol.messages import Frozen, Message, Text, ToolCall
from ..protocol.patterns import MemberResult

Reason = Literal["specialization", "escalation", "delegation", "completion", "failure"]
REASONS = get_args(Reason)
PREFIX = "transfer_to_"
FINDINGS, SETBACK, WORK = 0.2, -0.1, 0.1
AT_ITS_LIMIT = frozenset({"max_iterations", "token_budget", "cost_budget"})  # reached by the very reply that hands over
SETBACKS = frozenset({"escalation", "failure"})
KEPT_CHARS = 2_000
_ODD = re.compile(r"[^A-Za-z0-9_-]")


class Hop(Frozen):
    """One handoff.

    Attributes:
        source, target: names of agents.
        reason: one of :data:`REASONS`.
        message: what the target shall do or know.
        findings: what the source has found out.
        confidence: 0 to 1, carried from hop to hop.
        step: key of the source's step.
    """

    source: Text
    target: Text
    reason: Reason = "specialization"
    message: Text = ""
    findings: Text = ""
    confidence: float = 0.5
    step: Text = ""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} ({self.reason})"


class Transfer:
    """The body of a ``transfer_to_...`` tool. Whoever reads the conversation carries it out; the body only says so.

    Args:
        target: the agent.
        tools: names of all such tools of the agent that calls, for the rule that the first of a reply wins.
    """

    def __init__(self, target: str, tools: Collection[str]) -> None:
        self.target = target
        self.tools = frozenset(tools)

    async def carry_out(
        self,
        ctx: ToolContext,
        reason: Reason = "specialization",
        message: str = "",
        findings: str = "",
        confidence: float | None = None,
    ) -> str:
        """Hand over.

        Args:
            ctx: the call.
            reason: why you hand over.
            message: what is to be done next, and what must be known for it.
            findings: what you have found out so far.
            confidence: how sure you are of your findings, 0 to 1.
        """
        state = ctx.state
        first = first_transfer(state.last_tool_calls if state is not None else (), self.tools)
        if first is not None and first.id != ctx.tool_call_id:
            raise ToolError(f"not carried out: {first.name} came first in the same reply, and only one handoff is possible")
        return f"Handed over to {self.target}."


def first_transfer(calls: Iterable[ToolCall], tools: Collection[str]) -> ToolCall | None:
    """The first call of a reply that can hand over."""
    for call in calls:
        if call.name in tools and call.malformed_arguments is None and call.arguments.get("reason", REASONS[0]) in REASONS:
            return call
    return None


def transfer_names(agents: Iterable[str]) -> dict[str, str]:
    """The tools' names by agent.

    Raises:
        ConfigurationError: two agents' names differ only in characters that a tool's name cannot have.
    """
    names = {agent: f"{PREFIX}{_ODD.sub('_', agent)}"[:64] for agent in agents}
    by_tool: dict[str, str] = {}
    for agent, tool in names.items():
        if tool in by_tool:
            raise ConfigurationError(f"agents {by_tool[tool]!r} and {agent!r} would both be reached by {tool}: rename one")
        by_tool[tool] = agent
    return names


def transfer_tools(targets: Mapping[str, str], purposes: Mapping[str, str]) -> list[Tool]:
    """The tools of one agent.

    Args:
        targets: names of tools by agent.
        purposes: what the agents are good for, as far as is known.
    """
    tools = []
    for agent, name in targets.items():
        purpose = f" {agent}: {purposes[agent]}" if purposes.get(agent) else ""
        description = f"Hand the conversation over to {agent}, who goes on from here; it ends your own work.{purpose}"
        body = Transfer(agent, targets.values()).carry_out
        tools.append(Tool(name=name, description=description, function=body, placement="local", labels=(HANDOFF,)))
    return tools


def hop_of(result: MemberResult, source: str, agents: Mapping[str, str], before: float) -> Hop | None:
    """The handoff that an agent's run ended with, if it did.

    Args:
        result: of its step, with its conversation.
        source: its name.
        agents: agents by the names of the tools that lead to them.
        before: the confidence that was carried to it.
    """
    state = result.state
    if state is None or not (result.success or result.stop_reason in AT_ITS_LIMIT):
        return None
    done = next((done for done in state.tool_executions if done.tool_name in agents and done.success), None)
    if done is None:
        return None
    given = done.arguments
    others = any(other.success and other.tool_name not in agents for other in state.tool_executions)
    hop = Hop(
        source=source,
        target=agents[done.tool_name],
        reason=given.get("reason", "specialization"),
        message=str(given.get("message") or ""),
        findings=str(given.get("findings") or result.text or ""),
        step=result.step,
    )
    return hop.evolve(confidence=confidence_of(given.get("confidence"), before, hop, worked=others))


def confidence_of(given: Any, before: float, hop: Hop, *, worked: bool) -> float:
    """What the agent says itself, or a rule of thumb: 0.2 more for findings, 0.1 less for a setback, 0.1 more for work done.

    Source: PAT-27.
    """
    if isinstance(given, int | float) and not isinstance(given, bool):
        return min(1.0, max(0.0, float(given)))
    change = FINDINGS * bool(hop.findings) + SETBACK * (hop.reason in SETBACKS) + WORK * worked
    return round(min(1.0, max(0.0, before + change)), 6)


# what goes along


def said_in(result: MemberResult, prompt: str) -> list[Message]:
    """What a step added to the conversation."""
    if result.messages:
        return consistent(result.messages)
    return [*([Message.user(prompt)] if prompt else []), *([Message.assistant(result.text)] if result.text else [])]


def consistent(messages: Iterable[Message]) -> list[Message]:
    """Messages that the next agent can go on from: every call with its one result, no notes for another agent."""
    return paired([message for message in messages if message.metadata.get(COMPACTION_SUMMARY) or not is_note(message)])


def is_note(message: Message) -> bool:
    """Whether it is for the agent only that got it: a system prompt, a note of the runtime."""
    return message.role == "system" or (message.role == "user" and not is_request(message))


def transcript(messages: Iterable[Message]) -> str:
    """A conversation as text, for whoever takes no messages."""
    lines = []
    for message in messages:
        asked = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
        who = f"{message.role} {message.name}" if message.role == "tool" else message.role
        lines += [f"{who}: {text}" for text in (message.content, f"calls {asked}" if asked else "") if text]
    return "\n".join(lines)


def digest(task: str, hops: Iterable[Hop], messages: Iterable[Message]) -> str:
    """What happened so far, in the agents' own words: the task, the findings of each, and the newest answers."""
    lines = [f"Task: {task}"]
    for hop in hops:
        lines.append(f"{hop.source} handed over to {hop.target} ({hop.reason}, confidence {hop.confidence:.2f}).")
        lines += [f"  Found: {hop.findings[:KEPT_CHARS]}"] if hop.findings else []
        lines += [f"  Asked: {hop.message[:KEPT_CHARS]}"] if hop.message else []
    answers = [message.content for message in messages if message.role == "assistant" and message.content]
    lines += [f"Said: {answer[:KEPT_CHARS]}" for answer in answers[-3:]]
    return "\n".join(lines)


def note(hop: Hop) -> str:
    """What the target is told of the handoff itself."""
    lines = [f"{hop.source} has handed this over to you ({hop.reason}; confidence {hop.confidence:.2f})."]
    lines += [f"Message: {hop.message}"] if hop.message else []
    lines += [f"Findings: {hop.findings}"] if hop.findings else []
    return "\n".join(lines)
