from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .catalogue import ROOT, not_adopted, statements


def known_ids() -> set[str]:
    return {name for ids in statements().values() for name in ids}


def marker_arguments(path: Path) -> Iterator[tuple[int, ast.expr]]:
    """The line and every argument of each ``pytest.mark.spec(...)`` in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.spec":
            yield from ((node.lineno, argument) for argument in node.args)


def marked() -> Iterator[tuple[str, str]]:
    """Every marked statement with the place of its marker."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for line, argument in marker_arguments(path):
            yield f"{path.relative_to(ROOT)}:{line}", str(ast.literal_eval(argument))


def test_every_marked_statement_exists() -> None:
    known = known_ids()
    assert [(place, name) for place, name in marked() if name not in known] == []


def test_no_statement_is_both_proven_and_not_adopted() -> None:
    left_out = not_adopted()
    assert [(place, name) for place, name in marked() if name in left_out] == []


def test_only_known_statements_are_left_out_and_each_has_a_reason() -> None:
    assert not_adopted().keys() - known_ids() == set()
    assert all(reason.strip() for reason in not_adopted().values())


def test_no_statement_is_listed_twice() -> None:
    ids = [name for group in statements().values() for name in group]
    assert len(ids) == len(set(ids))
