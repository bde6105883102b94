"""The tools that an agent gets from its settings, used by real runs. On the inline runtime and on Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from umbel import (
    Agent,
    HttpFetcher,
    Message,
    ModelResponse,
    Plugin,
    Runtime,
    SearchHit,
    ask_user,
    get_today_date,
    hook,
    tool,
)
from umbel.errors import ConfigurationError
from umbel.testing import ScriptedModel, text, tool_call, tool_calls


class Shelf:
    """Follows a script, but answers the last turn with the names of the tools that each of its requests offered."""

    def __init__(self, *calls: ModelResponse) -> None:
        self.calls = calls

    async def complete(self, messages: list[Message], tools: Any = None, **settings: Any) -> ModelResponse:
        done = sum(message.role == "assistant" for message in messages)
        offered = ",".join(sorted(each["function"]["name"] for each in tools or ()))
        if done == len(self.calls):
            before = [message.content for message in messages if message.role == "assistant"]
            return text(" | ".join([*(said or "" for said in before), offered]))
        reply = self.calls[done]
        return reply.evolve(message=reply.message.evolve(content=offered))


# asking the user


@pytest.mark.spec("TOOL-36", "TOOL-37", "TOOL-31", "OURS-2")
async def test_ask_user_pauses_and_the_answer_is_its_result(runtime: Runtime) -> None:
    model = ScriptedModel([tool_call("ask_user", question="Which?", options="red, blue"), text("Blue it is.")])
    agent = Agent(model, [ask_user])
    paused = await agent.arun("paint")
    [asked] = paused.interrupts
    assert (asked["question"], asked["options"], asked["tool_name"]) == ("Which?", ["red", "blue"], "ask_user")
    result = await agent.aresume("blue")
    assert result.message == "Blue it is."
    assert [message.content for message in result.messages if message.role == "tool"] == ["blue"]


@pytest.mark.spec("TOOL-31")
async def test_explicit_mode_brings_its_tools_unless_the_agent_has_them(runtime: Runtime) -> None:
    @tool
    async def ask_user(question: str) -> str:
        """Ask the oracle."""
        return f"the oracle says yes to {question}"

    script = [tool_call("ask_user", question="Now?"), tool_call("task_complete", summary="asked")]
    result = await Agent(ScriptedModel(script), [ask_user], completion_mode="explicit").arun("go")
    assert result.stop_reason == "terminal_tool"
    assert [done.result for done in result.tool_executions] == ["the oracle says yes to Now?", "asked"]


# deferred tools


@tool(deferred=True)
async def send_invoice(customer: str) -> str:
    """Sends an invoice to a customer."""
    return f"sent to {customer}"


@tool(deferred=True)
async def book_flight(city: str) -> str:
    """Books a flight."""
    return f"booked {city}"


@pytest.mark.spec("TOOL-28")
async def test_a_deferred_tool_is_offered_once_it_was_found_in_this_run(runtime: Runtime) -> None:
    search, use = tool_call("tool_search", query="invoice"), tool_call("send_invoice", customer="Ann")
    agent = Agent(Shelf(search, use), [send_invoice, book_flight])
    for _ in range(2):  # the second run knows nothing of what the first one found
        result = await agent.arun("bill Ann")
        assert result.message == "tool_search | send_invoice,tool_search | send_invoice,tool_search"
        assert result.tool_executions[1].result == "sent to Ann"
    assert "tool_search" in (result.messages[0].content or "")
    unasked = await Agent(ScriptedModel([use, text("ok")]), [send_invoice]).arun("bill Ann")
    assert unasked.tool_executions[0].result == "sent to Ann", "hidden, but registered"


# the web


class Engine:
    """A search engine that knows everything about everything."""

    def search(self, query: str, max_results: int) -> list[SearchHit]:
        return [SearchHit(url=f"http://hit/{number}", title=f"{query} {number}") for number in range(max_results + 3)]


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"<title>Page</title><body><p>You asked for {self.path}</p></body>".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def site() -> Iterator[str]:
    """A web server on the loopback interface."""
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.spec("TOOL-34", "TOOL-35", "API-10")
async def test_web_tools_come_with_their_providers(runtime: Runtime, site: str) -> None:
    calls = tool_calls(("web_search", {"query": "ships", "max_results": 2}), ("web_fetch", {"url": f"{site}/ships"}))
    agent = Agent(ScriptedModel([calls, text("ok")]), web_search=Engine(), web_fetch=HttpFetcher(allow_private=True))
    assert [each.name for each in agent.tools] == ["web_search", "web_fetch"]
    found, page = (await agent.arun("read about ships")).tool_executions
    assert (found.result or "").count("http://hit/") == 2
    assert "You asked for /ships" in (page.result or "") and "Title: Page" in (page.result or "")
    safe = agent.with_settings(web_fetch=HttpFetcher())
    refused = (await safe.arun("read about ships")).tool_executions[1]
    assert refused.code == "fetch_refused" and "not a public address" in (refused.error or "")


@pytest.mark.spec("TOOL-34")
async def test_the_agents_own_tool_wins_over_a_built_in_one(runtime: Runtime) -> None:
    @tool
    async def web_search(query: str) -> str:
        """Search the archive."""
        return f"archive: {query}"

    agent = Agent(ScriptedModel([tool_call("web_search", query="x"), text("ok")]), [web_search], web_search=Engine())
    assert (await agent.arun("go")).tool_executions[0].result == "archive: x"


@pytest.mark.spec("TOOL-34")
async def test_today_is_a_tool_without_arguments(runtime: Runtime) -> None:
    twice = tool_calls(("get_today_date", {}), ("get_today_date", {}))
    result = await Agent(ScriptedModel([twice, text("ok")]), [get_today_date]).arun("when")
    first, second = result.tool_executions
    assert '"weekday"' in (first.result or "") and second.idempotent_cache_hit and second.result == first.result


# plugins


class Ledger(Plugin):
    """A tool, and a hook that looks at every call."""

    def __init__(self) -> None:
        self.agents: list[Any] = []

    def init_agent(self, agent: Any) -> None:
        self.agents.append(agent.name)

    @tool
    async def enter(self, line: str) -> str:
        """Enter a line."""
        return f"entered {line}"

    @hook("on_after_tool_call")
    async def stamp(self, event: Any) -> None:
        event.result = f"{event.result}, stamped"


@pytest.mark.spec("HOOK-31", "HOOK-4", "API-10")
async def test_a_plugin_brings_its_tools_and_its_hooks(runtime: Runtime) -> None:
    plugin = Ledger()
    agent = Agent(ScriptedModel([tool_call("enter", line="one"), text("ok")]), plugins=[plugin], name="clerk")
    assert plugin.agents == ["clerk"] and [each.name for each in agent.tools] == ["enter"]
    assert [done.result for done in (await agent.arun("go")).tool_executions] == ["entered one, stamped"]
    assert plugin.agents == ["clerk"], "running attaches it to no other"
    with pytest.raises(ConfigurationError, match="enter"):
        Agent("openai:x", [plugin.tools[0]], plugins=[Ledger()])
