"""Tasks of a fleet that is resumed: what their threads hold is gone on with, so that nothing is paid for twice."""

from __future__ import annotations

from typing import Any

from ...actors.charter import Charter, chartered
from ...protocol.errors import ConfigurationError
from .tally import Attempts

_MAX_THREADS = 100
_OPEN = frozenset({"cancelled", "suspended", "interrupted"})


async def taken_up(agent: Any, thread: str, attempts: Attempts, charter: Charter | None, **given: Any) -> tuple[str, Any]:
    """The outcome of a task that an earlier session had begun.

    Its threads are looked at in the order in which attempts begin them. A turn that was cut off goes on; one that succeeded
    gives its stored outcome, and nothing runs, nor does anything for one that waits for a person; one that ended without
    success stays as it is, and the next thread is looked at.

    Args:
        agent: what is run.
        thread: of the task's first attempt.
        attempts: of the task.
        charter: what each of them may spend.
        **given: options of the run.

    Returns:
        The thread that an attempt may begin anew on, and None; or the thread that was taken up, and its outcome.
    """
    if not hasattr(agent, "take_up"):
        return thread, None
    for number in range(1, _MAX_THREADS):
        candidate = thread if number == 1 else f"{thread}#{number}"
        attempts.begin(candidate)
        with chartered(charter and charter.again()):
            outcome = await agent.take_up(candidate, **given)
        if outcome is None:
            return candidate, None
        if outcome.success or outcome.stop_reason in _OPEN:
            return candidate, outcome
        attempts.add(outcome.metrics)
    raise ConfigurationError(f"task {attempts.task.id!r} has {_MAX_THREADS} threads {thread}#...: delete some")
