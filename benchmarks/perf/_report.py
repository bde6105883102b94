"""What the benchmarks share when they report: bars, their table, progress, and what the figures depend on."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """One bar: what was measured, and what it must be.

    Attributes:
        name: what is compared.
        value: None where the figures for it were not taken.
        limit: what ``value`` must reach, or must not exceed.
        at_least: which of the two.
        needs: the option without which the figures are not taken.
    """

    name: str
    value: float | None
    limit: float
    at_least: bool
    needs: str | None = None

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {"bar": self.name, "value": self.value, "limit": self.limit, "at_least": self.at_least, "holds": self.holds}


def plain_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table without lines; its first ``left`` columns are text, the others figures."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    return table


def verdict(bars: list[Bar]) -> Table:
    """Every bar with its value and whether it holds."""
    table = plain_table("Bars", "", "value", "bar")
    table.add_column("")
    for bar in bars:
        skipped = f"skipped: needs {bar.needs}" if bar.needs else "skipped: not measured"
        word = {True: "[green]ok[/]", False: "[red]FAIL[/]", None: skipped}[bar.holds]
        limit = f"{'>=' if bar.at_least else '<='} {bar.limit:,g}"
        table.add_row(bar.name, "-" if bar.value is None else f"{bar.value:,.2f}", limit, word)
    return table


def console() -> Console:
    """Where tables go: as wide as the terminal, or as a file can take."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def circumstances(**more: Any) -> dict[str, Any]:
    """What the figures depend on."""
    versions = {name: metadata.version(name) for name in ("umbel", "ray", "pydantic")}
    return {**versions, "python": platform.python_version(), "cores": os.cpu_count(), **more}


def one_line(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def say(what: str) -> None:
    """Progress, on a terminal only; the empty text removes it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
