"""Fixtures for every test. Ray is started here, once a session; services and the spec record are plugins beside this file."""

from __future__ import annotations

pytest_plugins = ["tests.runtimes", "tests.services", "tests.spec.plugin"]
