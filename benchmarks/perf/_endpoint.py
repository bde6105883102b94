"""A model endpoint with a real quota for ``limits.py``: llmock, behind a proxy of ours that notes when requests arrive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from umbel.actors.agent.models.retry_after import retry_after_seconds

KEY = "sk-benchmark"
BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class Seen:
    """One request: when it came and was answered (seconds, monotonic), how, and what the answer said."""

    came: float
    answered: float = 0.0
    status: int = 0
    limit: str | None = None
    retry_after: float | None = None


@dataclass
class Endpoint:
    """The address of the proxy, what it saw, and the quota behind it."""

    server: Any
    tells: bool
    url: str = ""
    seen: list[Seen] = field(default_factory=list)

    def allow(self, requests_per_minute: int) -> None:
        """Another quota from now on, whose allowance for a burst somebody else has just used up."""
        from llmock.ratelimit import LimitSettings

        self.server.state.limiter.configure(LimitSettings(rpm=requests_per_minute))
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=self.server.base_url("openai"), headers=headers) as client:
            while client.post("/chat/completions", json=BODY).status_code != 429:
                pass


@contextmanager
def endpoint(*, tells: bool) -> Iterator[Endpoint]:
    """The endpoint; where it does not tell its limit, its answers have a ``Retry-After`` and no other header about it."""
    from llmock.testing import LLMockServer

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with LLMockServer() as server:
        made = Endpoint(server, tells)
        proxy = asyncio.run_coroutine_threadsafe(_serve(made), loop).result()
        try:
            yield made
        finally:
            asyncio.run_coroutine_threadsafe(_close(proxy), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


async def _serve(made: Endpoint) -> asyncio.Server:
    client = httpx.AsyncClient(base_url=made.server.url, timeout=30, limits=httpx.Limits(max_connections=1000))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                seen = Seen(time.monotonic())
                fields = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    fields[name.lower()] = value.strip()
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                made.seen.append(seen)
                writer.write(await _forward(made, client, seen, line.split()[1].decode(), fields, body))
                await writer.drain()
        finally:
            writer.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    made.url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/v1"
    return proxy


async def _forward(
    made: Endpoint, client: httpx.AsyncClient, seen: Seen, path: str, fields: dict[str, str], body: bytes
) -> bytes:
    kept = {name: value for name, value in fields.items() if name in {"authorization", "content-type"}}
    answer = await client.post(path, content=body, headers=kept)
    seen.answered, seen.status = time.monotonic(), answer.status_code
    seen.limit = answer.headers.get("x-ratelimit-limit-requests")
    seen.retry_after = retry_after_seconds(answer.headers, time.time())
    shown = {name: value for name, value in answer.headers.items() if name in {"content-type", "retry-after", "retry-after-ms"}}
    if made.tells:
        shown |= {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit-")}
    lines = [f"HTTP/1.1 {answer.status_code} X", *(f"{name}: {value}" for name, value in shown.items())]
    return "\r\n".join([*lines, f"content-length: {len(answer.content)}", "", ""]).encode() + answer.content


async def _close(proxy: asyncio.Server) -> None:
    proxy.close()
