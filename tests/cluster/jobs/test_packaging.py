from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from umbel.cluster.jobs import packaging
from umbel.cluster.jobs.packaging import check_excludes, check_folder, copy_package
from umbel.protocol.errors import ConfigurationError


def test_the_copy_is_the_package_and_nothing_else(tmp_path: Path) -> None:
    copy = copy_package(tmp_path)
    assert copy == tmp_path / "umbel"
    assert {"actors", "cluster", "patterns", "protocol", "__init__.py", "__main__.py", "py.typed"} <= {
        entry.name for entry in copy.iterdir()
    }
    assert not {"tests", ".git", "Makefile", "README.md", "build"} & {entry.name for entry in copy.iterdir()}
    assert not list(copy.rglob("*.pyc"))
    code = "import umbel, umbel.cluster.fleet; print(umbel.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == str(copy / "__init__.py")


def test_a_folder_is_measured_without_what_ray_leaves_out(tmp_path: Path) -> None:
    for name, size in {
        "a.py": 10,
        "b.bin": 1000,
        "data/c.jsonl": 100,
        "data/d.tmp": 5000,
        ".git/x": 7000,
        "kept/.venv2": 1,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / ".rayignore").write_text("*.bin\n")
    (tmp_path / "data" / ".gitignore").write_text("*.tmp\n")
    small = sum((tmp_path / name).stat().st_size for name in (".rayignore", "data/.gitignore"))
    assert check_folder(tmp_path) == 10 + 100 + 1 + small
    assert check_folder(tmp_path, ["data"]) == 10 + 1 + (tmp_path / ".rayignore").stat().st_size


def test_files_that_the_job_needs_must_be_sent(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "tasks.jsonl").write_text("{}")
    (work / ".gitignore").write_text("*.jsonl\n")
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tasks.jsonl, which is left out by .gitignore"):
        check_folder(work, needed=[work / "tasks.jsonl"])
    with pytest.raises(ConfigurationError, match=r"other.jsonl, which is outside the working directory"):
        check_folder(work, needed=[tmp_path / "other.jsonl"])
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        check_folder(tmp_path / "nowhere")


def test_a_folder_that_is_too_large_names_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "MAX_BYTES", 2**20)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "big.bin").write_bytes(b"x" * 3 * 2**20)
    (tmp_path / "small.py").write_text("")
    with pytest.raises(ConfigurationError, match=r"has 3 MiB and Ray takes 1; largest are corpus \(3 MiB\).*\.rayignore"):
        check_folder(tmp_path)


def test_excludes_must_not_hit_umbel_itself() -> None:
    check_excludes(["data", "*.bin", "/results.jsonl"])
    with pytest.raises(ConfigurationError, match="'cluster' would also leave out umbel/cluster"):
        check_excludes(["cluster"])
