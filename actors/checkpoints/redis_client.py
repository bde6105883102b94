"""The connections of a Redis store: one server or a cluster, scripts by name, errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from redis import asyncio as library
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from ...protocol.errors import ConfigurationError, UmbelError
from .redis_errors import explain
from .redis_keys import escape_pattern, text_key, thread_keys
from .redis_scripts import NAMES, TEXT, Script

Call = tuple[Script, list[str], Sequence[Any]]
_FAILURES = (RedisError, OSError, asyncio.TimeoutError)
_PAGE = 100
_redis: Any = library  # old stubs of other people's know less than the library


class RedisClient:
    """Connects at its first use, and belongs to the event loop of it.

    Args:
        url: of the server, or of any node of a cluster.
        prefix: of every key.
        timeout: seconds to wait for a connection, and for an answer.
        cluster: the server is a node of a cluster.

    Attributes:
        place: host, port and database, without credentials.
        prefix: of every key.
    """

    def __init__(self, url: str, *, prefix: str, timeout: float, cluster: bool) -> None:
        self.place = _place(url)
        self.prefix, self._url, self._timeout, self._cluster = prefix, url, timeout, cluster
        self._client: Any = None

    def _connected(self) -> Any:
        if self._client is None:
            # No tries of the client's own: whoever saves decides, and a deletion must not meet the thread's successor.
            seconds = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
            options: dict[str, Any] = {**seconds, "retry": Retry(NoBackoff(), 0)}
            try:
                if self._cluster:
                    self._client = _redis.RedisCluster.from_url(self._url, **options)
                else:
                    pool = _redis.BlockingConnectionPool.from_url(
                        self._url, max_connections=32, timeout=self._timeout, **options
                    )
                    self._client = _redis.Redis.from_pool(pool)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"the URL of Redis at {self.place} makes no sense: {error}") from None
        return self._client

    async def close(self) -> None:
        """Give up every connection."""
        if self._client is not None:
            await self._client.aclose()

    async def facts(self) -> dict[str, Any]:
        """What the server says of its persistence and its memory."""
        persistence = await self.command("INFO", "persistence")
        memory = await self.command("INFO", "memory")
        return _any_node(persistence) | _any_node(memory)

    async def command(self, *command: Any) -> Any:
        """The answer to one command.

        Raises:
            UmbelError: as :func:`explain` says.
        """
        try:
            return await self._connected().execute_command(*command)
        except _FAILURES as error:
            raise explain(error, self.place) from error

    @property
    def index(self) -> str:
        """The key of the list of threads: a sorted set, in a slot of its own."""
        return f"{self.prefix}threads"

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """The answers of scripts, each about one thread or text; all are sent before the first answer is awaited.

        Raises:
            UmbelError: a script failed; the others may have succeeded.
        """
        answers = await self.attempt(calls)
        for answer in answers:
            if isinstance(answer, UmbelError):
                raise answer
        return answers

    async def attempt(self, calls: Sequence[Call]) -> list[Any]:
        """As :meth:`call`, with an error in place of the answer of a script that failed."""
        answers = await self._send([("EVALSHA", script.digest, len(keys), *keys, *rest) for script, keys, rest in calls])
        unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        again = [calls[number] for number in unknown]
        texts = await self._send([("EVAL", script.text, len(keys), *keys, *rest) for script, keys, rest in again])
        for number, answer in zip(unknown, texts, strict=True):
            answers[number] = answer
        return [explain(answer, self.place) if isinstance(answer, Exception) else answer for answer in answers]

    def about(self, script: Script, thread_id: str, *arguments: Any) -> Call:
        """A call of a script that is about a thread."""
        return script, thread_keys(self.prefix, thread_id), arguments

    def about_text(self, script: Script, digest: str, *arguments: Any) -> Call:
        """A call of a script that is about a text."""
        return script, [text_key(self.prefix, digest)], arguments

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers, or errors, of ``commands``: on one connection to a server, side by side to the nodes of a cluster."""
        client = self._connected()
        if self._cluster or len(commands) == 1:
            answers: list[Any] = []
            for start in range(0, len(commands), _PAGE):
                sent = [client.execute_command(*command) for command in commands[start : start + _PAGE]]
                answers += await asyncio.gather(*sent, return_exceptions=True)
            return answers
        if not commands:
            return []
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return list(await pipeline.execute(raise_on_error=False))
        except _FAILURES as error:
            return [error] * len(commands)

    async def text(self, digest: str) -> bytes | None:
        """A text that states share, None when it is not there."""
        found: bytes | None = await self.command("HGET", text_key(self.prefix, digest), "text")
        return found

    async def thread_ids(self) -> AsyncIterator[str]:
        """The ids of all threads, tombstones and leases, each at least once."""
        async for key in self._scan(NAMES[0]):
            thread_id = await self.command("HGET", key, "id")
            if thread_id is not None:
                yield thread_id.decode()

    async def text_digests(self) -> set[str]:
        """The content hashes of all texts."""
        return {key.decode()[len(self.prefix) + 1 : -len(TEXT) - 2] async for key in self._scan(TEXT)}

    async def _scan(self, name: str) -> AsyncIterator[bytes]:
        pattern = f"{escape_pattern(self.prefix)}{{*}}:{name}"
        try:
            async for key in self._connected().scan_iter(match=pattern, count=_PAGE):
                yield key
        except _FAILURES as error:
            raise explain(error, self.place) from error


def _any_node(info: dict[str, Any]) -> dict[str, Any]:
    """INFO of a server, or of the first of a cluster's nodes, which answer by name."""
    first = next(iter(info.values()), None)
    return first if isinstance(first, dict) and {"aof_enabled", "maxmemory_policy"} & first.keys() else info


def _place(url: str) -> str:
    """Host, port and database of ``url``, without credentials."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
    except ValueError as error:
        raise ConfigurationError(f"a redis:// URL makes no sense: {error}") from None
