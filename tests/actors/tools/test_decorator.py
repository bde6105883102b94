"""Declaring tools."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from umbel.actors.tools.decorator import Tool, require_tool, require_tools, tool
from umbel.protocol.errors import ConfigurationError, DefinitionError


@tool
def bare(a: int) -> int:
    """Adds one."""
    return a + 1


@pytest.mark.spec("TOOL-1", "TOOL-2", "TOOL-3")
def test_bare_and_with_options() -> None:
    assert (bare.name, bare.description, bare.idempotent, bare.labels, bare.deferred) == ("bare", "Adds one.", False, (), False)
    assert bare(1) == 2

    @tool(
        name="other", idempotent=True, labels=["x"], emits_progress=True, output_schema={"type": "string"}, timeout=3, retries=1
    )
    async def body() -> str:
        return ""

    assert (body.name, body.labels, body.idempotent, body.emits_progress) == ("other", ("x",), True, True)
    assert body.description
    assert body.output_schema == {"type": "string"}
    assert body.is_async


@pytest.mark.spec("TOOL-4")
def test_only_tools_and_distinct_names() -> None:
    def plain() -> None: ...

    assert require_tool(bare) is bare
    assert require_tools(bare) == (bare,)
    with pytest.raises(TypeError, match=r"plain.*@tool"):
        require_tools([bare, plain])
    with pytest.raises(ValueError, match="'bare'"):
        require_tools([bare, bare])
    assert issubclass(DefinitionError, ConfigurationError)


@pytest.mark.spec("TOOL-5", "OURS-17")
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"isolation": "docker"}, "isolation"),
        ({"isolation": "thread", "timeout": 1}, "cannot be stopped"),
        ({"isolation": "thread", "memory_mb": 100}, "cannot be stopped"),
        ({"name": "has space"}, "name"),
        ({"frob": 1}, "frob"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], problem: str) -> None:
    def body() -> None: ...

    with pytest.raises(DefinitionError, match=problem):
        tool(**options)(body)


def test_wrong_bodies_are_refused() -> None:
    with pytest.raises(DefinitionError, match="already"):
        tool(bare)
    with pytest.raises(DefinitionError, match="needs a function"):
        tool("name")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="name"):
        tool(lambda: None)

    def generator() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="generator"):
        tool(generator)


def test_an_agent_as_tool() -> None:
    made = Tool(name="expert", description="Asks.", agent=object())
    assert made.parameters["required"] == ["prompt"]
    with pytest.raises(DefinitionError):
        made("x")
    with pytest.raises(DefinitionError):
        Tool(name="neither")


def test_tools_are_frozen_and_picklable() -> None:
    with pytest.raises(AttributeError):
        bare.name = "x"  # type: ignore[misc]
    copy = cloudpickle.loads(cloudpickle.dumps(bare))
    assert copy(1) == 2
    assert copy.schema == bare.schema


def test_a_tool_in_a_class_binds() -> None:
    class Box:
        factor = 3

        @tool
        def times(self, a: int) -> int:
            return a * self.factor

    assert Box().times(2) == 6
    assert list(Box().times.parameters["properties"]) == ["a"]


@pytest.mark.parametrize(
    ("options", "asynchronous", "process"),
    [
        ({}, False, False),
        ({"timeout": 1}, False, True),
        ({"memory_mb": 100}, False, True),
        ({"isolation": "process"}, True, True),
        ({"timeout": 1}, True, False),
    ],
)
@pytest.mark.spec("OURS-17")
def test_where_a_body_must_run(options: dict[str, Any], asynchronous: bool, process: bool) -> None:
    async def coroutine() -> None: ...

    def function() -> None: ...

    assert tool(**options)(coroutine if asynchronous else function).needs_process is process
