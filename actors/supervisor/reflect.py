"""Reflect: what the last tool calls did to the run's confidence."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.events import ReflectEvent
from ...protocol.state import ToolExecution
from .run import Run


def reflect(run: Run, executions: Sequence[ToolExecution]) -> None:
    """Judge an iteration's calls where that is due: confidence, event, and a note for the model. Source: LOOP-96."""
    reflector = run.agent.reflector
    if reflector is None or not reflector.is_due(run.state.iteration):
        return
    reflection = reflector.reflect(run.state, executions)
    run.memo.reflections += 1
    run.state = reflector.apply(run.state, reflection)
    run.emit(
        ReflectEvent,
        iteration=run.state.iteration,
        assessment=reflection.assessment,
        confidence_delta=reflection.confidence_delta,
        new_confidence=run.state.confidence,
        guidance=reflection.guidance,
    )
    loop = reflection.assessment == "loop_detected" and not run.config.planning  # the boundary's warning says it
    text = None if loop else reflector.note(reflection, run.config.planning)
    if text is not None:
        run.note(text)
