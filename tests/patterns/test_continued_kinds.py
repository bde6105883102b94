"""Every kind of pattern goes on where a process died: at any effect of a member three patterns deeper.

The kinds are those of ``test_matrix.py``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, loop, parallel, sequential, tool
from umbel.patterns.pattern import Pattern
from umbel.testing import ScriptedModel, text, tool_call

from .crashing import Effects
from .programs import new_runtime, says
from .test_matrix import KINDS


def deep(effects: Effects) -> Pattern:
    """A member that does two things which must not be done twice."""

    @tool
    async def act(what: str) -> str:
        """Do something."""
        effects.add(what)
        return what

    subject = Agent(ScriptedModel([tool_call("act", what="x"), tool_call("act", what="y"), text("subject is done")]), [act])
    inner = parallel({"beside": says("beside"), "subject": subject}, name="inner")
    return sequential(says("before"), loop(inner, until=bool, name="middle"), name="outer")


class Crashing(Effects):
    """Keeps what a process would leave that dies before, and right after, each effect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.points: list[tuple[str, list[str]]] = []

    def add(self, what: str) -> None:
        self.points.append(self.crash())
        super().add(what)
        self.points.append(self.crash())


@pytest.mark.case(15)
@pytest.mark.spec("OURS-1", "OURS-18", "OURS-24")
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_another_process_goes_on(kind: str, tmp_path: Path) -> None:
    effects = Crashing(tmp_path)
    async with new_runtime():
        whole: Any = await KINDS[kind](deep(effects), checkpointer=effects.store).arun("Go.", thread_id="t")
    assert whole.success, whole.error
    expected = Counter(effects.done)
    for number, (store, done) in enumerate([*effects.points[:4], *effects.points[4:][-1:]]):
        after = Effects(tmp_path / f"after-{number}")
        after.folder.mkdir()
        async with new_runtime():
            result: Any = await KINDS[kind](deep(after), checkpointer=store).continue_turn("t")
        assert result.success, (number, result.error)
        total = Counter(done) + Counter(after.done)
        assert not total - expected, f"{number}: done twice: {total - expected}"
        assert (expected - total).total() <= 1, f"{number}: lost: {expected - total}"
        assert result.final_output == whole.final_output and len(result.members) == len(whole.members)
