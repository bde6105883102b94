"""Umbel: an actor-model runtime for fleets of agents, on Ray. Names are imported at first use."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "actors.agent.definition": ("Agent",),
    "actors.tools.context": ("ToolContext", "current_tool_context"),
    "actors.tools.decorator": ("Tool", "tool"),
    "actors.tools.output": ("ToolOutput",),
    "cluster.fleet": ("Fleet", "FleetReport"),
    "cluster.runtime": ("Runtime",),
    "protocol.config": ("AgentConfig", "Placement", "Topology"),
    "protocol.messages": ("Message", "ModelChunk", "ModelResponse", "ToolCall", "ToolResult", "Usage"),
    "protocol.results": ("AgentResult", "Metrics"),
    "protocol.state": ("AgentState", "ReasoningStep", "ToolExecution"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in ("errors", "events", "termination"):
        return importlib.import_module(f".protocol.{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'umbel' has no attribute {name!r}")
    if name in ("Agent", "Fleet"):
        importlib.import_module(".cluster.runtime", __name__)  # so that they find a runtime
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
