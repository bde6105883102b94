"""Agents, patterns and graphs as nodes: what they are asked, and what becomes of their answer. Source: PAT-60, OURS-24.

    asked      an agent or pattern: the state's ``task``, or else the text of the newest of its ``messages``; for a ``Send``,
               the ``task`` of its payload or its only text. A graph: the values of the keys that it knows.
    answered   an agent or pattern: its structured answer, or its text, under the node's own name; where the schema has no such
               key but ``messages``, as a message there. A graph: what it wrote, key by key; writes to a key that both
               graphs have a reducer for are folded one by one, so that nothing is added twice.

``add_node(..., input=..., output=...)`` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import GraphError, InvalidUpdate
from ...protocol.patterns import MemberResult
from .bodies import caller
from .checks import answer_key
from .commands import Command
from .node import Node
from .plain import plain
from .plan import Plan
from .planner import Task
from .reply import Reply, reply_to, target_of


def question_for(plan: Plan, node: Node, task: Task, values: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """What a member is asked, as (text, structured input).

    Raises:
        GraphError: there is nothing to ask.
        Exception: what a function of the node's ``input`` raised.
    """
    seen = {**values, **(task.payload or {})}
    if callable(node.input):
        given = caller(node.input, f"input of node {node.name!r}", 1)(plan.schema.view(values, task.payload))
        return _asked(plain(given, f"the input of node {node.name!r}"))
    if node.input is not None:
        if node.input not in seen:
            raise GraphError(f"node {node.name!r} is asked what the state has under {node.input!r}, and there is nothing yet")
        return _asked(seen[node.input])
    if node.kind == "subgraph":
        schema = node.action.plan.input_schema or node.action.plan.schema
        return _asked({key: value for key, value in seen.items() if schema.has(key)})
    text = _text_in(seen, task.payload)
    if text is None:
        raise GraphError(
            f"node {node.name!r} has nothing to ask: the state has neither 'task' nor 'messages'; say what its prompt is with "
            "add_node(..., input='key') or input=lambda state: ..."
        )
    return text, None


def _asked(given: Any) -> tuple[str, dict[str, Any] | None]:
    if isinstance(given, str):
        return given, None
    return json.dumps(given, ensure_ascii=False), given if isinstance(given, dict) else None


def _text_in(seen: Mapping[str, Any], payload: Mapping[str, Any] | None) -> str | None:
    for source in (payload or {}, {} if payload and _only_text(payload) else seen):
        if isinstance(source.get("task"), str):
            return str(source["task"])
        messages = source.get("messages")
        if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
            return str(messages[-1].get("content") or "")
    return _only_text(payload or {})


def _only_text(payload: Mapping[str, Any]) -> str | None:
    texts = [value for value in payload.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None


def reply_of_member(plan: Plan, node: Node | None, result: MemberResult, *, handled: bool = False) -> Reply:
    """What a successful step means for the graph.

    Args:
        plan: the graph.
        node: whose step; None when the graph has lost it since.
        result: of the step.
        handled: the step is the node's error handler.
    """
    if node is None or node.kind == "function" or handled:
        return Reply.from_json(result.value if isinstance(result.value, dict) else {})
    if callable(node.output):
        return reply_to(node.output(result), node.name)
    answer = result.value if result.value is not None else result.text
    if isinstance(node.output, str):
        return Reply(update={node.output: answer})
    if node.kind == "subgraph":
        return _of_subgraph(plan, node, result)
    key = answer_key(plan, node)
    if key == "messages" and key != node.name:
        return Reply(update={key: [{"role": "assistant", "content": result.text}]})
    return Reply(update={key: answer})


def _of_subgraph(plan: Plan, node: Node, result: MemberResult) -> Reply:
    values = result.value if isinstance(result.value, dict) else {}
    report = (result.pattern or {}).get("details") or {}
    inner = node.action.plan.schema
    one_by_one = {key for key, _ in report.get("writes", ()) if plan.schema.reduces(key) and inner.reduces(key)}
    update = {
        key: values[key]
        for key in report.get("written", ())
        if key in values and plan.schema.has(key) and key not in one_by_one
    }
    writes = tuple((key, value) for key, value in report.get("writes", ()) if key in one_by_one)
    parent = report.get("parent")
    if parent is None:
        return Reply(update=update, writes=writes)
    unknown = [key for key in parent.get("update", {}) if not plan.schema.has(key)]
    if unknown:
        raise InvalidUpdate(f"subgraph {node.name!r} wrote {unknown[0]!r} to its parent, which has no such key", key=unknown[0])
    goto = parent.get("goto")
    command: Command[str] = Command(update=parent.get("update"), goto=None if goto is None else [target_of(t) for t in goto])
    return Reply(update={**update, **(command.update or {})}, writes=writes, targets=command.targets)
