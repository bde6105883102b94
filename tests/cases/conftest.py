from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from umbel import Runtime


@pytest.fixture(scope="session")
def fragile_runtime(ray_cluster: Any) -> Iterator[Runtime]:
    """A runtime with actors of its own, on the session's Ray, whose processes the tests kill."""
    with Runtime().start() as runtime:
        yield runtime
