from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from umbel.cluster.fleet.ledger import id_hash
from umbel.cluster.fleet.results import TaskResult
from umbel.cluster.fleet.results_file import ResultsFile
from umbel.protocol.errors import ConfigurationError, StoreUnavailable


def line(task_id: str, status: str = "ok") -> str:
    return TaskResult(id=task_id, status=status).line().decode()


async def write(ledger: ResultsFile, *results: TaskResult) -> None:
    for result in results:
        ledger.put(result)
        await ledger.room()
    await ledger.close()


async def test_a_line_has_exactly_the_documented_keys_in_order(out: Any) -> None:
    await write(ResultsFile(out), TaskResult(id="ä", status="ok", message="two\nlines"))
    (text,) = out.read_text().splitlines()
    record = json.loads(text)
    assert list(record) == ["id", "status", "message", "stop_reason", "tokens", "cost_usd", "duration_s", "attempts", "error"]
    assert record["id"] == "ä"


async def test_results_are_in_the_file_while_the_fleet_goes_on(out: Any) -> None:
    ledger = ResultsFile(out)
    ledger.put(TaskResult(id="a", status="ok"))
    writing = ledger._writing
    assert writing is not None
    await writing
    assert out.read_text() == line("a")
    await ledger.close()


async def test_many_results_are_neither_lost_nor_doubled_nor_out_of_order(out: Any) -> None:
    await write(ResultsFile(out), *(TaskResult(id=str(n), status="ok") for n in range(20_000)))
    assert [json.loads(text)["id"] for text in out.read_text().splitlines()] == [str(n) for n in range(20_000)]


def test_an_existing_file_is_refused_unless_asked_otherwise(out: Any) -> None:
    out.write_text(line("a"))
    with pytest.raises(ConfigurationError, match="--resume goes on with it"):
        ResultsFile(out)
    with pytest.raises(ConfigurationError, match="choose one"):
        ResultsFile(out, resume=True, overwrite=True)
    assert out.read_text() == line("a")


async def test_an_empty_file_and_a_missing_folder_are_fine(out: Any, tmp_path: Path) -> None:
    out.touch()
    await write(ResultsFile(out), TaskResult(id="a", status="ok"))
    nested = tmp_path / "a" / "b" / "results.jsonl"
    await write(ResultsFile(nested), TaskResult(id="a", status="ok"))
    assert nested.read_text() == out.read_text() == line("a")


async def test_overwrite_replaces(out: Any) -> None:
    out.write_text("anything\n" * 10)
    await write(ResultsFile(out, overwrite=True), TaskResult(id="b", status="ok"))
    assert out.read_text() == line("b")


async def test_resume_knows_what_is_ok(out: Any) -> None:
    out.write_text(line("a") + line("b", "failed") + line("c", "cancelled"))
    ledger = ResultsFile(out, resume=True)
    assert ledger.done == {id_hash("a")}
    await ledger.close()


@pytest.mark.parametrize("torn", ['{"id": "b", "sta', '{"id": "b"', "\x00\x00\x00"])
async def test_a_torn_last_line_is_cut_off(out: Any, torn: Any) -> None:
    out.write_text(line("a") + torn)
    await write(ResultsFile(out, resume=True), TaskResult(id="c", status="ok"))
    assert out.read_text() == line("a") + line("c")


async def test_a_whole_last_line_without_newline_is_completed(out: Any) -> None:
    out.write_text(line("a") + line("b").rstrip("\n"))
    ledger = ResultsFile(out, resume=True)
    assert id_hash("b") in ledger.done
    await write(ledger, TaskResult(id="c", status="ok"))
    assert out.read_text() == line("a") + line("b") + line("c")


def test_a_file_of_something_else_is_never_touched(out: Any) -> None:
    out.write_text(line("a") + '{"prompt": "my tasks"}\n' + line("b"))
    before = out.read_bytes()
    with pytest.raises(ConfigurationError, match=f"{out}:2: not a result line"):
        ResultsFile(out, resume=True)
    assert out.read_bytes() == before


async def test_lines_that_ran_again_are_dropped_and_the_others_kept(out: Any) -> None:
    out.write_text(line("a") + line("b", "failed") + line("c", "failed") + line("d"))
    out.chmod(0o640)
    await write(ResultsFile(out, resume=True), TaskResult(id="b", status="ok"), TaskResult(id="e", status="failed"))
    assert out.read_text() == line("a") + line("c", "failed") + line("d") + line("b") + line("e", "failed")
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert list(out.parent.iterdir()) == [out]


async def test_lines_doubled_by_a_crash_before_the_clean_up_are_dropped_by_the_next_resume(out: Any) -> None:
    out.write_text(line("a", "failed") + line("b", "failed") + line("a"))
    ledger = ResultsFile(out, resume=True)
    assert ledger.done == {id_hash("a")}
    await ledger.close()
    assert out.read_text() == line("b", "failed") + line("a")


async def test_two_fleets_cannot_write_one_file(out: Any) -> None:
    ledger = ResultsFile(out)
    with pytest.raises(ConfigurationError, match="another fleet is writing"):
        ResultsFile(out, resume=True)
    await ledger.close()
    await ResultsFile(out, resume=True).close()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot write"):
        ResultsFile(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_a_typed_error_that_says_how_to_go_on() -> None:
    ledger = ResultsFile(Path("/dev/full"))
    ledger.put(TaskResult(id="a", status="ok"))
    with pytest.raises(StoreUnavailable, match="No space left on device; free the disk"):
        await ledger.close()
