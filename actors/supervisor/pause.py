"""Pause and resume: a run that asks a person, and goes on with what they answered. Source: OURS-2, OURS-3.

A paused turn is its state: ``state.turn.interrupts`` names the calls that wait. Their answers may come in any order, in
separate resumes, from any process; the run goes on when the last one is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...protocol.errors import NotPaused
from ...protocol.events import InterruptEvent
from ...protocol.messages import InterruptRequest
from ...protocol.turn import PendingInterrupt
from .run import Run
from .thread import where


def asking(slot: Any, request: InterruptRequest, child: dict[str, Any] | None = None) -> PendingInterrupt:
    """The interrupt of a call that asks; a call that asks again gets a new id for each question."""
    answers = slot.waits[0].answers if slot.waits and child is None else ()
    call = slot.call
    suffix = f"/{child['interrupt_id']}" if child is not None else f".{len(answers)}" if answers else ""
    return PendingInterrupt(interrupt_id=call.id + suffix, call=call, request=request, answers=answers, child=child)


def take_answers(run: Run, answers: dict[str, Any], *, perform: bool) -> list[tuple[PendingInterrupt, ...]]:
    """The calls that go on, each with its interrupts (several only where a child run asked several things).

    Args:
        run: the paused run.
        answers: by interrupt id; the id ``""`` means the only one there is.
        perform: calls without an answer are performed, too, unless they do nothing but ask.

    Raises:
        NotPaused: nothing waits, an id is unknown, or a bare answer could belong to several calls.
    """
    waiting = {waits.interrupt_id: waits for waits in run.state.interrupts}
    if not waiting:
        raise NotPaused(f"{where(run)} is not paused: there is nothing to answer")
    known = ", ".join(waiting)
    if "" in answers:
        if len(waiting) > 1:
            raise NotPaused(f"{where(run)} waits for {len(waiting)} answers: say which one is meant, of {known}")
        answers = {next(iter(waiting)): answers[""]}
    unknown = sorted(set(answers) - set(waiting))
    if unknown:
        raise NotPaused(f"{where(run)} does not wait for {', '.join(unknown)}; it waits for {known}")
    goes_on: dict[str, list[PendingInterrupt]] = {}
    for key, waits in waiting.items():
        if key in answers:
            goes_on.setdefault(waits.call.id, []).append(waits.evolve(answers=(*waits.answers, answers[key])))
        elif perform and not waits.request.answers:
            goes_on.setdefault(waits.call.id, []).append(waits)
    left = tuple(waits for waits in run.state.interrupts if waits.call.id not in goes_on)
    run.state = run.state.evolve(turn=run.state.turn.evolve(interrupts=left))
    return [tuple(waits) for waits in goes_on.values()]


def tell_pause(run: Run) -> None:
    """The last events of a paused segment: one for every question."""
    for waits in run.state.interrupts:
        request = waits.request
        run.emit(
            InterruptEvent,
            question=request.question,
            options=request.options,
            fields=request.fields,
            interrupt_id=waits.interrupt_id,
            metadata=request.metadata,
        )


def listed(interrupts: Iterable[PendingInterrupt]) -> tuple[dict[str, Any], ...]:
    """Questions as callers see them."""
    return tuple(
        {
            "interrupt_id": waits.interrupt_id,
            "tool_name": waits.call.name,
            "tool_call_id": waits.call.id,
            "arguments": waits.call.arguments,
            **waits.request.model_dump(mode="json"),
        }
        for waits in interrupts
    )
