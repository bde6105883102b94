"""Recovery: a supervisor died over a run, and its caller has sent the same request again. Source: OURS-1, OURS-15.

Every checkpoint says which segment wrote it (``segment``: the id of the request), and the last one how the segment ended
(``ending``). So there are three cases:

    ended        only its outcome was lost: it is rebuilt from what is stored, and nothing runs
    in between   the turn goes on with its id, its counters and its clock; of open calls the journal decides (``journal.py``)
    nothing      the segment begins as if it had not been tried

The caller's events go on behind the last one that it has seen; the first of them is a ``CustomEvent`` named ``recovered``
that says which case it was. Hooks that look at the end of a run are not called again for an outcome that is rebuilt.
"""

from __future__ import annotations

from typing import Any

from ...protocol.commands import CheckpointLoaded, HistoryWanted
from ...protocol.errors import StaleWriter, UmbelError, from_wire
from ...protocol.events import CustomEvent
from ...protocol.results import RunOutcome
from .run import Run
from .structured import is_answer, parse_or_repair
from .terminate import finish, tell_end
from .thread import begin_segment, open_thread, take_up, where
