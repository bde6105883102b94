"""Fixtures for every test. Ray is started here, once a session; services and the spec record are plugins beside this file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.runtimes", "tests.services", "tests.spec.plugin", "tests.actors.checkpoints.servers"]


@pytest.fixture(scope="session", autouse=True)
def umbel_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Umbel keeps by default (logs, checkpoints) goes into the session's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UMBEL_HOME", str(tmp_path_factory.mktemp("umbel-home")))
        yield
