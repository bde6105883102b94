"""Where code runs: whether an agent may be run from here, and if not, what to do instead."""

from __future__ import annotations

from contextvars import ContextVar

from ..protocol.errors import RunError

_inside: ContextVar[str | None] = ContextVar("umbel_inside", default=None)
_process: list[str] = []
enter = _inside.set
leave = _inside.reset


def mark_process(what: str) -> None:
    """This process belongs to a runtime: whatever runs here, outside of a tool's body, does not begin runs of its own."""
    _process[:] = [what]


def check_may_run() -> None:
    """Pass, if code here may use a runtime of its own.

    Raises:
        RunError: it runs inside an actor, which would wait for itself, or start a second runtime inside the first.
    """
    inside = _inside.get() or (_process[0] if _process else None)
    if inside is not None:
        raise RunError(
            f"no agent can be run from {inside}: hooks, system prompts, models and verifiers must not wait for a run. "
            "Run agents in the body of a tool (await ctx.run_subagent(agent, prompt)) or of an entrypoint "
            "(await step(agent, prompt)), or give them as tools (agent.as_tool())"
        )
