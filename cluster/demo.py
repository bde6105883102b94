"""The demo: a fleet reviews every module of Python's standard library, offline, with tools that really read and measure.

Nothing is staged: the files are those of the running interpreter, each is one task of an ordinary fleet, and the figures
come out of the results file. Only the model is a stand-in, a set of fixed rules (``offline:reviewer``).
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..actors.tools.decorator import tool
from ..protocol.errors import ToolError

MAX_SOURCE_LINES = 60
_SKIPPED = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip"})
_TODO = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b.*")
_PROMPT = "Review the module '{path}': measure it, list its todos and read the source of its longest function. Answer as JSON."


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def modules_to_review() -> list[Path]:
    """Every module of the standard library but its tests and bundled programs, sorted."""
    root = standard_library()
    return sorted(path for path in root.rglob("*.py") if not _SKIPPED.intersection(path.relative_to(root).parts))


def review_tasks(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """One task a module: its id is the file's path in the library."""
    root = standard_library()
    for path in modules_to_review()[:limit]:
        yield {"id": path.relative_to(root).as_posix(), "prompt": _PROMPT.format(path=path)}


@tool(idempotent=True)
def measure_module(path: str) -> dict[str, Any]:
    """Measure a Python module of the standard library.

    Args:
        path: The module's file.
    """
    source = _read(path)
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    places = [tree, *functions, *classes]
    measured: dict[str, Any] = {
        "lines": source.count("\n") + 1,
        "functions": len(functions),
        "classes": len(classes),
        "missing_docstrings": sum(ast.get_docstring(place, clean=False) is None for place in places),
        "broad_excepts": sum(_is_broad(node) for node in nodes if isinstance(node, ast.ExceptHandler)),
    }
    longest = max(functions, key=_length, default=None)
    if longest is not None:
        place = {"function": longest.name, "start_line": longest.lineno, "end_line": longest.end_lineno}
        measured["longest_function"] = {**place, "length": _length(longest)}
    return measured


@tool(idempotent=True)
def list_todos(path: str) -> dict[str, Any]:
    """List the TODO, FIXME, XXX and HACK comments of a Python module.

    Args:
        path: The module's file.
    """
    lines = enumerate(_read(path).splitlines(), 1)
    todos = [f"{number}: {match[0].strip('# ')[:120]}" for number, line in lines if (match := _TODO.search(line))]
    return {"todo_count": len(todos), "todos": todos[:5]}


@tool(idempotent=True)
def read_source(path: str, start_line: int, end_line: int) -> str:
    """Read some lines of a Python module.

    Args:
        path: The module's file.
        start_line: First line, from 1.
        end_line: Last line; at most 60 lines are given.
    """
    lines = _read(path).splitlines()
    return "\n".join(lines[max(0, start_line - 1) : min(end_line, start_line - 1 + MAX_SOURCE_LINES)])


def build_reviewer(checkpointer: str | None = None) -> Any:
    """The agent of the demo.

    Args:
        checkpointer: URL of the store for its conversations, None for none.
    """
    from ..actors.agent_definition import Agent

    return Agent(
        model="offline:reviewer",
        name="reviewer",
        tools=[measure_module, list_todos, read_source],
        system_prompt="You review Python modules with your tools and report what you find, no more.",
        checkpointer=checkpointer,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """The longest function of a module, or another thing worth a row."""

    module: str
    what: str
    amount: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the results file says.

    Attributes:
        modules: reviewed with success.
        totals: sums over all modules: lines, functions, classes, missing_docstrings, broad_excepts, todo_count.
        longest: the ten longest functions.
        broadest: the modules with the most broad excepts.
        todos: the modules with the most todos.
    """

    modules: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    longest: tuple[Finding, ...] = ()
    broadest: tuple[Finding, ...] = ()
    todos: tuple[Finding, ...] = ()


_COUNTED = ("lines", "functions", "classes", "missing_docstrings", "broad_excepts", "todo_count")


def summarise(results: Path, *, top: int = 10) -> Summary:
    """Read a results file of the demo."""
    reviews = dict(_reviews(results))
    longest = [(name, review["longest_function"]) for name, review in reviews.items() if "longest_function" in review]
    excepts = [Finding(name, "broad excepts", review.get("broad_excepts", 0)) for name, review in reviews.items()]
    todos = [Finding(name, "todos", review.get("todo_count", 0)) for name, review in reviews.items()]
    return Summary(
        modules=len(reviews),
        totals={name: sum(review.get(name, 0) for review in reviews.values()) for name in _COUNTED},
        longest=_top([Finding(name, place["function"], place["length"]) for name, place in longest], top),
        broadest=_top(excepts, top),
        todos=_top(todos, top),
    )


def _reviews(results: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with results.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["status"] == "ok":
                yield record["id"], json.loads(record["message"])


def _top(findings: list[Finding], count: int) -> tuple[Finding, ...]:
    found = sorted((finding for finding in findings if finding.amount), key=lambda finding: (-finding.amount, finding.module))
    return tuple(found[:count])


def _read(path: str) -> str:
    file = Path(path).resolve()
    if not file.is_relative_to(standard_library().resolve()):
        raise ToolError(f"{path} is not in the standard library ({standard_library()}); this tool reads nothing else")
    return file.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in caught)
