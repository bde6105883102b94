"""The example fleet, and the YAML of ``docs/fleets.md``: run as a user runs it, in another folder, offline."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from umbel import Fleet, Runtime
from umbel.cluster.fleet import FleetSpec

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "fleet"
DOCUMENT = (ROOT / "docs" / "fleets.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("out", "__pycache__"))
    tickets = [{"prompt": f"Look up the order with order_id=482{n}.", "metadata": {"urgency": n}} for n in range(1, 4)]
    (tmp_path / "tickets.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in tickets))
    (tmp_path / "notes").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "notes" / f"{name}.md").write_text("Look up the order with order_id=4821.")
    return tmp_path


def run(path: Path) -> Any:
    with Runtime(inline=True) as runtime:
        return Fleet.from_spec(path, runtime=runtime).run_sync()


def test_the_example(folder: Path) -> None:
    report = run(folder / "fleet.yaml")
    assert (report.ok, report.exit_code) == (4, 0)
    results = [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]
    assert {one["id"]: one["message"] for one in results}["t-2"] == "look_up_order(order_id=4822): order 4822: lost in transit."


@pytest.mark.parametrize(("number", "count"), [(0, 3), (1, 2), (2, 3)])
def test_the_yaml_of_the_document_runs(folder: Path, number: int, count: int) -> None:
    path = folder / f"document-{number}.yaml"
    path.write_text(BLOCKS[number])
    report = run(path)
    assert (report.ok, report.total) == (count, count)


def test_the_document_names_every_field() -> None:
    assert len(BLOCKS) == 3
    table = DOCUMENT.split("## The file")[1].split("## Tasks")[0]
    named = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(FleetSpec.model_fields) - {"folder"}


def test_the_example_uses_fields_that_the_document_has() -> None:
    assert set(yaml.safe_load((EXAMPLE / "fleet.yaml").read_text())) <= set(FleetSpec.model_fields)
