"""Members outside of the runtime, asked over real HTTP on the loopback."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import httpx
import pytest

from umbel import Agent, Runtime, interrupt
from umbel.cluster.fleet import Fleet
from umbel.errors import ConfigurationError, OutcomeUnknown, ToolTimeout
from umbel.patterns.drawing import draw_ascii
from umbel.patterns.functional import entrypoint, step
from umbel.patterns.pipeline import Parallel, Sequential
from umbel.patterns.remote import RemoteMember
from umbel.testing import ScriptedModel, text

from .crashing import copy_of


class Office(BaseHTTPRequestHandler):
    """Answers ``/echo``; ``/flaky`` from the third question on; ``/slow`` when it is told to; ``/stopped`` is no success."""

    asked: list[dict[str, Any]]
    released: threading.Event

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question)
        if self.path == "/slow":
            self.released.wait(20)
        bad = self.path == "/broken" or (self.path == "/flaky" and len(self.asked) < 3)
        body = json.dumps({"answer": question["prompt"].upper()}).encode()
        self.send_response(503 if bad else 200)
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(BrokenPipeError):  # who asked was stopped
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def office() -> Iterator[SimpleNamespace]:
    handler: Any = type("Handler", (Office,), {"asked": [], "released": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", asked=handler.asked, released=handler.released)
    handler.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


asks: list[str] = []


class Clerk(RemoteMember):
    """Asks the office."""

    async def ask(self, prompt: str, *, metadata: Mapping[str, Any]) -> Any:
        asks.append(prompt)
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            body = {"prompt": prompt, "customer": metadata.get("customer")}
            answer = await client.post(self.url, json=body)
            told = answer.raise_for_status().json()
        if "as" in self.options:
            return SimpleNamespace(
                success=self.options["as"] == "success", message=told["answer"], stop_reason="max_iterations"
            )
        return told if self.options.get("whole") else told["answer"]


@pytest.mark.spec("OURS-24")
async def test_it_is_a_member_like_any_other(runtime: Runtime, office: SimpleNamespace) -> None:
    writer = Agent(ScriptedModel([lambda messages: text(f"Written: {messages[-1].content}")]), name="writer")
    result = await Sequential([Clerk(f"{office.url}/echo", name="clerk"), writer]).arun("Ask.", metadata={"customer": 7})
    assert result.final_output == "Written: ASK."
    assert office.asked == [{"prompt": "Ask.", "customer": 7}]
    assert [member.step for member in result.members] == ["0.clerk", "1.writer"]


async def test_it_runs_by_itself_in_fleets_and_in_bodies(office: SimpleNamespace) -> None:
    clerk = Clerk(f"{office.url}/echo")

    @entrypoint
    async def main() -> str:
        return (await step(clerk, "In a body.")).text

    async with Runtime(inline=True) as inline:
        assert (await clerk.arun("Alone.", runtime=inline)).final_output == "ALONE."
        assert (await main.arun("go", runtime=inline)).value == "IN A BODY."
        report = await Fleet(clerk, runtime=inline).run(["a", "b"])
        assert [done.message for done in report.results] == ["A", "B"]


async def test_its_answer_may_be_a_value_or_the_result_of_a_run(office: SimpleNamespace) -> None:
    async with Runtime(inline=True) as inline:
        whole = await Clerk(f"{office.url}/echo", options={"whole": True}).arun("x", runtime=inline)
        good = await Clerk(f"{office.url}/echo", options={"as": "success"}).arun("x", runtime=inline)
        bad = await Clerk(f"{office.url}/echo", options={"as": "failure"}).arun("x", runtime=inline)
    assert (whole.value, good.final_output, good.success) == ({"answer": "X"}, "X", True)
    assert not bad.success and "stopped: max_iterations" in str(bad.error)


@pytest.mark.spec("OURS-25")
async def test_what_keeps_it_from_answering_is_its_failure(office: SimpleNamespace) -> None:
    async with Runtime(inline=True) as inline:
        broken = Clerk(f"{office.url}/broken", name="clerk", retries=1)
        both = Parallel([broken, Clerk(f"{office.url}/echo", name="other")])
        result = await both.arun("x", runtime=inline)
        assert (result.success, result.outputs) == (False, ["", "X"])
        assert "clerk: HTTPStatusError: Server error '503" in str(result.error)
        assert len(office.asked) == 3
        nobody = await Clerk("http://127.0.0.1:1/").arun("x", runtime=inline)
        assert not nobody.success and "ConnectError" in str(nobody.error)


async def test_it_may_ask_a_person_first(office: SimpleNamespace) -> None:
    class Careful(Clerk):
        async def ask(self, prompt: str, *, metadata: Mapping[str, Any]) -> Any:
            return await super().ask(f"{prompt}: {interrupt('Ask them?')}", metadata=metadata)

    async with Runtime(inline=True) as inline:
        both = Sequential([Careful(f"{office.url}/echo")])
        paused = await both.arun("x", runtime=inline)
        assert paused.interrupts[0]["question"] == "Ask them?" and not office.asked
        assert (await both.aresume("yes", result=paused, runtime=inline)).final_output == "X: YES"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_after_a_crash_it_is_asked_again_if_that_is_harmless(
    office: SimpleNamespace, tmp_path: Path, idempotent: bool
) -> None:
    class Crashing(Clerk):
        async def ask(self, prompt: str, *, metadata: Mapping[str, Any]) -> Any:
            if not (tmp_path / "copy.db").exists():
                copy_of(tmp_path / "t.db", tmp_path / "copy.db")
            return await super().ask(prompt, metadata=metadata)

    async with Runtime(inline=True) as inline:
        at: dict[str, Any] = {"url": f"{office.url}/echo", "idempotent": idempotent}
        first = Crashing(**at, checkpointer=f"sqlite:///{tmp_path}/t.db")
        assert (await first.arun("x", thread_id="t", runtime=inline)).final_output == "X"
        again = Crashing(**at, checkpointer=f"sqlite:///{tmp_path}/copy.db")
        result = await again.continue_turn("t", runtime=inline)
    assert (result.success, len(office.asked)) == ((True, 2) if idempotent else (False, 1))
    assert idempotent or isinstance(result.error, OutcomeUnknown)


async def test_retries_and_timeouts(office: SimpleNamespace) -> None:
    async with Runtime(inline=True) as inline:
        flaky = await Clerk(f"{office.url}/flaky", retries=2).arun("x", runtime=inline)
        assert (flaky.final_output, len(office.asked)) == ("X", 3)
        asks.clear()
        slow = await Clerk(f"{office.url}/slow", timeout=0.05, retries=3).arun("x", runtime=inline)
        assert isinstance(slow.error, ToolTimeout) and len(asks) == 1, "whether it was done is unknown"
        again = await Clerk(f"{office.url}/slow", timeout=0.05, retries=1, idempotent=True).arun("x", runtime=inline)
        assert isinstance(again.error, ToolTimeout) and len(asks) == 3


def test_it_is_configured_by_url_and_settings_only() -> None:
    clerk = Clerk("https://clerk.example/ask", options={"tone": "kind"}, timeout=5)
    other = pickle.loads(cloudpickle.dumps(clerk))
    assert (other.url, other.options, other.title) == (clerk.url, {"tone": "kind"}, "clerk.example")
    assert other.tools_by_name["ask"].timeout == 5 and "clerk.example/ask" not in repr(clerk)
    assert draw_ascii(Sequential([clerk])).splitlines()[2] == "`-- clerk.example: pattern -> END"
    for url in ("clerk", "/ask", "https://"):
        with pytest.raises(ConfigurationError, match="is no URL"):
            Clerk(url)
    with pytest.raises(ConfigurationError, match="open connections in ask"):
        Clerk("https://clerk.example", options={"client": object()})
    with pytest.raises(NotImplementedError):
        RemoteMember("https://clerk.example").ask("x", metadata={}).send(None)
