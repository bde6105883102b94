"""Nodes as tool executors run them: the state comes as JSON values, and the reply goes back as such."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...actors.tools.annotations import is_context
from ...actors.tools.context import ToolContext, current_tool_context
from ...actors.tools.decorator import Tool, is_async
from ...actors.tools.output import ToolOutput
from ...protocol.errors import ConfigurationError, DefinitionError, RunError, UmbelError, from_wire
from .node import Node
from .plain import plain
from .plan import Plan
from .reply import reply_to
from .schema import StateSchema

HANDLER = ".on_error"
EMITTED = "emitted"
CONTEXT_NAMES = frozenset({"ctx", "context"})


@dataclass(frozen=True)
class NodeFailure:
    """What an ``on_error`` function learns of the failure.

    Attributes:
        node: whose.
        task: the task's id: the node's name, or the ``Send``'s.
        error: what went wrong; ``error.code`` tells the kind (``tool`` for an exception of the node's own code).
        attempts: how many there were.
        item: the ``Send``'s payload; None for others.
    """

    node: str
    task: str
    error: UmbelError
    attempts: int = 1
    item: dict[str, Any] | None = None


def tools_of(plan: Plan) -> list[Tool]:
    """The functions of a graph: its function nodes, and the handlers of nodes that have one."""
    tools = [body_of(plan.schema, node) for node in plan.nodes.values() if node.kind == "function"]
    return tools + [handler_of(plan.schema, node) for node in plan.nodes.values() if node.on_error is not None]


def body_of(schema: StateSchema, node: Node) -> Tool:
    """A function node as a tool with the arguments ``state`` and ``over``."""
    call = caller(node.action, f"node {node.name!r}", 1)
    name = node.name

    async def run_async(state: dict[str, Any], over: dict[str, Any] | None = None) -> ToolOutput:
        seen = schema.view(state, over)
        given = call(seen)
        return answered(await given if inspect.isawaitable(given) else given, name, seen, state)

    def run(state: dict[str, Any], over: dict[str, Any] | None = None) -> Any:
        seen = schema.view(state, over)
        given = call(seen)
        if inspect.isawaitable(given):  # a plain function that gave a coroutine: whoever runs this awaits it
            return later(given, name, seen, state)
        return answered(given, name, seen, state)

    body = run_async if is_async(node.action) else run
    return Tool(
        name=name,
        description=f"Node {name}.",
        function=body,
        timeout=node.timeout,
        idempotent=node.idempotent,
        placement=node.placement,
        isolation=node.isolation,
        emits_progress=True,
    )


def handler_of(schema: StateSchema, node: Node) -> Tool:
    """An ``on_error`` function as a tool with the arguments ``state``, ``over`` and ``failure``."""
    call = caller(node.on_error, f"on_error of node {node.name!r}", 2)
    name = node.name

    def failed(failure: dict[str, Any]) -> NodeFailure:
        return NodeFailure(**{**failure, "error": from_wire(failure["error"])})

    async def run_async(state: dict[str, Any], failure: dict[str, Any], over: dict[str, Any] | None = None) -> ToolOutput:
        given = call(schema.view(state, over), failed(failure))
        return answered(await given if inspect.isawaitable(given) else given, name)

    def run(state: dict[str, Any], failure: dict[str, Any], over: dict[str, Any] | None = None) -> Any:
        given = call(schema.view(state, over), failed(failure))
        return later(given, name) if inspect.isawaitable(given) else answered(given, name)

    body = run_async if is_async(node.on_error) else run
    return Tool(name=name + HANDLER, description=f"On an error of node {name}.", function=body, emits_progress=True)


def caller(function: Any, what: str, most: int) -> Callable[..., Any]:
    """``function`` as one that takes ``most`` arguments, whichever of them it has parameters for, and its call's context.

    Raises:
        DefinitionError: it needs more than that.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return function  # type: ignore[no-any-return]  # of no known signature
    contexts = [p.name for p in parameters if is_context(p.annotation) or (p.name in CONTEXT_NAMES and p is not parameters[0])]
    plain_ones = [p for p in parameters if p.name not in contexts and p.kind is not p.VAR_KEYWORD]
    needed = [p.name for p in plain_ones if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(needed) > most or any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in plain_ones):
        wanted = "state" if most == 1 else "state, failure"
        raise DefinitionError(f"{what} is called with ({wanted}) and, if it asks for it, ctx: ToolContext; it needs {needed}")
    takes = most if any(p.kind is p.VAR_POSITIONAL for p in plain_ones) else min(most, len(plain_ones))

    def call(*given: Any) -> Any:
        # a handler of one parameter is told what went wrong
        arguments = given[-takes:] if takes else ()
        return function(*arguments, **dict.fromkeys(contexts, current_tool_context()))

    return call


def answered(given: Any, node: str, state: Any = None, before: Any = None) -> ToolOutput:
    """A node's result as a tool's."""
    reply = reply_to(given, node, state, before)
    return ToolOutput(given if isinstance(given, str) else "", structured_content=reply.to_json())


async def later(given: Any, node: str, state: Any = None, before: Any = None) -> ToolOutput:
    """:func:`answered` of what an awaitable gives."""
    return answered(await given, node, state, before)


def interrupt(value: Any, *, options: Any = None, fields: Any = None) -> Any:
    """Ask a person, from within a node: the graph pauses here, and this returns the answer once there is one.

    The node is then run again from its beginning; a node that asks several times gets its answers in order. Works in sync and
    async nodes. Source: PAT-52, OURS-28.

    Args:
        value: the question: a text, or JSON values for whoever shows it (``value["question"]`` is then the text, if there).
        options: the answers to choose from.
        fields: description of a structured answer.

    Raises:
        RunError: this is no node's code, or code that the node started elsewhere (a bare thread).
    """
    context = inside("interrupt")
    if isinstance(value, str):
        return context.interrupt(value, options=options, fields=fields)
    value = plain(value, "the value of interrupt()")
    question = value.get("question") if isinstance(value, dict) else None
    text = question if isinstance(question, str) else json.dumps(value, ensure_ascii=False)
    return context.interrupt(text, options=options, fields=fields, metadata={"value": value})


def emit(value: Any) -> bool:
    """Say something to whoever streams the graph (mode ``custom``), from within a node. Source: PAT-62.

    Args:
        value: JSON values.

    Returns:
        Whether it was sent; outside of a node, it is not.
    """
    context = current_tool_context()
    return context is not None and context.report_progress(0.0, None, json.dumps({EMITTED: plain(value, "emit()")}))


def emitted(message: str | None) -> tuple[bool, Any]:
    """Whether a tool's progress message is an :func:`emit`, and what was emitted."""
    if not message or not message.startswith('{"' + EMITTED):
        return False, None
    try:
        known = json.loads(message)
    except ValueError:
        return False, None
    return known.keys() == {EMITTED}, known.get(EMITTED)


def inside(call: str) -> ToolContext:
    """The context of the node whose code this is."""
    context = current_tool_context()
    if context is None:
        raise RunError(f"{call}() belongs into a node of a graph (or a tool) while it runs; a thread needs its context")
    return context


def check_bodies(plan: Plan) -> None:
    """See that every function of the graph can be called.

    Raises:
        ConfigurationError: a handler's name collides with a node's.
        DefinitionError: a function has parameters that nobody fills in.
    """
    clash = [
        node.name for node in plan.nodes.values() if node.name.endswith(HANDLER) and node.name[: -len(HANDLER)] in plan.nodes
    ]
    if clash:
        raise ConfigurationError(f"node {clash[0]!r} has the name of another node's error handler")
    for node in plan.nodes.values():
        for function, what in ((node.condition, "condition"), (node.input if callable(node.input) else None, "input")):
            if function is not None:
                caller(function, f"{what} of node {node.name!r}", 1)
