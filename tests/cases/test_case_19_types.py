"""Case 19: a value that would come back as another one is refused where it comes in, by its path."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Hook, Runtime
from umbel.errors import NotStorable
from umbel.testing import ScriptedModel, text

pytestmark = pytest.mark.case(19)


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int = 1


STRANGE = [Colour.RED, Point(), b"bytes", datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.10"), {1}, float("nan")]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("way", ["metadata of a run", "a hook", "update_state"])
async def test_a_value_that_would_change_is_refused(tmp_path: Path, way: str, value: Any) -> None:
    class Notes(Hook):
        async def on_before_invocation(self, prompt: str, state: Any) -> Any:
            return state.with_metadata("a", {"b": [0, value]}) if way == "a hook" else None

    agent = Agent(ScriptedModel([text("ok")]), hooks=[Notes()], checkpointer=f"sqlite:///{tmp_path}/t.db")
    note = {"a": {"b": [0, value]}}
    async with Runtime(inline=True) as runtime:
        plain = Agent(ScriptedModel([text("ok")]), checkpointer=agent.config.checkpointer)
        await plain.arun("go", thread_id="t", runtime=runtime)
        given = note if way == "metadata of a run" else {}
        call: Any = (
            agent.update_state("t", metadata=note, runtime=runtime)
            if way == "update_state"
            else agent.arun("go", thread_id="t", metadata=given, runtime=runtime)
        )
        with pytest.raises(NotStorable) as raised:
            await call
        assert "a.b[1]" in raised.value.message
        state = await plain.get_state("t", runtime=runtime)
        assert "a" not in state.metadata
