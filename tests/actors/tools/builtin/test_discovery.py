"""Deferred tools: found by keywords, activated per run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from umbel import Agent, tool
from umbel.actors.tools.builtin.discovery import activated, search, tool_search_for, with_tool_search
from umbel.actors.tools.decorator import Tool
from umbel.actors.tools.invoke import invoke
from umbel.protocol.messages import ToolResult
from umbel.protocol.state import ToolExecution
from umbel.testing import ScriptedModel

Make = Callable[..., Any]


def deferred(name: str, description: str) -> Tool:
    async def body() -> None: ...

    return tool(name=name, description=description, deferred=True)(body)


TOOLS = (
    deferred("send_email", "Sends a message to an address."),
    deferred("read_email", "Reads the inbox."),
    deferred("make_invoice", "Makes an invoice and can send it by email."),
    tool(name="email_now", description="email email email")(lambda: None),
)


def execution(result: ToolResult) -> ToolExecution:
    text = result.content if result.success else None
    return ToolExecution(
        tool_name=result.name, tool_call_id="c", result=text, error=result.error, code=result.code, timestamp=datetime.now(UTC)
    )


@pytest.mark.spec("TOOL-28")
def test_scores() -> None:
    catalogue = {"b_mail": "", "a_mail": "", "c": "mail box", "d_mail": "mail", "mail_box": "mail box", "other": "nothing"}
    assert search("mail", catalogue) == ("d_mail", "mail_box", "a_mail", "b_mail", "c")
    assert search("MAIL, box!", catalogue) == ("mail_box", "d_mail", "a_mail", "b_mail", "c")
    assert search("mail mail mail box", catalogue)[0] == "mail_box", "a repeated word counts once"
    assert search("", catalogue) == search("zebra", catalogue) == ()
    assert search("x", {f"x{n}": "" for n in range(9)}) == ("x0", "x1", "x2", "x3", "x4")


@pytest.mark.spec("TOOL-28")
async def test_a_search_activates_what_it_finds(request_for: Make) -> None:
    finder = tool_search_for(TOOLS)
    assert finder is not None and finder.name == "tool_search"
    result = await invoke(*request_for(finder, query="email send"))
    assert [each["name"] for each in json.loads(result.content)["tools"]] == ["send_email", "read_email", "make_invoice"]
    assert activated([execution(result)]) == {"send_email", "read_email", "make_invoice"}


@pytest.mark.spec("TOOL-28")
async def test_activation_belongs_to_the_run_that_searched(request_for: Make) -> None:
    finder = tool_search_for(TOOLS)
    assert finder is not None
    first = [execution(await invoke(*request_for(finder, query=query))) for query in ("inbox", "invoice")]
    second = [execution(await invoke(*request_for(finder, query="zebra")))]
    assert activated(first) == {"read_email", "make_invoice"}
    assert activated(second) == activated([]) == frozenset()
    assert "other words" in (second[0].result or "")


@pytest.mark.spec("TOOL-28")
@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("other", '{"tools": [{"name": "send_email"}]}', None),
        ("tool_search", None, "failed"),
        ("tool_search", "replaced by a hook", None),
        ("tool_search", '{"tools": ["send_email"]}', None),
        ("tool_search", "[]", None),
    ],
)
def test_nothing_else_activates(name: str, text: str | None, error: str | None) -> None:
    assert activated([ToolExecution(tool_name=name, tool_call_id="c", result=text, error=error)]) == frozenset()


def names(schemas: list[dict[str, Any]]) -> list[str]:
    return [schema["function"]["name"] for schema in schemas]


@pytest.mark.spec("TOOL-28")
async def test_schemas_are_hidden_until_found(request_for: Make) -> None:
    tools = with_tool_search(TOOLS)
    agent = Agent(ScriptedModel([]), list(TOOLS))
    assert names(agent.schemas()) == ["email_now", "tool_search"]
    found = activated([execution(await invoke(*request_for(tools[-1], query="inbox")))])
    assert sorted(names(agent.schemas(found))) == ["email_now", "read_email", "tool_search"]
    assert with_tool_search(tools) == tools, "a tool of that name wins"
    assert with_tool_search(TOOLS[3:]) == TOOLS[3:]


@pytest.mark.spec("TOOL-28")
def test_without_deferred_tools_there_is_no_search() -> None:
    assert tool_search_for(TOOLS[3:]) is None
