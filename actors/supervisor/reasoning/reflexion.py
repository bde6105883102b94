"""Reflexion: what an iteration's tool results say about the run's progress. A rule, not a model.

    loop        the newest steps repeat (protocol/loop_detection.py)        confidence falls, advice to change course
    otherwise   0.15 for each success, -0.20 for each error, 0.05 for an
                iteration without tools                                     findings, on track, slow, or stuck

Source: spec/reasoning.md, REAS-1 to REAS-16. Two rules of the reference are replaced (OURS-12): a loop is what the state
says it is, and a gain is damped once, where it is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ....protocol.messages import Frozen, Text
from ....protocol.reasoning import ReflexionConfig
from ....protocol.state import AgentState, ToolExecution

Assessment = Literal["on_track", "stuck", "new_findings", "loop_detected"]
# Hundredths, so that sums are exact: three successes and two errors make 0.05, not 0.04999.
SUCCESS_WEIGHT, ERROR_PENALTY, QUIET_BONUS, MINIMUM_PROGRESS = 15, 20, 5, 5
LOOP_DELTA = -0.3
FINDINGS_MIN_CHARS = 100
FINDINGS_CHARS = 200
ERROR_CHARS = 200
REPLAN_REQUEST = "The current plan does not work: write a new plan before the next step."


class Reflection(Frozen):
    """What one iteration says about the run's progress.

    Attributes:
        assessment: ``loop_detected``, ``new_findings``, ``stuck`` or ``on_track``.
        confidence_delta: change of confidence, -1 to 1, before it is damped.
        guidance: advice for the model, if there is any.
        findings: for ``new_findings``, the start of what the tools returned (at most 200 characters).
    """

    assessment: Assessment
    confidence_delta: float
    guidance: Text | None = None
    findings: Text | None = None


class Reflector:
    """The rules, for one agent. It keeps nothing between calls.

    Args:
        config: what to reflect on, and when.
    """

    def __init__(self, config: ReflexionConfig) -> None:
        self.config = config

    def is_due(self, iteration: int) -> bool:
        """Whether this iteration (from 1) is one to reflect on."""
        return self.config.enabled and iteration % self.config.evaluate_every_n_iterations == 0

    def reflect(self, state: AgentState, executions: Sequence[ToolExecution]) -> Reflection:
        """Judge one iteration.

        Args:
            state: the state with this iteration's reasoning step already recorded.
            executions: the calls of this iteration, in call order; empty when it ran no tool.
        """
        return _of_loop(state) or _of_results(executions)

    def apply(self, state: AgentState, reflection: Reflection, *, now: datetime | None = None) -> AgentState:
        """The state with its confidence adjusted; a gain is damped here, once, unless that is switched off."""
        return state.adjust_confidence(reflection.confidence_delta, self.config.diminishing_returns, now=now)

    def note(self, reflection: Reflection, planning: bool = False) -> str | None:
        """The text of the system note for the model, or None when there is nothing to say or notes are switched off.

        Args:
            reflection: the reflection to tell of.
            planning: the agent plans, so a run that is stuck or in a loop is asked for a new plan.
        """
        if not self.config.include_guidance or reflection.guidance is None:
            return None
        parts = [reflection.guidance]
        if reflection.findings is not None:
            parts.append(f"Found: {reflection.findings}")
        if planning and reflection.assessment in {"stuck", "loop_detected"}:
            parts.append(REPLAN_REQUEST)
        return "\n".join(parts)


def _of_loop(state: AgentState) -> Reflection | None:
    loop = state.find_loop()
    if loop is None:
        return None
    guidance = (
        f"The same step ({', '.join(loop.tools)}) came {loop.repeats} times with the same arguments and the same results. "
        "Repeating it will change nothing: use other arguments, another tool, or answer with what is known."
    )
    return Reflection.trusted(assessment="loop_detected", confidence_delta=LOOP_DELTA, guidance=guidance)


def _of_results(executions: Sequence[ToolExecution]) -> Reflection:
    successes = [execution for execution in executions if execution.success]
    errors = [execution.error for execution in executions if execution.error is not None]
    points = SUCCESS_WEIGHT * len(successes) - ERROR_PENALTY * len(errors) if executions else QUIET_BONUS
    delta = max(-100, min(100, points)) / 100
    output = "\n".join(execution.result or "" for execution in successes)
    if len(output) > FINDINGS_MIN_CHARS:
        guidance = "The last step brought new information. Take it into account before you collect more."
        findings = output[:FINDINGS_CHARS]
        return Reflection.trusted(assessment="new_findings", confidence_delta=delta, guidance=guidance, findings=findings)
    if points >= MINIMUM_PROGRESS:
        return Reflection.trusted(assessment="on_track", confidence_delta=delta)
    if points < -MINIMUM_PROGRESS:  # whenever errors outnumber successes, too
        guidance = f"The last step failed: {errors[-1][:ERROR_CHARS]}\nFind the cause, or try a different approach."
        return Reflection.trusted(assessment="stuck", confidence_delta=delta, guidance=guidance)
    guidance = "Progress is slow. Take a more direct way to what was asked."
    return Reflection.trusted(assessment="on_track", confidence_delta=delta, guidance=guidance)
