"""A raw HTTP server that sends exactly the bytes of its script, and a clock that tests drive."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from umbel.actors.agent.models import OpenAICompatibleModel, Timing
from umbel.actors.agent.models.gate import Gate

T = TypeVar("T")
Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    time: float
    connection: int
    reader: asyncio.StreamReader = field(repr=False)


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def json_answer(data: Any, status: int = 200, **headers: str) -> Answer:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        writer.write(head(status, fields | {name.replace("_", "-"): value for name, value in headers.items()}) + body)

    return answer


def event_answer(parts: Sequence[bytes], content_type: str = "text/event-stream", *, end: bool = True) -> Answer:
    """``parts`` as chunks of one response. ``end=False`` drops the connection instead of ending the response."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, {"content-type": content_type, "transfer-encoding": "chunked"}))
        for part in parts:
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        if end:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    return answer


@dataclass
class RawServer:
    url: str = ""
    script: list[Answer] = field(default_factory=list)
    default: Answer | None = None
    requests: list[Request] = field(default_factory=list)
    _connections: itertools.count[int] = field(default_factory=itertools.count)
    _open: dict[asyncio.StreamWriter, asyncio.Task[None]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(self._connections)
        task = asyncio.current_task()
        assert task is not None
        self._open[writer] = task
        try:
            while not writer.is_closing():
                request = await self._read(reader, connection)
                self.requests.append(request)
                answer = self.script.pop(0) if self.script else self.default
                assert answer is not None, "the script of the server is over"
                await answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up
        except asyncio.CancelledError:
            writer.transport.abort()  # the test is over
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def hang_up(self) -> None:
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> Request:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Request(first.split()[1], headers, json.loads(body), asyncio.get_running_loop().time(), connection, reader)


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    raw = RawServer()
    listener = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    yield raw
    listener.close()
    await raw.hang_up()
    await listener.wait_closed()


@pytest.fixture
async def model_at() -> AsyncIterator[Callable[..., OpenAICompatibleModel]]:
    """Makes models that are closed when the test ends. Each has a gate of its own unless given one."""
    models: list[OpenAICompatibleModel] = []

    def make(url: str, **settings: Any) -> OpenAICompatibleModel:
        model = OpenAICompatibleModel("m", base_url=url, **{"gate": Gate(), **settings})
        models.append(model)
        return model

    yield make
    for model in models:
        await model.aclose()


class VirtualTime:
    """Time that passes only when everything waits. Real I/O does not belong under it."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.epoch = 1_700_000_000.0
        self.slept: list[float] = []
        self.random: Callable[[], float] = random.Random(seed).random
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @property
    def timing(self) -> Timing:
        return Timing(lambda: self.now, lambda: self.epoch + self.now, self.sleep, self._draw)

    def _draw(self) -> float:
        return self.random()  # tests replace it while a model already holds the timing

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def run(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        for _ in range(100_000):
            for _ in range(40):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            while self._sleepers and self._sleepers[0][2].cancelled():
                heapq.heappop(self._sleepers)
            if self._sleepers:
                self.now, _, woken = heapq.heappop(self._sleepers)
                if not woken.done():
                    woken.set_result(None)
        raise AssertionError("the work under virtual time does not end")


@pytest.fixture
def virtual() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def answers() -> Any:
    """The kinds of answers that the raw server gives."""

    class Answers:
        json = staticmethod(json_answer)
        events = staticmethod(event_answer)

    return Answers
