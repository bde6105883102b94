"""A swarm's board: who may claim what, and how much of what is known is read."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.errors import ConfigurationError
from umbel.patterns.board import Board, task_of


def claims_of(board: Board) -> list[tuple[str, str]]:
    claims = []
    while (claimed := board.claim()) is not None:
        claims.append((claimed[0].id, claimed[1]))
    return claims


def board_of(agents: dict[str, set[str]], *tasks: Any, per_agent: int = 1, holders: dict[str, str] | None = None) -> Board:
    board = Board({name: frozenset(tags) for name, tags in agents.items()}, per_agent, (holders or {}).get)
    for task in tasks:
        board.add(task_of(task))
    return board


@pytest.mark.spec("PAT-18", "PAT-19")
def test_the_highest_priority_that_an_agent_is_able_to_do_goes_first() -> None:
    board = board_of(
        {"ann": {"write"}, "bob": {"search"}, "cid": set()},
        {"description": "low", "priority": 3},
        {"description": "high", "priority": 12, "required": ["search"]},
        {"description": "same as low, later", "priority": 3},
        {"description": "nobody", "priority": 99, "required": ["search", "write"]},
        {"description": "middle", "required": "write"},
    )
    assert claims_of(board) == [("2", "bob"), ("5", "ann"), ("1", "cid")]
    assert [task.description for task in board.unclaimed] == ["nobody", "same as low, later"]


@pytest.mark.spec("PAT-18", "PAT-19")
def test_preferred_capabilities_decide_between_equals() -> None:
    agents = {"ann": {"python"}, "bob": {"python", "tests"}, "cid": {"docs"}}
    one = {"description": "a", "preferred": ["tests", "python"]}
    assert claims_of(board_of(agents, one)) == [("1", "bob")]
    assert claims_of(board_of(agents, "plain", {"description": "for cid", "preferred": ["docs"]}))[0] == ("2", "cid")
    assert claims_of(board_of(agents, {"description": "x", "priority": 11}, one))[0] == ("1", "ann"), "priority comes first"
    assert claims_of(board_of({"ann": set(), "bob": set()}, *"abcd", per_agent=2)) == [
        ("1", "ann"),
        ("2", "bob"),
        ("3", "ann"),
        ("4", "bob"),
    ]


def test_a_task_that_was_claimed_is_kept_for_its_agent() -> None:
    board = board_of({"ann": set(), "bob": set()}, "a", "b", "c", holders={"1": "bob", "2": "bob", "3": "gone"})
    assert claims_of(board) == [("1", "bob"), ("3", "ann")], "task 2 waits for bob; task 3's agent is not there any more"


@pytest.mark.spec("PAT-18")
def test_a_subtask_has_one_less_than_its_parent() -> None:
    board = board_of({"ann": set()}, "first", {"description": "second", "priority": 20})
    second = board.tasks["2"]
    child = board.add(task_of("part"), second)
    assert (board.tasks["1"].priority, second.priority, child.priority) == (10, 20, 19)
    assert (child.id, child.parent, child.generation) == ("2.1", "2", 2)
    assert board.add(task_of("part of a part"), child).id == "2.1.1"
    assert board.add(task_of("another"), second).id == "2.2"


@pytest.mark.parametrize("given", ["", " ", 7, {}, {"description": "x", "urgent": True}, {"description": "x", "priority": "a"}])
def test_what_is_no_task_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="task"):
        task_of(given)


@pytest.mark.parametrize(("limit", "fit"), [(40, 1), (60, 2), (200, 7)])
def test_the_newest_of_what_is_known_fits(limit: int, fit: int) -> None:
    board = board_of({"ann": set()})
    board.findings += [{"task": "1", "agent": "ann", "text": f"finding {number}"} for number in range(10, 30)]
    title, *lines = board.context(limit).splitlines()
    assert title == "Findings:" and lines[0] == "- (older ones are left out)"
    assert lines[1:] == [f"- finding {number} (found by ann)" for number in range(30 - fit, 30)]
    assert board.context(10) == "Findings:\n- finding ", "one that is too long is cut"
    assert len(board.context().splitlines()) == 21
    board.facts["door"] = "blue"
    assert "- door: blue" in board.context(limit), "each kind has its share"
