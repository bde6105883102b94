"""Built-in tools travel to the executor like any other: they pickle, and run on its loop."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from umbel import Runtime, SearchHit, ask_user, get_today_date, task_complete, tool, web_fetch_tool, web_search_tool
from umbel.actors.tools.builtin.dates import today_tool
from umbel.actors.tools.builtin.discovery import tool_search_for

from ..executors import executor_of


class Engine:
    def search(self, query: str, max_results: int) -> list[SearchHit]:
        return [SearchHit(url="http://a", title=query)]


@tool(deferred=True)
def send_invoice() -> None:
    """Sends an invoice."""


@pytest.mark.spec("TOOL-31", "TOOL-34", "TOOL-28", "TOOL-35")
async def test_every_built_in_tool(runtime: Runtime) -> None:
    finder = tool_search_for([send_invoice])
    assert finder is not None
    fixed = datetime(2024, 2, 29, tzinfo=UTC)
    tools = [ask_user, task_complete, today_tool(lambda: fixed), web_search_tool(Engine()), web_fetch_tool(), finder]
    async with executor_of(runtime, *tools, send_invoice) as execute:

        async def result(name: str, **arguments: Any) -> Any:
            return (await execute(next(each for each in tools if each.name == name), arguments)).result

        asked = await execute(ask_user, {"question": "Now?", "options": "yes,no"})
        assert asked.interrupt is not None and asked.interrupt.answers and asked.interrupt.options == ("yes", "no")
        assert (await execute(ask_user, {"question": "Now?"}, "yes")).result.content == "yes"
        assert (await result("task_complete", summary="done")).content == "done"
        assert json.loads((await result(get_today_date.name)).content)["today"] == "2024-02-29"
        assert (await result("web_search", query="umbel")).content == "1. umbel\nhttp://a"
        assert (await result("web_fetch", url="http://127.0.0.1/")).code == "fetch_refused"
        assert "send_invoice" in (await result("tool_search", query="invoice")).content
