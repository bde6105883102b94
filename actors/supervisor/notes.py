"""Notes that the loop writes into the conversation ahead of a model call. They stay in the thread, marked as automated."""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.events import CustomEvent
from ...protocol.messages import Message
from .run import Run

PLAN = "Before you call any tool, write a short numbered plan for this task."
WINDING_DOWN = "Two more replies are left after this one. Bring the task to its end, then call the tool that finishes it."
LAST_CALL = "This is your last reply. Call the tool that finishes the task now, with what you have."
ITERATIONS_WORTH_A_NUDGE = 10  # a shorter run is over before a hint could help


def add_notes(run: Run) -> None:
    """A plan to make, the end of explicit mode, a budget that runs out: each where it is due."""
    config, state = run.config, run.state
    if config.planning and state.iteration == 1:
        run.note(PLAN)
    if config.completion_mode == "explicit":
        left = config.max_iterations - state.iteration
        if left in {0, 2}:
            run.note(WINDING_DOWN if left else LAST_CALL)
    if config.budget_nudge_at is not None:
        nudge(run, config.budget_nudge_at)


def nudge(run: Run, threshold: float) -> None:
    """Once in a segment, when a budget is used up to ``threshold``: name the one that is furthest along. Source: LOOP-34."""
    state = run.state
    if state.iteration < threshold * state.max_iterations and not (
        state.token_budget or state.cost_budget_usd or run.time_limit
    ):
        return  # most runs have no other budget
    share, budget, used, limit = max(shares(run), default=(0.0, "", 0, 0))
    if share < threshold or run.memo.nudged:
        return
    run.memo.nudged = True
    detail = f"{used:g} of {limit:g} {budget}"
    text = f"{share:.0%} of a budget is used up: {detail}. Come to an end: finish what matters and give your answer."
    run.state = run.state.with_message(Message.user(text, automated=True))
    run.emit(CustomEvent, name="budget_nudge", data={"budget": budget, "fraction": round(share, 2), "detail": detail})


def shares(run: Run) -> Iterator[tuple[float, str, float, float]]:
    """(used share, unit, used, limit) of every budget that the run has."""
    state = run.state
    if state.max_iterations >= ITERATIONS_WORTH_A_NUDGE:
        yield state.iteration / state.max_iterations, "model calls", state.iteration, state.max_iterations
    if state.token_budget:
        yield state.total_tokens_used / state.token_budget, "tokens", state.total_tokens_used, state.token_budget
    if state.cost_budget_usd:
        yield state.cost_usd_used / state.cost_budget_usd, "US dollars", state.cost_usd_used, state.cost_budget_usd
    if run.time_limit is not None:
        elapsed = run.elapsed()
        yield elapsed / run.time_limit, "seconds", elapsed, run.time_limit
