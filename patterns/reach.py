"""What a function's code can reach by name: the tasks, agents and patterns that it uses.

For what must be known before the function runs: actors for their placements, a drawing. What is found only while it runs
works all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..actors.runnable import Runnable
from .task import Task


def reached(function: Callable[..., Any]) -> list[Any]:
    """Tasks and runnables that the code of ``function`` names, also by way of functions of the same package.

    Entrypoints that it calls are not among them, but what they reach is: they may call each other.
    """
    package = _package(function)
    found: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = [function]
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        body = getattr(one, "function", None)
        if isinstance(one, Task) or (isinstance(one, Runnable) and body is None):
            found.append(one)
        elif isinstance(one, Runnable):
            todo.append(body)
        elif isinstance(one, list | tuple | dict):
            todo += one.values() if isinstance(one, dict) else one
        elif isinstance(one, FunctionType) and _package(one) == package:
            todo += _named(one)
    return found


def _package(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _named(function: FunctionType) -> Iterator[Any]:
    """The objects that a function's code names: globals, what it encloses, and attributes of modules."""
    names = set(_names(function.__code__))
    known = function.__globals__
    values = [known[name] for name in function.__code__.co_names if name in known]
    values += [known[name] for name in sorted(names - set(function.__code__.co_names)) if name in known]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for value in values:
        if isinstance(value, ModuleType):
            yield from (vars(value)[name] for name in sorted(names) if name in vars(value))
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
