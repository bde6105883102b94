"""How a swarm's agents write on its board: tools, or fields of a structured answer. Source: PAT-18, PAT-23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..actors.tools.context import current_tool_context
from ..actors.tools.decorator import tool
from ..protocol.patterns import MemberResult
from .board import SwarmTask, task_of

ABOUT = "swarm_task"  # metadata of a task's run: ``id``, ``may_add``, ``capabilities``


@tool(idempotent=True, placement="local")
async def share_finding(finding: str) -> str:
    """Tell the agents of later tasks something that you found out.

    Args:
        finding: one or two sentences that can be understood without your task.
    """
    return f"shared: {finding}"


@tool(idempotent=True, placement="local")
async def write_blackboard(name: str, value: str) -> str:
    """Write a fact on the blackboard, which the agents of later tasks read. It replaces what stood there under that name.

    Args:
        name: what the fact is called.
        value: the fact.
    """
    return f"written: {name} is {value}"


@tool(idempotent=True, placement="local")
async def add_task(description: str, required: list[str] | None = None, preferred: list[str] | None = None) -> str:
    """Give a part of your task, or further work that you found necessary, to the swarm. It is done after your task.

    Args:
        description: what is to be done; whoever does it has not seen your conversation.
        required: capabilities that an agent must have for it.
        preferred: capabilities that would help.
    """
    context = current_tool_context()
    about = (context.metadata.get(ABOUT) if context is not None else None) or {}
    if not about.get("may_add", True):
        raise ValueError("your task is the last of its line and may have no subtasks: do what is left yourself")
    known = about.get("capabilities", ())
    unknown = sorted({*(required or ()), *(preferred or ())} - set(known))
    if unknown:
        raise ValueError(f"nobody has the capability {', '.join(unknown)}; there are: {', '.join(known) or 'none'}")
    return f"added: {description}"


BOARD_TOOLS = (share_finding, write_blackboard, add_task)


def posts_of(result: MemberResult) -> tuple[list[str], dict[str, str], list[SwarmTask]]:
    """Findings, facts for the blackboard, and subtasks that a member has posted, by tools or in its structured answer."""
    findings, facts, subtasks = [], {}, []
    for call in result.calls:
        arguments = call["arguments"]
        if call["name"] == share_finding.name:
            findings.append(str(arguments["finding"]))
        elif call["name"] == write_blackboard.name:
            facts[str(arguments["name"])] = str(arguments["value"])
        elif call["name"] == add_task.name:
            subtasks.append(task_of({name: value for name, value in arguments.items() if value is not None}))
    if isinstance(result.value, Mapping):
        findings += map(str, _listed(result.value.get("findings")))
        given = result.value.get("blackboard")
        facts |= {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
        subtasks += map(task_of, _listed(result.value.get("subtasks")))
    return findings, facts, subtasks


def _listed(given: Any) -> list[Any]:
    return [] if given is None else given if isinstance(given, list) else [given]
