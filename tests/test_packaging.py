from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import umbel

ROOT = Path(__file__).resolve().parent.parent
NOT_SHIPPED = {"tests", "build", "dist", "out"}

IMPORT_EVERYTHING_PUBLIC = """
import importlib, json, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
import umbel
for name in umbel.__all__:
    getattr(umbel, name)
importlib.import_module("umbel.testing")
assert callable(importlib.import_module("umbel.cluster.cli.main").main)
loaded = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "umbel"}
elsewhere = {name: file for name, file in loaded.items() if not str(file).startswith(folder)}
assert not elsewhere, f"not in the wheel, taken from the checkout: {elsewhere}"
print(umbel.__version__)
"""

FIND_LEAKS = """
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is not None])
"""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_folders() -> Iterator[Path]:
    """Every folder with an ``__init__.py`` that is part of the package, relative to the root."""
    for folder, below, files in os.walk(ROOT):
        at_root = Path(folder) == ROOT
        below[:] = [name for name in below if not name.startswith(".") and not (at_root and name in NOT_SHIPPED)]
        if "__init__.py" in files:
            yield Path(folder).relative_to(ROOT)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy: a build in the checkout would leave files there, or pick up old ones."""
    source, target = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", *NOT_SHIPPED)
    shutil.copytree(ROOT, source, ignore=ignored)
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", "-qq", *offline, "-w", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("umbel-*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(target / "unpacked")
    return target / "unpacked"


def test_the_package_list_names_every_package_folder() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(".".join(("umbel", *folder.parts)) for folder in package_folders())
    assert listed == sorted(listed)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    modules = {path for folder in package_folders() for path in (ROOT / folder).glob("*.py")}
    shipped = {path.relative_to(wheel / "umbel") for path in (wheel / "umbel").rglob("*") if path.is_file()}
    deploy = ROOT / "cluster" / "deploy"
    beside = {ROOT / "py.typed", deploy / "Dockerfile", *deploy.glob("kubernetes/*.yaml")}
    assert shipped == {path.relative_to(ROOT) for path in modules | beside}
    assert sorted(path.name.partition("-")[0] for path in wheel.iterdir()) == ["umbel", "umbel"]


@pytest.mark.spec("BUG-69")
def test_the_wheel_carries_its_licence_and_version(wheel: Path) -> None:
    (info,) = wheel.glob("*.dist-info")
    metadata = (info / "METADATA").read_text()
    assert f"\nVersion: {umbel.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert (info / "licenses" / "LICENSE").is_file()


def test_every_public_name_imports_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-c", IMPORT_EVERYTHING_PUBLIC, str(wheel)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == umbel.__version__


def test_no_folder_leaks_as_a_top_level_package(tmp_path: Path) -> None:
    names = [folder.parts[0] for folder in package_folders() if len(folder.parts) == 1]
    command = [sys.executable, "-I", "-c", FIND_LEAKS, *names, "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert names
    assert done.stdout.split() == []
