"""A node as it is declared, and what can be told of it without running it."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ...actors.runnable import Runnable
from ...actors.tools.decorator import Isolation, Tool
from ...protocol.errors import ConfigurationError, DefinitionError
from .commands import END, PARENT, START, Command, Send
from .options import CachePolicy, NodeRetry

Kind = Literal["function", "agent", "pattern", "subgraph"]
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
SIGNPOSTS = frozenset({"Command", "Send", "goto", "finish", "PARENT"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A node.

    Attributes:
        name: letters, digits, ``_ . -``.
        action: a function of the state, or something that is run: an agent, a pattern, a compiled graph.
        kind: which of these.
        destinations: where a ``Command`` of it may go, for checks and drawings; None: not said.
        sends: the nodes that it sends to; the same.
        writes: the keys that it may write, to find conflicts when the graph is built; None: not said.
        retry: further attempts; None: one attempt.
        cache: reuse of results; None: none.
        timeout: seconds per attempt; None: no limit.
        condition: ``(state) -> bool``; where it is false the node is skipped, and what follows it goes on.
        defer: it runs when nothing else is left to run.
        on_error: ``(state, failure) -> update``, in place of the node's result once its attempts are spent.
        idempotent: a node that was running in a crash may be run again. Where not, its start is journaled, and after a crash
            it has failed with ``outcome_unknown``.
        input: of what is run: the key of the state that is its prompt, or ``(state) -> prompt or dict``.
        output: of what is run: the key that its answer is written to, or ``(result) -> update``.
        placement, isolation: of a function, where its executor is and what it shares: as for ``@tool``.
        metadata: for drawings and applications.
    """

    name: str
    action: Any
    kind: Kind = "function"
    destinations: tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    retry: NodeRetry | None = None
    cache: CachePolicy | None = None
    timeout: float | None = None
    condition: Callable[..., Any] | None = None
    defer: bool = False
    on_error: Callable[..., Any] | None = None
    idempotent: bool = True
    input: str | Callable[..., Any] | None = None
    output: str | Callable[..., Any] | None = None
    placement: Any = None
    isolation: Isolation | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        name: Any = self.name  # whatever a caller without types gave
        who, timeout = f"node {name!r}", self.timeout
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in (START, END, PARENT):
            raise ConfigurationError(
                f"{who}: a name is 1 to 128 letters, digits, '_', '-' or '.', and not {START}, {END}, {PARENT}"
            )
        if timeout is not None and (isinstance(timeout, bool) or not 0 < timeout < math.inf):
            raise ConfigurationError(f"{who}: timeout is a positive number of seconds, not {timeout!r}")
        for option, wanted in (("retry", NodeRetry), ("cache", CachePolicy)):
            if not isinstance(getattr(self, option), wanted | None):
                raise ConfigurationError(f"{who}: {option} is a {wanted.__name__}, not {type(getattr(self, option)).__name__}")
        for option in ("condition", "on_error"):
            value = getattr(self, option)
            if value is not None and not callable(value):
                raise ConfigurationError(f"{who}: {option} is a function, not {type(value).__name__}")
        if self.kind != "function" and (self.placement is not None or self.isolation is not None):
            raise ConfigurationError(f"{who}: placement= and isolation= are for functions; an agent has its own")
        if self.kind == "function" and (self.input is not None or self.output is not None):
            raise ConfigurationError(
                f"{who}: input= and output= are for agents, patterns and graphs; a function has the whole state"
            )

    @property
    def may_go_anywhere(self) -> bool:
        """Whether a ``Command`` or ``Send`` of it may lead to nodes that are not declared."""
        if self.kind == "subgraph":
            return self.destinations is None and getattr(self.action, "leaves_to_parent", False)
        if self.kind != "function" or self.destinations is not None or self.sends is not None:
            return False
        return mentions(self.action, SIGNPOSTS)


class NodeOptions(TypedDict, total=False):
    """What ``add_node`` takes by name: fields of :class:`Node`, and names alone where it has several."""

    destinations: str | Iterable[str]
    sends: str | Iterable[str]
    writes: str | Iterable[str]
    retry: NodeRetry | None
    cache: CachePolicy | None
    timeout: float | None
    condition: Callable[..., Any] | None
    defer: bool
    on_error: Callable[..., Any] | None
    idempotent: bool
    input: str | Callable[..., Any] | None
    output: str | Callable[..., Any] | None
    placement: Any
    isolation: Isolation | None
    metadata: Mapping[str, Any] | None


def node_of(name: str, action: Any, options: Mapping[str, Any]) -> Node:
    """The node that ``add_node`` was asked for.

    Raises:
        DefinitionError: (a TypeError) ``action`` cannot be a node.
        ConfigurationError: an option is unknown or makes no sense.
    """
    known = {field for field in Node.__dataclass_fields__ if field not in ("name", "action", "kind")}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ConfigurationError(f"node {name!r}: unknown option {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    values = dict(options)
    kind = kind_of(name, action)
    said = literals_of(action) if kind == "function" else ()
    for option in ("destinations", "sends", "writes"):
        if values.get(option) is not None:
            values[option] = names(values[option])
    if said and values.get("destinations") is None:
        values["destinations"] = said
    return Node(name=name, action=action, kind=kind, **values)


def kind_of(name: str, action: Any) -> Kind:
    """What ``action`` is."""
    if isinstance(action, Runnable):
        if hasattr(action, "plan"):
            return "subgraph"
        return "pattern" if hasattr(action, "conduct") else "agent"
    if isinstance(action, Tool):
        raise DefinitionError(
            f"node {name!r} is a tool: nodes are functions of the state; write one that calls {action.name}(...)"
        )
    if not callable(action) or isinstance(action, type):
        raise DefinitionError(
            f"node {name!r} is a function of the state, an agent, a pattern or a compiled graph, not {type(action).__name__}"
        )
    if inspect.isgeneratorfunction(action) or inspect.isasyncgenfunction(action):
        raise DefinitionError(f"node {name!r} is a generator: return its update, and use emit(...) for what happens on the way")
    return "function"


def names(value: Any) -> tuple[str, ...]:
    """One name or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def returns(function: Any) -> Any:
    """The resolved annotation of what ``function`` returns; None where there is none, or it cannot be resolved."""
    try:
        return typing.get_type_hints(function, include_extras=True).get("return")
    except (NameError, TypeError, AttributeError):
        return getattr(function, "__annotations__", {}).get("return")


def literals_of(function: Any) -> tuple[str, ...]:
    """The names in ``Literal[...]`` of what ``function`` returns: ``-> Command[Literal["a", "b"]]``."""
    return tuple(dict.fromkeys(_literals(returns(function))))


def _literals(annotation: Any) -> Iterable[str]:
    if typing.get_origin(annotation) is Literal:
        yield from (value for value in typing.get_args(annotation) if isinstance(value, str))
        return
    for inner in typing.get_args(annotation):
        yield from _literals(inner)


def mentions(function: Any, words: frozenset[str]) -> bool:
    """Whether the code of ``function``, or what it closes over, names one of ``words``."""
    if isinstance(function, Command | Send):
        return True
    inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)  # wrappers and partials
    if inner is not None and inner is not function and mentions(inner, words):
        return True
    body = getattr(function, "__func__", function)
    code = getattr(body, "__code__", None) or getattr(inspect.getattr_static(type(body), "__call__", None), "__code__", None)
    if code is None or _in_code(code, words):
        return code is not None
    cells = [cell.cell_contents for cell in getattr(body, "__closure__", None) or () if _filled(cell)]
    return any(isinstance(value, Command | Send) or getattr(value, "__name__", None) in words for value in cells)


def _in_code(code: types.CodeType, words: frozenset[str]) -> bool:
    if words.intersection(code.co_names):
        return True
    return any(isinstance(const, types.CodeType) and _in_code(const, words) for const in code.co_consts)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
