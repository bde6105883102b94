"""A pytest plugin that records what the tests marked ``@pytest.mark.spec("LOOP-12", ...)`` say, for ``make spec``.

Where pytest-xdist runs the tests in workers, the statements travel with each report, and the first process writes the record.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from ..runtimes import RAY_GROUP
from .catalogue import Proof, read_record, write_record

STATEMENT = "statement"


class SpecRecorder:
    """Collects the outcome of every marked test of this session and merges it into the record."""

    def __init__(self) -> None:
        self.proofs: dict[str, Proof] = {}
        self.collected: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.user_properties += [(STATEMENT, name) for name in statement_ids(item)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = sorted({str(value) for name, value in report.user_properties if name == STATEMENT})
        if ids:
            self._add(plain(report.nodeid), ids, report)

    def _add(self, nodeid: str, ids: list[str], report: pytest.TestReport) -> None:
        earlier = self.proofs.get(nodeid, {"ids": ids, "outcome": "passed"})["outcome"]
        # A test passes only if its set-up, its body and its clean-up do.
        outcome = earlier if report.passed else report.outcome
        self.proofs[nodeid] = {"ids": ids, "outcome": "failed" if "failed" in (earlier, outcome) else outcome}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.collected.add(item.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(map(plain, ids))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly or hasattr(session.config, "workerinput"):
            return
        earlier = read_record()
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            # Everything was looked at, deselected tests too: what is not there any more proves nothing.
            earlier = {nodeid: proof for nodeid, proof in earlier.items() if nodeid in self.collected}
        write_record({**earlier, **self.proofs})


def plain(nodeid: str) -> str:
    """A node id without the group that pytest-xdist appends."""
    return nodeid.removesuffix(f"@{RAY_GROUP}")


def statement_ids(item: pytest.Item) -> list[str]:
    """The statements that ``item`` is marked with, sorted."""
    return sorted({name for marker in item.iter_markers("spec") for name in marker.args})


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SpecRecorder(), "spec-recorder")
