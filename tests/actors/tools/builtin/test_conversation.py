"""ask_user and task_complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from umbel import ask_user, task_complete, tool
from umbel.actors.tools.builtin.completion import with_explicit_tools
from umbel.actors.tools.invoke import Asked, invoke
from umbel.protocol.config import TERMINAL_TOOLS

Make = Callable[..., Any]


@pytest.mark.spec("TOOL-31", "TOOL-36", "OURS-2")
@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ({}, None),
        ({"options": None}, None),
        ({"options": "yes, no ,,later"}, ("yes", "no", "later")),
        ({"options": ["a, b", "c"]}, ("a, b", "c")),
        ({"options": " , "}, None),
    ],
)
async def test_ask_user_asks(request_for: Make, options: dict[str, Any], choices: tuple[str, ...] | None) -> None:
    result = await invoke(*request_for(ask_user, question="Which one?", **options))
    assert isinstance(result, Asked)
    assert (result.interrupt.question, result.interrupt.options) == ("Which one?", choices)
    assert result.interrupt.answers, "what the user says is the call's result"


@pytest.mark.spec("TOOL-31")
async def test_ask_user_gives_the_answer(request_for: Make) -> None:
    each, call, context = request_for(ask_user, question="Which one?")
    context.answers = ("the blue one",)
    assert (await invoke(each, call, context)).content == "the blue one"
    assert (await invoke(*request_for(ask_user, question=""))).code == "invalid_arguments"


def test_what_a_model_reads_of_ask_user() -> None:
    assert ask_user.parameters["required"] == ["question"]
    assert set(ask_user.parameters["properties"]) == {"question", "options"}
    assert all(each["description"] for each in ask_user.parameters["properties"].values())


@pytest.mark.spec("TOOL-31")
async def test_task_complete(request_for: Make) -> None:
    assert (await invoke(*request_for(task_complete, summary="All done."))).content == "All done."
    partly = await invoke(*request_for(task_complete, summary="Two of three.", status="partial"))
    assert partly.content == "partial: Two of three."
    assert (await invoke(*request_for(task_complete))).code == "invalid_arguments"
    assert task_complete.name in TERMINAL_TOOLS


@pytest.mark.spec("TOOL-31")
def test_explicit_mode_adds_what_is_not_there() -> None:
    @tool(name="ask_user")
    async def own() -> str:
        return "mine"

    @tool
    async def other() -> None: ...

    assert with_explicit_tools([]) == (task_complete, ask_user)
    assert with_explicit_tools([own, other]) == (own, other, task_complete)
