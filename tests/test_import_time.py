from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 0.1
HEAVY = ["ray", "pydantic", "httpx", "redis", "typer", "rich"]

PROBE = """
import json, sys, time
start = time.perf_counter()
import umbel
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def import_umbel(folder: Path) -> Any:
    """Import the package in a fresh, isolated interpreter: seconds, and the modules loaded."""
    done = subprocess.run([sys.executable, "-I", "-c", PROBE], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    assert [name for name in HEAVY if name in import_umbel(tmp_path)["modules"]] == []


def test_importing_the_package_is_fast(tmp_path: Path) -> None:
    assert min(import_umbel(tmp_path)["seconds"] for _ in range(5)) < LIMIT_SECONDS
