"""The connections of a Redis store: one server or a cluster, scripts by name, errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis import asyncio as library
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, RedisError  # noqa: A004 - redis's own, not Python's

from ...protocol.errors import ConfigurationError, UmbelError
from .redis_errors import explain
from .redis_keys import escape_pattern, text_key, thread_keys
from .redis_scripts import NAMES, TEXT, Script
from .url import StoreUrl

Call = tuple[Script, list[str], Sequence[Any]]
Command = tuple[Any, ...]
# The last one: what a cluster's client raises of a connection that it closed itself while it looked for the nodes.
_FAILURES = (RedisError, OSError, asyncio.TimeoutError, AttributeError)
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
        self.place = StoreUrl.parse(url).server(6379)
        self.prefix, self._url, self._timeout, self._cluster = prefix, url, timeout, cluster
        self._client: Any = None
        self._finding = asyncio.Lock()
        self._waiting: list[tuple[Sequence[Command], asyncio.Future[list[Any]]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = self._create()
        if self._cluster:
            # Calls that find the cluster's nodes at the same time would close each other's connections.
            async with self._finding:
                await self._client.initialize()
        return self._client

    def _create(self) -> Any:
        # Every script may be sent again: a connection may be stale, and a cluster's nodes may have changed.
        options: dict[str, Any] = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.02), 3 if self._cluster else 1, (ConnectionError,))
        try:
            if self._cluster:
                return _redis.RedisCluster.from_url(self._url, retry=retry, **options)
            options |= {"retry": retry, "timeout": self._timeout, "max_connections": 32}
            return _redis.Redis.from_pool(_redis.BlockingConnectionPool.from_url(self._url, **options))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"the URL of Redis at {self.place} makes no sense: {error}") from None

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
            return await (await self._connected()).execute_command(*command)
        except _FAILURES as error:
            await self._look_again([error])
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
        await self._look_again(answers)
        return [explain(answer, self.place) if isinstance(answer, Exception) else answer for answer in answers]

    async def _look_again(self, answers: Sequence[Any]) -> None:
        """Give up idle connections to a primary that became a replica: it keeps them, and its name may be another's by now."""
        if not self._cluster and any(isinstance(answer, ReadOnlyError) for answer in answers):
            await self._client.connection_pool.disconnect(inuse_connections=False)

    def about(self, script: Script, thread_id: str, *arguments: Any) -> Call:
        """A call of a script that is about a thread."""
        return script, thread_keys(self.prefix, thread_id), arguments

    def about_text(self, script: Script, digest: str, *arguments: Any) -> Call:
        """A call of a script that is about a text."""
        return script, [text_key(self.prefix, digest)], arguments

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        """The answers, or errors, of ``commands``: side by side to the nodes of a cluster.

        To a server, what is sent in one tick of the event loop goes together: the requests of many runs come in one frame,
        and a round trip costs the client more than a command does.
        """
        if not commands:
            return []
        if self._cluster:
            try:
                return await _side_by_side(await self._connected(), commands)
            except _FAILURES as error:
                return [error] * len(commands)
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[list[Any]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((commands, answers))
        return await answers

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._pipeline(waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _pipeline(self, waiting: Sequence[tuple[Sequence[Command], asyncio.Future[list[Any]]]]) -> None:
        """One round trip; a caller who gave up does not take the others' answers along."""
        commands = [command for group, _ in waiting for command in group]
        try:
            pipeline = (await self._connected()).pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            found = list(await pipeline.execute(raise_on_error=False))
        except _FAILURES as error:
            found = [error] * len(commands)
        except BaseException as error:  # whatever it is, it is the callers': they wait for it
            for _, answers in waiting:
                if not answers.done():
                    answers.set_exception(error)
            raise
        start = 0
        for group, answers in waiting:
            if not answers.done():
                answers.set_result(found[start : start + len(group)])
            start += len(group)

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
            client = await self._connected()
            async for key in client.scan_iter(match=pattern, count=_PAGE):
                yield key
        except _FAILURES as error:
            raise explain(error, self.place) from error


async def _side_by_side(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(commands), _PAGE):
        sent = [client.execute_command(*command) for command in commands[start : start + _PAGE]]
        answers += await asyncio.gather(*sent, return_exceptions=True)
    return answers


def _any_node(info: dict[str, Any]) -> dict[str, Any]:
    """INFO of a server, or of the first of a cluster's nodes, which answer by name."""
    first = next(iter(info.values()), None)
    return first if isinstance(first, dict) and {"aof_enabled", "maxmemory_policy"} & first.keys() else info
