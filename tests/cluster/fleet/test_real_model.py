"""A fleet against a real model; ``make real-model`` installs it, and ``-m real_model`` asks for this."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = ROOT / ".venv-model/bin/python"


@pytest.mark.real_model
@pytest.mark.timeout(900)
@pytest.mark.skipif(not INSTALLED.exists(), reason="no model is installed: make real-model")
def test_streamed_replies_and_tool_calls_of_a_real_model_come_through_whole() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/perf/real_model.py"), "--tasks", "10", "--runtime", "inline", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["ok"] == found["valid_tool_calls"] == 10
    assert found["tokens_per_s"] > 0
