"""Which statements of the behaviour contract have a passing test: ``make spec``, after ``make test``."""

from __future__ import annotations

import sys
import textwrap

from .catalogue import RECORD, not_adopted, proven, read_record, statements


def main() -> int:
    """Print the table and the statements without a test; 2 if no test run was recorded."""
    if not RECORD.exists():
        print("no recorded test run: `make test` first", file=sys.stderr)
        return 2
    done, left_out = proven(read_record()), not_adopted().keys()
    open_ids = {name: [i for i in ids if i not in done and i not in left_out] for name, ids in statements().items()}
    _print_table(done, set(left_out), open_ids)
    for name, ids in open_ids.items():
        if ids:
            print(f"\n{name}: without a passing test ({len(ids)})")
            print(textwrap.fill(" ".join(ids), 112, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
    return 0


def _print_table(done: set[str], left_out: set[str], open_ids: dict[str, list[str]]) -> None:
    row = "{:<24} {:>10} {:>8} {:>12} {:>6}"
    print(row.format("file", "statements", "proven", "not adopted", "open"))
    totals = [0, 0, 0, 0]
    for name, ids in statements().items():
        counts = [len(ids), len(done.intersection(ids)), len(left_out.intersection(ids)), len(open_ids[name])]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        print(row.format(name, *counts))
    print(row.format("all", *totals))


if __name__ == "__main__":
    sys.exit(main())
