"""Reflect: what the last tool calls did to the run's confidence."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.events import ReflectEvent
from ...protocol.state import ToolExecution
from .reasoning.reflexion import note
from .run import Run


def reflect(run: Run, executions: Sequence[ToolExecution]) -> None:
    """Judge an iteration's calls where that is due: confidence, event, and a note for the model. Source: LOOP-96."""
    reflector = run.agent.reflector
    if reflector is None or run.state.iteration % reflector.config.evaluate_every_n_iterations:
        return
    reflection = reflector.reflect(run.state, executions)
    run.memo.reflections += 1
    run.state = run.state.adjust_confidence(reflection.confidence_delta, reflector.config.diminishing_returns)
    run.emit(
        ReflectEvent,
        iteration=run.state.iteration,
        assessment=reflection.assessment,
        confidence_delta=reflection.confidence_delta,
        new_confidence=run.state.confidence,
        guidance=reflection.guidance,
    )
    text = note(reflection, planning=run.config.planning) if reflector.config.include_guidance else None
    if text is not None:
        run.note(text)
