from __future__ import annotations

import json
from pathlib import Path

import pytest

from umbel.cluster import demo
from umbel.protocol.errors import ToolError

SOURCE = '''
class Empty:
    pass


def short():
    """Documented."""
    try:
        pass
    except (ValueError, Exception):  # TODO: be precise
        pass
    except:
        pass


async def long():
    a = 1
    # FIXME
    return a + 2


try:
    pass
except ValueError:
    pass
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(demo, "standard_library", lambda: tmp_path)
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    return str(path)


def test_there_is_enough_real_work() -> None:
    tasks = list(demo.review_tasks())
    assert len(tasks) >= 200
    assert len({task["id"] for task in tasks}) == len(tasks)
    assert {"json/decoder.py", "argparse.py"} <= {task["id"] for task in tasks}
    assert len(list(demo.review_tasks(7))) == 7


def test_a_module_is_measured(module: str) -> None:
    assert demo.measure_module(module) == {
        "lines": SOURCE.count("\n") + 1,
        "functions": 2,
        "classes": 1,
        "missing_docstrings": 3,
        "broad_excepts": 2,
        "longest_function": {"function": "short", "start_line": 6, "end_line": 13, "length": 8},
    }


def test_todos_are_listed(module: str) -> None:
    assert demo.list_todos(module) == {"todo_count": 2, "todos": ["10: TODO: be precise", "18: FIXME"]}


def test_source_is_read_and_bounded(module: str) -> None:
    assert demo.read_source(module, 2, 3) == "class Empty:\n    pass"
    assert len(demo.read_source(str(Path(module)), 1, 10**9).splitlines()) <= demo.MAX_SOURCE_LINES


def test_tools_read_nothing_but_the_standard_library() -> None:
    for path in ("/etc/passwd", f"{demo.standard_library()}/../../../../../../../etc/passwd", __file__):
        with pytest.raises(ToolError, match="is not in the standard library"):
            demo.read_source(path, 1, 2)


def test_the_summary_comes_out_of_the_results_file(tmp_path: Path) -> None:
    def line(name: str, status: str = "ok", **review: object) -> str:
        return json.dumps({"id": name, "status": status, "message": json.dumps(review)}) + "\n"

    results = tmp_path / "results.jsonl"
    long = {"function": "f", "start_line": 1, "end_line": 9, "length": 9}
    results.write_text(
        line("a.py", lines=10, functions=1, broad_excepts=0, todo_count=2, longest_function=long)
        + line("b.py", lines=5, broad_excepts=3)
        + line("c.py", status="failed", lines=1000)
    )
    summary = demo.summarise(results)
    assert summary.modules == 2
    assert summary.totals["lines"] == 15
    assert summary.longest == (demo.Finding("a.py", "f", 9),)
    assert [finding.module for finding in summary.broadest] == ["b.py"]
    assert [finding.amount for finding in summary.todos] == [2]
