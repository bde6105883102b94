from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from umbel import tool
from umbel.actors.supervisor.hooks import BeforeToolCall, Hook, Hooks, Plugin, call, hook
from umbel.errors import ConfigurationError, DefinitionError


class Audit(Plugin):
    """A plugin with two callbacks of one kind and a tool."""

    name = "audit"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.lines: list[str] = []

    @hook("on_before_tool_call")
    async def zeroth(self, event: BeforeToolCall) -> None:
        self.lines.append(f"{self.prefix}0 {event.tool_name}")

    @hook("on_before_tool_call")
    def first(self, event: BeforeToolCall) -> None:
        self.lines.append(f"{self.prefix}1 {event.tool_name}")

    @tool
    async def audit_lines(self) -> str:
        """What was written down."""
        return "\n".join(self.lines)

    def unmarked(self) -> None:
        """Nothing to do with hooks."""


class Early(Plugin):
    priority = 10

    def __init__(self) -> None:
        self.agents: list[object] = []

    def init_agent(self, agent: object) -> None:
        self.agents.append(agent)

    @hook("on_before_tool_call")
    async def look(self, event: BeforeToolCall) -> None:
        """Looks."""


class Last(Hook):
    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        assert isinstance(event.arguments["log"], list)


@pytest.mark.spec("HOOK-31")
async def test_marked_methods_are_callbacks_in_the_order_of_the_class() -> None:
    plugin = Audit("> ")
    hooks = Hooks(plugins=[plugin])
    await call(hooks.before_tool, BeforeToolCall(tool_name="add"))
    assert plugin.lines == ["> 0 add", "> 1 add"]
    assert not hooks.after_tool


@pytest.mark.spec("HOOK-31")
async def test_a_plugins_tools_are_bound_to_it() -> None:
    plugin = Audit()
    plugin.lines.append("one")
    (found,) = Hooks(plugins=plugin).tools
    assert found.name == "audit_lines" and found.parameters.get("properties", {}) == {}
    assert await found() == "one"


@pytest.mark.spec("HOOK-4")
def test_plugins_come_after_the_configured_hooks_of_their_priority() -> None:
    hooks = Hooks([Last()], [Audit(), Early()])
    found: tuple[Any, ...] = hooks.before_tool
    owners = [callback.__self__.name for callback in found]
    assert owners == ["Early", "Last", "audit", "audit"]


@pytest.mark.spec("HOOK-31")
def test_attaching_shows_each_plugin_the_agent_once() -> None:
    plugin, agent = Early(), object()
    hooks = Hooks(plugins=[plugin, Audit()])
    assert plugin.agents == []
    hooks.attach(agent)
    assert plugin.agents == [agent]


@pytest.mark.spec("HOOK-31")
def test_names_of_plugins_and_of_their_tools_are_unique() -> None:
    with pytest.raises(ConfigurationError, match="two plugins are named 'audit'"):
        Hooks(plugins=[Audit(), Audit()])
    other = Audit()
    other.name = "other"
    with pytest.raises(ValueError, match="two tools are named 'audit_lines'"):
        Hooks(plugins=[Audit(), other])


def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"derive from umbel\.Plugin"):
        Hooks(plugins=[Last()])


def test_a_mark_must_name_a_callback() -> None:
    with pytest.raises(DefinitionError, match="'on_tool'; there are on_before_invocation"):
        hook("on_tool")
    with pytest.raises(DefinitionError, match="not nothing"):
        hook()


def test_a_subclass_may_override_a_marked_method() -> None:
    class Quiet(Audit):
        def first(self, event: BeforeToolCall) -> None:
            """Not marked, so not called."""

    assert [callback.__name__ for callback in Hooks(plugins=Quiet()).before_tool] == ["zeroth"]
    assert Quiet.name == "Quiet"


async def test_plugins_travel_with_a_definition() -> None:
    hooks = cloudpickle.loads(cloudpickle.dumps(Hooks(plugins=[Audit("p ")])))
    await call(hooks.before_tool, BeforeToolCall(tool_name="add"))
    assert hooks.plugins[0].lines == ["p 0 add", "p 1 add"]
    assert await hooks.tools[0]() == "p 0 add\np 1 add"
