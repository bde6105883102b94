from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from umbel import Agent, Fleet, Runtime
from umbel.cluster.fleet import TaskInput
from umbel.protocol.errors import ConfigurationError
from umbel.testing import ScriptedModel, text


async def test_a_dataset_needs_a_runtime_on_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    with Runtime(inline=True) as runtime:
        fleet = Fleet(Agent(ScriptedModel([text("x")])), runtime=runtime)
        with pytest.raises(ConfigurationError, match="Ray Data needs a runtime on Ray, this one is inline"):
            await fleet.run(TaskInput(ray="no_such_module:tickets"))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data warns of its own settings
@pytest.mark.parametrize("runtime", ["ray"], indirect=True)
async def test_datasets_are_streamed_from_a_function_or_an_object(
    runtime: Runtime, out: Path, read_results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.data

    def tickets() -> Any:
        return ray.data.from_items([{"key": f"k{n}", "question": f"q{n}", "n": n} for n in range(600)], override_num_blocks=3)

    module = ModuleType("umbel_test_tickets")
    module.tickets = tickets  # type: ignore[attr-defined]
    module.number = lambda: 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umbel_test_tickets", module)
    fleet = Fleet(Agent(ScriptedModel([text("seen")])), runtime=runtime, concurrency=100)
    given = TaskInput(ray="umbel_test_tickets:tickets", id="key", prompt="question")
    report = await fleet.run(given, out)
    assert (report.ok, set(read_results(out))) == (600, {f"k{n}" for n in range(600)})
    objects = await fleet.run(tickets().rename_columns({"question": "prompt"}), limit=3)
    assert (objects.ok, {result.id for result in objects.results}) == (3, {"row-1", "row-2", "row-3"})
    with pytest.raises(ConfigurationError, match="expected a Ray Data dataset, found int"):
        await fleet.run(TaskInput(ray="umbel_test_tickets:number"))
