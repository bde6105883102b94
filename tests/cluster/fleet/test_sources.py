from __future__ import annotations

import gzip
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel.cluster.fleet.formats import count_tasks, read_csv
from umbel.cluster.fleet.sources import TaskSource, open_source
from umbel.cluster.fleet.tasks import BadTask, Task
from umbel.protocol.errors import ConfigurationError


async def drain(source: TaskSource) -> list[Any]:
    items = []
    while (item := await source.next()) is not None:
        items.append(item)
    await source.close()
    return items


async def items_of(tasks: Any) -> list[Any]:
    return await drain(open_source(tasks))


async def test_jsonl_lines_become_tasks_in_order(write_tasks: Any) -> None:
    path = write_tasks(
        {"id": "a", "prompt": "one", "metadata": {"k": 1}}, "", {"id": 7, "prompt": "two", "team": "x"}, {"prompt": "three"}
    )
    tasks = await items_of(path)
    assert [(task.id, task.prompt, task.metadata) for task in tasks] == [
        ("a", "one", {"k": 1}),
        ("7", "two", {"team": "x"}),
        ("line-4", "three", {}),
    ]
    assert tasks[1].where == f"{path}:3"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{broken", "not JSON"),
        ("[1, 2]", "found a list"),
        ("{}", "field 'prompt': missing (there is nothing)"),
        ('{"question": "q"}', "rename 'question' to 'prompt'"),
        ('{"promt": "q"}', "rename 'promt' to 'prompt'"),
        ('{"prompt": 42}', "field 'prompt': expected text, found a number"),
        ('{"prompt": "  "}', "field 'prompt': expected text, found empty text"),
        ('{"id": 1.5, "prompt": "q"}', "field 'id': expected text or a whole number, found a number"),
        ('{"id": true, "prompt": "q"}', "found true or false"),
        ('{"prompt": "q", "metadata": [1]}', "field 'metadata': expected an object, found a list"),
        ("[" * 100_000, "nested too deep"),
    ],
)
async def test_a_bad_line_names_file_line_field_and_what_to_do(write_tasks: Any, line: Any, expected: Any) -> None:
    path = write_tasks({"id": "a", "prompt": "fine"}, line, {"id": "c", "prompt": "fine"})
    first, bad, last = await items_of(path)
    assert isinstance(bad, BadTask)
    assert str(bad).startswith(f"{path}:2: ")
    assert expected in str(bad)
    assert (first.id, last.id) == ("a", "c")


async def test_text_that_is_not_utf8_is_one_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n{"prompt": "\xff\xfe"}\n{"prompt": "fine"}\n')
    kinds = [type(item) for item in await items_of(path)]
    assert kinds == [Task, BadTask, Task]


async def test_byte_order_mark_line_separators_and_lone_surrogates_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a\xe2\x80\xa8b"}\r\n{"id": "\\ud83d", "prompt": "\\ud83d\\ude00"}')
    first, second = await items_of(path)
    assert first.prompt == "a\u2028b"
    assert (second.id, second.prompt) == ("\ufffd", "😀")


async def test_a_line_without_end_is_skipped_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.cluster.fleet.formats.MAX_LINE_BYTES", 100)
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 1000}) + '\n{"id": "b", "prompt": "fine"}\n')
    long, fine = await items_of(path)
    assert "over 100 bytes" in str(long)
    assert (fine.id, fine.where) == ("b", f"{path}:2")


async def test_gzip_is_read_and_a_cut_file_says_so_after_what_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    data = gzip.compress(b"".join(b'{"prompt": "%d %s"}\n' % (n, os.urandom(20).hex().encode()) for n in range(5000)))
    path.write_bytes(data)
    assert len(await items_of(path)) == 5000
    path.write_bytes(data[: len(data) // 2])
    items = await items_of(path)
    assert 100 < len(items) < 5000
    assert isinstance(items[-1], BadTask)
    assert "cannot be read from here on" in str(items[-1])
    assert not any(isinstance(item, BadTask) for item in items[:-2])  # the line that was cut may be bad too


async def test_csv_columns_other_than_id_and_prompt_are_metadata(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text('\ufeffid,prompt,team\n1,"say ""hi"",\nplease",x\n,next,y\n')
    first, second = await items_of(path)
    assert (first.id, first.prompt, first.metadata) == ("1", 'say "hi",\nplease', {"team": "x"})
    assert (second.id, second.metadata, second.where) == ("line-4", {"team": "y"}, f"{path}:4")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("id,question", "rename 'question' to 'prompt'"),
        ("id;prompt", "separated by ';'"),
        ("prompt,id,prompt", "column 'prompt' is there twice"),
    ],
)
async def test_a_wrong_csv_header_is_refused_before_work(tmp_path: Path, header: Any, expected: Any) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text(f"{header}\n1,2\n")
    with pytest.raises(ConfigurationError, match=f"{path}:1: .*{expected}"):
        await open_source(path).check()


async def test_bad_csv_rows_harm_no_others(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(b'id,prompt\n1,fine\n2,too,many\n3,\xff\n4,"quote"broken\n5\n6,fine\n')
    items = await items_of(path)
    assert [item.id for item in items if isinstance(item, Task)] == ["1", "6"]
    problems = [str(item) for item in items if isinstance(item, BadTask)]
    assert [problem.split(": ")[0] for problem in problems] == [f"{path}:{line}" for line in (3, 4, 5, 6)]
    assert "the header has 2" in problems[0]
    assert "not UTF-8" in problems[1]
    assert "not CSV" in problems[2]


async def test_a_long_prompt_in_csv_is_read() -> None:
    stream = io.BytesIO(b"prompt\n" + b"x" * 1_000_000 + b"\n")
    (task,) = read_csv(stream, "tasks.csv")
    assert isinstance(task, Task)
    assert len(task.prompt) == 1_000_000


async def test_iterables_and_async_iterables_of_text_mappings_and_tasks() -> None:
    values = ["one", {"id": "b", "prompt": "two"}, Task(id="c", prompt="three"), 4]

    async def stream() -> AsyncIterator[Any]:
        for value in values:
            yield value

    for tasks in (values, tuple(values), iter(values), stream()):
        one, two, three, four = await items_of(tasks)
        assert [one.id, two.id, three.id] == ["task-1", "b", "c"]
        assert str(four) == 'task 4: expected an object {"id": ..., "prompt": ...}, found a number'


async def test_a_generator_is_read_only_as_far_as_needed() -> None:
    taken = []

    def endless() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            taken.append(number)
            yield f"task {number}"

    source = open_source(endless())
    await source.check()
    for _ in range(3):
        await source.next()
    assert len(taken) <= 4


async def test_an_error_of_the_iterable_ends_the_source_and_is_kept() -> None:
    def broken() -> Iterator[str]:
        yield "one"
        raise LookupError("no more rows")

    source = open_source(broken())
    assert len(await drain(source)) == 1
    assert isinstance(source.error, LookupError)


async def test_standard_input_gives_each_line_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        source = open_source("-")
        pipe.write(b'{"id": "a", "prompt": "one"}\n')
        assert getattr(await source.next(), "id", None) == "a"
        pipe.write(b'{"id": "b", "prompt": "two"}\n')
        assert getattr(await source.next(), "id", None) == "b"
        pipe.close()
        assert await source.next() is None
        await source.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing.jsonl", "No such file"),
        ("tasks.json", "jq -c"),
        ("tasks.xlsx", r"\.jsonl, \.csv .* or \.parquet"),
        ("tasks", r"\.jsonl, \.csv .* or \.parquet"),
        ("tasks.parquet", "check the path"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_with_advice(tmp_path: Path, name: Any, expected: Any) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        await open_source(tmp_path / name).check()


@pytest.mark.parametrize("tasks", [3, None, {"prompt": "one task"}, b"tasks.jsonl"])
def test_values_that_are_no_tasks_are_refused(tasks: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a path"):
        open_source(tasks)


def test_counting_ignores_blank_lines_and_gives_up_on_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b"}')
    assert count_tasks(path) == 2
    table = tmp_path / "tasks.csv"
    table.write_text('prompt\n"two\nlines"\nnext\n')
    assert count_tasks(table) == 2
    monkeypatch.setattr("umbel.cluster.fleet.formats.COUNT_LIMIT_BYTES", 10)
    assert count_tasks(path) is None


async def test_sizes_that_are_known_at_once(write_tasks: Any) -> None:
    assert await open_source(["a", "b"]).count() == 2
    assert await open_source(iter(["a", "b"])).count() is None
    source = open_source(Path(write_tasks({"prompt": "a"})))
    assert await source.count() == 1
    await source.close()
