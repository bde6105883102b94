"""The statements of the behaviour contract and the record of which of them a passing test proves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RECORD = ROOT / ".spec.json"


class Proof(TypedDict):
    """What one test said about the statements that it carries."""

    ids: list[str]
    outcome: str  # passed, failed or skipped


def statements() -> dict[str, list[str]]:
    """The ids of every statement, by the file that states them."""
    return tomllib.loads((HERE / "statements.toml").read_text())


def not_adopted() -> dict[str, str]:
    """The statements that are deliberately not followed, with the reason."""
    return tomllib.loads((HERE / "not_adopted.toml").read_text())


def read_record() -> dict[str, Proof]:
    """The proofs of earlier test runs, by test; empty where there was none."""
    if not RECORD.exists():
        return {}
    record: dict[str, Proof] = json.loads(RECORD.read_text())
    return record


def write_record(record: dict[str, Proof]) -> None:
    """Keep ``record`` for ``make spec``."""
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def proven(record: dict[str, Proof]) -> set[str]:
    """The statements with at least one passing test and no failing one."""
    by_outcome: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for proof in record.values():
        by_outcome[proof["outcome"]].update(proof["ids"])
    return by_outcome["passed"] - by_outcome["failed"]
