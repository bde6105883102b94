"""What tests need from outside: a missing service is a skip on someone's own machine and a failure in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

PACKAGES = {
    "dot": "graphviz",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "redis-server": "redis-server",
    "node": "nodejs",
}


@pytest.fixture(scope="session")
def require_service() -> Callable[[str], str]:
    """A function that takes a program's name, such as ``redis-server``, and returns its path."""
    return find_service


def find_service(program: str) -> str:
    path = shutil.which(program)
    if path is not None:
        return path
    message = f"{program} is not installed (apt-get install {PACKAGES.get(program, program)})"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message}; .ci/run must install what the tests need", pytrace=False)
    pytest.skip(message)
