"""The tools that an agent gets from its settings, beside those that it was given."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.config import AgentConfig
from .tools.builtin.completion import with_explicit_tools
from .tools.builtin.discovery import with_tool_search
from .tools.builtin.fetch import web_fetch_tool
from .tools.builtin.search import web_search_tool
from .tools.builtin.stored import stored_result_tool
from .tools.decorator import Tool, require_tools

CATALOGUE_NOTE = (
    "Further tools exist that are not listed: find them with tool_search before you say that something cannot be done."
)


def with_builtin_tools(config: AgentConfig, plugin_tools: Iterable[Tool] = ()) -> AgentConfig:
    """``config`` with the tools of its plugins, of explicit mode, of its web providers, and the search for deferred ones.

    A tool that the agent was given itself wins over a built-in one of the same name.

    Raises:
        ConfigurationError: a plugin's tool has the name of another one.
    """
    tools = require_tools([*config.tools, *plugin_tools])
    if config.completion_mode == "explicit":
        tools = with_explicit_tools(tools)
    offered = [
        web_search_tool(config.web_search) if config.web_search is not None else None,
        web_fetch_tool(config.web_fetch) if config.web_fetch is not None else None,
        stored_result_tool(config.tool_result_store) if config.tool_result_store is not None else None,
    ]
    names = {tool.name for tool in tools}
    tools = with_tool_search((*tools, *(tool for tool in offered if tool is not None and tool.name not in names)))
    return config if tools == config.tools else config.model_copy(update={"tools": tools})
