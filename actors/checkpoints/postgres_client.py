"""The connections of a PostgreSQL store, its schema, and what the server's errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from ...protocol.errors import (
    CheckpointError,
    ConfigurationError,
    NotStorable,
    SchemaVersionError,
    StoreUnavailable,
    UmbelError,
)
from . import postgres_schema as sql
from .url import StoreUrl

T = TypeVar("T")
Row = tuple[Any, ...]
_CONNECTIONS = 8
_TRIES = 5
_CUT_SECONDS = 1.0  # until a task notices that its line was cut
_ABORTED = ("40001", "40P01")  # rolled back by the server for another's sake; doing it again is safe
_CREDENTIALS = "refuses the credentials ({error}); check user and password in the URL, in PGPASSWORD or in ~/.pgpass"
_RIGHTS = "does not let this user do that ({error}); GRANT CREATE ON DATABASE, or name a schema of its own with ?schema="

# By the beginning of the SQLSTATE; of two that fit, the longer one comes first.
_STATES: tuple[tuple[str, type[UmbelError], str], ...] = (
    ("25006", StoreUnavailable, "takes no writes ({error}): a standby, or one that is read-only; name the primary in the URL"),
    ("28", ConfigurationError, _CREDENTIALS),
    ("3D000", ConfigurationError, "has no such database ({error}); create it with: createdb NAME"),
    ("42501", ConfigurationError, _RIGHTS),
    ("42", ConfigurationError, "holds other tables than ours ({error}); choose another schema with ?schema=NAME"),
    ("53100", StoreUnavailable, "has no space left on its disk ({error}); free some"),
    ("53300", StoreUnavailable, "has no connection left ({error}); raise max_connections, or end clients"),
    ("54", NotStorable, "cannot hold a value that large ({error}); keep it out of the state"),
    ("55P03", StoreUnavailable, "is locked by somebody else's transaction ({error}); end it, or wait longer with ?timeout="),
    ("40", StoreUnavailable, "had to give way to other transactions again and again ({error}); try again"),
    ("57014", StoreUnavailable, "did not answer in time ({error}); try again, or wait longer with ?timeout=SECONDS"),
    ("57P", StoreUnavailable, "is starting or shutting down ({error}); try again"),
    ("XX001", CheckpointError, "is damaged ({error}); restore a backup"),
    ("XX002", CheckpointError, "has a damaged index ({error}); run: REINDEX DATABASE"),
)
# A connection that is refused has no SQLSTATE, only a text.
_TEXTS: tuple[tuple[str, type[UmbelError], str], ...] = (
    ("authentication failed", ConfigurationError, _CREDENTIALS),
    ("no password supplied", ConfigurationError, _CREDENTIALS),
    ("pg_hba.conf", ConfigurationError, _CREDENTIALS),
    ("role ", ConfigurationError, _CREDENTIALS),
    ("certificate", ConfigurationError, "cannot be trusted ({error}); check sslmode and sslrootcert in the URL"),
    ("does not exist", ConfigurationError, "has no such database ({error}); create it with: createdb NAME"),
    ("too many clients", StoreUnavailable, "has no connection left ({error}); raise max_connections, or end clients"),
    ("starting up", StoreUnavailable, "is starting ({error}); try again"),
    ("shutting down", StoreUnavailable, "is shutting down ({error}); try again"),
)


class _StaleConnection(Exception):
    """A connection ended while it was idle, and nothing was done over it."""

    def __init__(self, found: psycopg.Error) -> None:
        super().__init__(str(found))
        self.found = found


class PostgresClient:
    """At most eight connections, opened when needed; belongs to the event loop that uses it.

    Args:
        url: of the database, as libpq reads it.
        schema: holds the tables; it is created when missing.
        timeout: seconds to wait for a connection, for a lock, and for one piece of work.

    Attributes:
        place: host, port and database, without credentials.
    """

    def __init__(self, url: str, *, schema: str, timeout: float) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ConfigurationError(f"postgresql:// option schema={schema!r} must be small letters, digits and underscores")
        self.place = StoreUrl.parse(url).server(5432)
        try:
            conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # its text may hold a password
            raise ConfigurationError(
                f"the URL of PostgreSQL at {self.place} makes no sense; in user and password write % as %25"
            ) from None
        self._url, self._schema, self._timeout = url, schema, timeout
        self._idle: list[AsyncConnection[Row]] = []
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._preparing = asyncio.Lock()
        self._prepared = False

    async def work(self, steps: Callable[[Work], Coroutine[Any, Any, T]], begin: str = "BEGIN") -> T:
        """What ``steps`` return, all of them in one transaction. They may be called again when the server asks for it.

        Raises:
            UmbelError: what came of it instead; the transaction was rolled back, or its end is not known.
        """
        last: psycopg.Error | None = None
        async with self._slots:
            for _ in range(_TRIES + len(self._idle)):
                try:
                    return await self._in_time(steps, begin)
                except _StaleConnection as error:
                    last = error.found
                except psycopg.Error as error:
                    if error.sqlstate not in _ABORTED:
                        raise explain(error, self.place) from error
                    last = error
        assert last is not None
        raise explain(last, self.place) from last

    async def close(self) -> None:
        """Give up every connection that is not in use."""
        while self._idle:
            await self._idle.pop().close()

    async def _in_time(self, steps: Callable[[Work], Coroutine[Any, Any, T]], begin: str) -> T:
        connection = await self._connection()
        task = asyncio.ensure_future(self._transaction(connection, steps, begin))
        try:
            done, _ = await asyncio.wait([task], timeout=self._timeout)
            if done:
                return task.result()
            raise StoreUnavailable(f"PostgreSQL at {self.place} did not answer in time; wait longer with ?timeout=SECONDS")
        finally:
            if not task.done():
                await _break_off(connection, task)
            if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
                await connection.close()
            else:
                self._idle.append(connection)

    async def _transaction(
        self, connection: AsyncConnection[Row], steps: Callable[[Work], Coroutine[Any, Any, T]], begin: str
    ) -> T:
        work = Work(connection, self._schema)
        if not self._prepared:
            async with self._preparing:
                await self._prepare(work)
        try:
            await work.run(begin)
        except psycopg.OperationalError as error:
            raise _StaleConnection(error) from error
        try:
            result = await steps(work)
        except UmbelError:
            await work.run("ROLLBACK")
            raise
        await work.run("COMMIT")
        return result

    async def _connection(self) -> AsyncConnection[Row]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
            await connection.close()
        milliseconds = round(self._timeout * 1000)
        try:
            connection = await AsyncConnection.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,  # so that a pooler may stand in between
                connect_timeout=max(2, round(self._timeout)),
                options=f"-c lock_timeout={milliseconds} -c statement_timeout={milliseconds} -c client_min_messages=warning",
            )
        except psycopg.Error as error:
            raise explain(error, self.place) from error
        return connection

    async def _prepare(self, work: Work) -> None:
        """Create the tables, whoever comes first, and check their version."""
        if self._prepared:
            return
        if not (await work.one(sql.FIND_VERSION))[0]:
            await work.run("BEGIN")
            await work.run(sql.EXCLUDE, sql.LOCK)
            if not (await work.one(sql.FIND_VERSION))[0]:
                if not (await work.one(sql.FIND_SCHEMA))[0]:
                    await work.run(sql.CREATE_SCHEMA)
                await work.run(sql.CREATE)
                await work.run(sql.WRITE_VERSION, sql.VERSION)
            await work.run("COMMIT")
        found = (await work.one(sql.READ_VERSION))[0]
        if found != sql.VERSION:
            raise SchemaVersionError(
                f"PostgreSQL at {self.place} holds checkpoints of schema version {found}, this Umbel reads {sql.VERSION};"
                " run the Umbel that wrote them, or choose another schema with ?schema=NAME",
                found=found,
                known=sql.VERSION,
            )
        self._prepared = True


class Work:
    """Queries over one connection, in the schema of the store."""

    def __init__(self, connection: AsyncConnection[Row], schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def _query(self, text: str) -> bytes:
        return text.replace("umbel.;", f"{self._schema};").replace("umbel.", f"{self._schema}.").encode()

    async def run(self, text: str, *values: Any) -> int:
        """How many rows a statement changed."""
        return (await self._connection.execute(self._query(text), values or None)).rowcount

    async def rows(self, text: str, *values: Any) -> list[Row]:
        """All rows of a query."""
        return await (await self._connection.execute(self._query(text), values, binary=True)).fetchall()

    async def named(self, text: str, **values: Any) -> list[Row]:
        """All rows of a query with named values."""
        return await (await self._connection.execute(self._query(text), values, binary=True)).fetchall()

    async def one(self, text: str, *values: Any) -> Row:
        """The only row of a query that has one."""
        [row] = await self.rows(text, *values)
        return row

    async def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """The same statement for each of ``rows``, without waiting in between."""
        if rows:
            async with self._connection.cursor() as cursor:
                await cursor.executemany(self._query(text), rows)


async def _break_off(connection: AsyncConnection[Row], task: asyncio.Task[Any]) -> None:
    """End a task that waits for the server.

    A server that does not answer would not hear of a cancellation either, so the line is cut, which wakes the task. Its file
    descriptor stays until the task has let go of it: the next connection would get the same number, and lose its place in
    the event loop to the clean-up of this one.
    """
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)
    await asyncio.wait([task], timeout=_CUT_SECONDS)
    task.cancel()  # it waited for something else
    await asyncio.gather(task, return_exceptions=True)


def explain(error: psycopg.Error, place: str) -> UmbelError:
    """``error`` as an Umbel error that names the server and what to do."""
    text = " ".join(str(error).split()) or type(error).__name__
    for beginning, kind, meaning in _STATES:
        if error.sqlstate is not None and error.sqlstate.startswith(beginning):
            return kind(f"PostgreSQL at {place} {meaning.format(error=text)}", place=place)
    for part, kind, meaning in _TEXTS:
        if error.sqlstate is None and part in text:
            return kind(f"PostgreSQL at {place} {meaning.format(error=text)}", place=place)
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(
            f"PostgreSQL at {place} cannot be reached ({text}); start it, or check host and port", place=place
        )
    return StoreUnavailable(f"PostgreSQL at {place} failed: {text}", place=place)
