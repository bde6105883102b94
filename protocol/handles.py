"""What a run's handle asks: of a run that goes on without the caller who began it.

    caller      -> supervisor    BeginRun            -> RunBegun
    caller      -> supervisor    ReadEvents          -> EventsRead       (waits for an event behind the cursor, or the end)
    caller      -> supervisor    AwaitOutcome        -> RunFinished      (waits for the end)
    caller      -> supervisor    ListRuns            -> RunsListed

Every one of them may be sent again after its answer was lost. ``KeptRun`` and ``ToldEvents`` are not sent: a supervisor
keeps them outside its process, for the incarnation after it (``actors/supervisor/register.py``).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from .codec import message_type
from .commands import StartRun
from .messages import NOTHING, Frozen, JsonObject, Text

RunStatus = Literal["running", "finished", "lost"]


class Starting(Frozen):
    """Holds a request.

    Attributes:
        start: the run.
    """

    start: StartRun

    attached = "start"

    def attachment(self) -> bytes | None:
        """The paused state that the run goes on with."""
        return self.start.state

    def with_attachment(self, data: bytes) -> Self:
        """The request with that state."""
        return self.evolve(start=self.start.evolve(state=data))


@message_type
class BeginRun(Starting):
    """Run one turn, whether or not the caller stays. A run with this id that is known already is not begun a second time.

    Attributes:
        recall: the run is stored in its thread: give its outcome, or go on with it from what is stored.
    """

    recall: bool = False


@message_type
class RunBegun(Frozen):
    """It is in progress, or over, and known to whoever asks by its id."""

    run_id: str


@message_type
class ReadEvents(Frozen):
    """Read on in a run's events.

    Attributes:
        run_id: the run.
        after_seq: number of the last event that the reader has, -1 for none; None begins with the oldest that is kept.
    """

    run_id: str
    after_seq: int | None = -1


@message_type
class EventsRead(Frozen):
    """The next events.

    Attributes:
        lines: each as one line of JSON, in order, without a gap.
        ended: no more will come.
    """

    lines: bytes = Field(default=b"", exclude=True)
    ended: bool = False

    attached = "lines"


@message_type
class AwaitOutcome(Frozen):
    """How does the run end?"""

    run_id: str


@message_type
class ListRuns(Frozen):
    """Runs that were begun with a handle: all that are known, or the one with this id."""

    run_id: str | None = None


class RunEntry(Frozen):
    """A run that was begun with a handle.

    Attributes:
        run_id: the run.
        thread_id: its conversation, if it has one.
        agent_name: of its agent, if that has a name.
        status: ``lost`` when the supervisor died over it and it could not be recovered.
        durable: it survives the death of its supervisor.
        seconds: since it began; of one that is over, how long it took.
        first_seq, next_seq: number of the oldest event that is kept, and of the next one that there will be.
    """

    run_id: Text
    thread_id: Text | None = None
    agent_name: Text | None = None
    status: RunStatus = "running"
    durable: bool = False
    seconds: float = 0.0
    first_seq: int = 0
    next_seq: int = 0


@message_type
class RunsListed(Frozen):
    """They, the oldest first."""

    runs: tuple[RunEntry, ...] = ()


@message_type
class KeptRun(Starting):
    """What the next incarnation of a supervisor must know of a run; without what must not be stored (``ephemeral``).

    Attributes:
        began_at: seconds since the epoch, UTC.
        deaths: of supervisors over it, so far.
        over: it has ended, and its outcome is stored.
    """

    began_at: float
    deaths: int = 0
    over: bool = False


@message_type
class ToldEvents(Frozen):
    """The newest events that readers may have seen.

    Attributes:
        last: number of the last of them.
        ended: it is the run's last event.
        heard: of a pattern: what they have heard of its members in progress (``heard.py``).
        lines: each as one line of JSON.
    """

    last: int
    ended: bool = False
    heard: JsonObject = NOTHING
    lines: bytes = Field(default=b"", exclude=True)

    attached = "lines"
