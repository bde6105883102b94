from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from umbel.actors.sharing import Share, current_share
from umbel.cluster.fleet import Fleet, TaskInput
from umbel.cluster.fleet.priority import LOOK_AHEAD
from umbel.cluster.fleet.sources import open_source
from umbel.cluster.fleet.tasks import BadTask, Task
from umbel.protocol.errors import ConfigurationError


async def read(tasks: Any, *, sample: int | None = None, seed: int | None = None, priority: str | None = None) -> list[Any]:
    source = open_source(tasks)
    if sample is not None or seed is not None:
        source.reorder(sample=sample, seed=seed)
    if priority is not None:
        source.prefer(priority)
    items = []
    while (item := await source.next()) is not None:
        items.append(item)
    await source.close()
    if source.error is not None:
        raise source.error
    return items


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = {"key": [1, 2, 3], "question": ["why", None, "who"], "price": [Decimal("1.5")] * 3, "day": [date(2026, 12, 1)] * 3}
    path = tmp_path / "tasks.parquet"
    parquet.write_table(pa.table(rows), path, row_group_size=2)
    return path


async def test_parquet_rows_are_tasks_with_columns_as_told(table: Path) -> None:
    first, second, third = await read(TaskInput(path=str(table), id="key", prompt="question"))
    assert first == Task(id="1", prompt="why", metadata={"price": "1.5", "day": "2026-12-01"}, where=f"{table}, row 1")
    assert isinstance(second, BadTask)
    assert str(second).startswith(f"{table}, row 2: field 'prompt': expected text, found null; say there what")
    assert third.id == "3"
    assert await open_source(table).count() == 3
    (one, _, _) = await read(TaskInput(path=str(table), id="key", prompt=("question", "day")))
    assert (one.prompt, one.metadata) == ({"question": "why", "day": "2026-12-01"}, {"price": "1.5"})


async def test_parquet_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    parquet.write_table(pa.table({"prompt": [str(n) for n in range(2_000)]}), path, row_group_size=100)
    assert [item.prompt for item in await read(path)] == [str(n) for n in range(2_000)]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match="not a Parquet file"):
        await read(path)


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.csv", "tasks.parquet"])
async def test_a_column_that_is_not_there_is_named(table: Path, name: str) -> None:
    path = table.with_name(name)
    if name.endswith("csv"):
        path.write_text("a,b\n1,2\n")
    elif name.endswith("jsonl"):
        path.write_text('{"a": 1, "b": 2}\n')
    source = open_source(TaskInput(path=str(path), prompt="text"))
    with pytest.raises(ConfigurationError, match="'text': missing"):
        await source.check()
    await source.close()


async def test_columns_of_lines_and_rows(tmp_path: Path) -> None:
    lines = tmp_path / "t.data"
    lines.write_text('{"k": "a", "q": "why", "id": 5, "metadata": {"x": 1}}\n')
    (task,) = await read(TaskInput(path=str(lines), format="jsonl", id="k", prompt="q"))
    assert (task.id, task.prompt, task.metadata) == ("a", "why", {"id": 5, "x": 1})
    rows = tmp_path / "t.csv"
    rows.write_text("k,q,metadata\na,why,note\n,how,\n")
    first, second = await read(TaskInput(path=str(rows), id="k", prompt="q"))
    assert (first.id, first.prompt, first.metadata) == ("a", "why", {"metadata": "note"})
    assert second.id == "line-3"


async def test_a_folder_of_texts(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "b").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name, content in {"z.md": b"zed", "b/a.md": b"ay", "b/c.txt": b"no", "big.md": b"x" * 101, "bad.md": b"\xff"}.items():
        (folder / name).write_bytes(content)
    (folder / "empty.md").touch()
    (folder / ".git" / "x.md").write_text("hidden")
    given = TaskInput(path=str(folder), glob="*.md", max_bytes=100)
    items = {item.id: item for item in await read(given)}
    assert list(items) == ["bad.md", "big.md", "empty.md", "z.md", "b/a.md"]
    assert (items["b/a.md"].prompt, items["b/a.md"].metadata) == ("ay", {"path": "b/a.md"})
    assert "over 100 bytes; split the file" in items["big.md"].problem
    assert "not UTF-8" in items["bad.md"].problem and "empty" in items["empty.md"].problem
    assert await open_source(given).count() == 5
    assert [item.id for item in await read(TaskInput(path=str(folder), glob="b/*"))] == ["b/a.md", "b/c.txt"]
    with pytest.raises(ConfigurationError, match="has no file that matches"):
        await read(TaskInput(path=str(folder), glob="*.rst"))


async def test_a_shuffle_is_the_same_for_the_same_seed_and_loses_nothing(write_tasks: Any) -> None:
    path = write_tasks(*({"prompt": f"p{n}"} for n in range(500)), "nonsense")
    once, again, other = [[item.id for item in await read(path, seed=seed)] for seed in (1, 1, 2)]
    plain = [item.id for item in await read(path)]
    assert once == again != other
    assert sorted(once) == sorted(plain) and once != plain
    shuffled = {item.id: item for item in await read(path, seed=1)}
    assert shuffled["line-7"].where == f"{path}:7" and isinstance(shuffled["line-501"], BadTask)


async def test_a_sample_is_random_and_in_order(write_tasks: Any) -> None:
    path = write_tasks(*({"id": n, "prompt": "p"} for n in range(1_000)))
    chosen = [int(item.id) for item in await read(path, sample=50)]
    assert len(set(chosen)) == 50 and chosen == sorted(chosen) and chosen == [int(i.id) for i in await read(path, sample=50)]
    seeds = [[int(item.id) for item in await read(path, sample=50, seed=seed)] for seed in range(20)]
    assert all(one != sorted(one) for one in seeds)
    thirds = Counter(task * 3 // 1_000 for one in seeds for task in one)
    assert all(250 < count < 420 for count in thirds.values())  # 333 expected of 1,000, standard deviation 15
    assert len(await read(path, sample=5_000)) == 1_000


async def test_the_first_line_is_judged_before_it_is_shuffled(write_tasks: Any) -> None:
    source = open_source(write_tasks("nonsense", *({"prompt": "p"} for _ in range(50))))
    source.reorder(sample=None, seed=3)
    with pytest.raises(ConfigurationError, match=":1: not JSON"):
        await source.check()
    await source.close()


async def test_urgent_tasks_come_first_within_a_bounded_look_ahead() -> None:
    taken = 0

    def tasks() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for number in range(3 * LOOK_AHEAD):
            taken += 1
            yield {"id": number, "prompt": "p", "metadata": {"urgency": number % 7 if number % 11 else "high"}}

    source = open_source(list(tasks()))
    source.prefer("metadata.urgency")
    first = [await source.next() for _ in range(100)]
    assert {item.metadata["urgency"] for item in first if isinstance(item, Task)} == {6}
    assert [int(item.id) for item in first if item] == sorted(int(item.id) for item in first if item)
    rest = []
    while (item := await source.next()) is not None:
        rest.append(item)
    everything = [item for item in [*first, *rest] if item is not None]
    assert Counter(int(item.id) for item in everything) == Counter(range(3 * LOOK_AHEAD))
    bad = [item for item in everything if isinstance(item, BadTask)]
    assert (
        len(bad) == len([n for n in range(3 * LOOK_AHEAD) if n % 11 == 0])
        and "expected a number, found 'high'" in bad[0].problem
    )


async def test_looking_ahead_in_a_slow_stream_waits_for_nothing() -> None:
    gate = asyncio.Event()

    async def tasks() -> AsyncIterator[dict[str, Any]]:
        yield {"id": "a", "prompt": "p"}
        await gate.wait()
        yield {"id": "b", "prompt": "p", "urgency": 1}

    source = open_source(tasks())
    source.prefer("metadata.urgency")
    first = await source.next()
    assert first is not None and first.id == "a"
    gate.set()
    second = await source.next()
    assert second is not None and second.id == "b"
    assert await source.next() is None
    await source.close()


async def test_priorities_reach_the_agent_in_order(make_agent: Any) -> None:
    agent = make_agent()
    tasks = [{"prompt": str(n), "metadata": {"urgency": n % 3}} for n in range(9)]
    await Fleet(agent, concurrency=1, priority="metadata.urgency").run(tasks)
    assert agent.prompts == ["2", "5", "8", "1", "4", "7", "0", "3", "6"]


async def test_urgency_and_weight_are_the_share_that_runs_claim_of_rate_limits(make_agent: Any) -> None:
    shares = {}

    def reply(prompt: str, attempt: int) -> Any:
        shares[prompt] = current_share()
        return type(agent).reply(prompt, attempt)

    agent = make_agent()
    agent.reply = reply
    tasks = [{"prompt": str(n), "metadata": {"urgency": n}} for n in range(2)]
    await Fleet(agent, name="urgent", weight=2, priority="metadata.urgency").run(tasks)
    assert shares == {str(n): Share(fleet="urgent", weight=2, priority=n) for n in range(2)}
    await Fleet(agent).run(["x"])
    assert shares["x"] is None


@pytest.mark.parametrize("given", [{}, {"path": "a", "ray": "m:f"}])
def test_an_input_has_one_place(given: Any) -> None:
    with pytest.raises(ValueError, match="expected one of path"):
        TaskInput(**given)
