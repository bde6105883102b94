"""Messages between two processes: through the mailbox, and one Ray call each. See README.md.

python benchmarks/perf/mailbox.py [--conversations 1,10,100,1000] [--repeat 5] [--seconds 1] [--json] [--check]

A conversation sends a request of 500 bytes, waits for its reply of 500 bytes, and sends the next; both are decoded and
encoded as messages. ``driver`` talks from this process to an actor, ``actor`` from one actor to another. The ways are
measured in turns; a figure is the median over the repetitions, and so is a ratio of two figures of one repetition.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from _measure import seconds as cpu_seconds
from _report import Bar, circumstances, console, one_line, plain_table, say, verdict
from rich.table import Table

from umbel.actors.frames import Caller
from umbel.actors.link import Link
from umbel.actors.mailbox import Mailbox
from umbel.protocol.codec import decode, encode
from umbel.protocol.commands import ToolProgress

BYTES = 500
BARE_CALLS = 50
MANY = 1_000
AT_LEAST, AT_MOST = 25.0, 1.3
ENDS = ("driver", "actor")
WAYS = {"call": "a Ray call each", "frames": "mailbox, frames as Ray calls", "mailbox": "mailbox"}
BARE = {"bare": "a bare Ray call, nothing decoded"}
RUNTIME = "bench"
Figures = dict[str, float]
Records = dict[tuple[str, int], list[dict[str, Figures]]]  # (end, conversations) -> per repetition: way -> figures
now = time.perf_counter


def padded(make: Callable[[str], ToolProgress]) -> ToolProgress:
    """The message that ``make`` builds around a text, with a text that makes it 500 bytes."""
    return make("x" * (BYTES - len(encode(make(""))[1])))


REQUEST = padded(lambda text: ToolProgress(tool_call_id="asked", progress=0.5, message=text))
REPLY = padded(lambda text: ToolProgress(tool_call_id="answered", progress=1.0, message=text))


def settle_memory() -> None:
    """As the runtime's actors do: the collector looks no more at what is alive now, and rarely at the rest."""
    from umbel.cluster.host import COLLECT_AFTER

    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def converse(count: int, seconds: float, ask: Callable[[], Awaitable[Any]]) -> Figures:
    """``count`` conversations at once for so many seconds."""
    times: list[float] = []
    start = now()
    end = start + seconds

    async def conversation() -> None:
        before = now()
        while before < end:
            reply = await ask()
            assert type(reply) is ToolProgress
            after = now()
            times.append(after - before)
            before = after

    await asyncio.gather(*(conversation() for _ in range(count)))
    return figures(times, now() - start)


def figures(times: list[float], seconds: float) -> Figures:
    return {"messages_per_s": 2 * len(times) / seconds, "p50_ms": statistics.median(times) * 1e3}


class End:
    """The asking side, in this process or in an actor."""

    def __init__(self, name: str, peer: str, secret: bytes) -> None:
        import ray

        from umbel.cluster.host import Identity, RayTransport
        from umbel.cluster.named_actors import NAMESPACE, actor_name

        self._peer = ray.get_actor(actor_name(RUNTIME, peer), NAMESPACE)
        self._links = {
            way: Link(f"{name}-{way}", time.time_ns(), peer, RayTransport(Identity(RUNTIME, name, secret), peer, direct=direct))
            for way, direct in (("mailbox", True), ("frames", False))
        }

    def ask(self, way: str) -> Callable[[], Awaitable[Any]]:
        if way == "call":
            return self._call
        link = self._links[way]
        return lambda: link.request(REQUEST)

    async def _call(self) -> Any:
        return decode(*await self._peer.call.remote(*encode(REQUEST)))

    async def measure(self, way: str, count: int, seconds: float) -> Figures:
        return await converse(count, seconds, self.ask(way))

    async def one_at_a_time(self, seconds: float) -> dict[str, Figures]:
        """One conversation, all ways in short turns, so that what else the machine does hits all alike."""
        payload, end = b"x" * BYTES, now() + seconds
        asks = {"bare": lambda: self._peer.echo.remote(payload), **{way: self.ask(way) for way in WAYS}}
        times: dict[str, list[float]] = {way: [] for way in asks}
        while now() < end:
            for way, ask in asks.items():
                for _ in range(BARE_CALLS):
                    before = now()
                    await ask()
                    times[way].append(now() - before)
        return {way: figures(taken, sum(taken)) for way, taken in times.items()}


class Actor:
    """What the runtime's ``Host`` offers a link, with one handler; also the asking end of the actor-to-actor figures."""

    def __init__(self, name: str, secret: bytes) -> None:
        from umbel.cluster.sockets import FrameServer

        self._name = name
        self._secret = secret
        self._epoch = time.time_ns()
        self._mailbox = Mailbox(name, self._epoch)
        self._mailbox.on(ToolProgress, self._reply)
        self._server = FrameServer(self._mailbox, secret, "127.0.0.1")
        self._address: tuple[str, int] | None = None
        self._end: End | None = None
        settle_memory()

    async def _reply(self, message: ToolProgress, caller: Caller) -> ToolProgress:
        return REPLY

    async def hello(self) -> tuple[int, str, int]:
        if self._address is None:
            self._address = await self._server.start()
        return (self._epoch, *self._address)

    async def deliver(self, frame: bytes, *large: bytes) -> bytes:
        return (await self._mailbox.deliver(frame, large))[0]

    async def collect(self, frame: bytes) -> bytes:
        return (await self._mailbox.collect(frame))[0]

    async def control(self, frame: bytes) -> None:
        self._mailbox.control(frame)

    async def call(self, kind: str, blob: bytes) -> tuple[str, bytes]:
        decode(kind, blob)
        return encode(REPLY)

    async def echo(self, payload: bytes) -> bytes:
        return payload

    async def connect(self, peer: str) -> None:
        self._end = End(self._name, peer, self._secret)

    async def measure(self, way: str, count: int, seconds: float) -> Figures:
        assert self._end is not None
        return await self._end.measure(way, count, seconds)

    async def one_at_a_time(self, seconds: float) -> dict[str, Figures]:
        assert self._end is not None
        return await self._end.one_at_a_time(seconds)


class Bench:
    """Both ends, connected to one and the same actor."""

    def __init__(self) -> None:
        import ray

        from umbel.cluster.host import OPTIONS
        from umbel.cluster.named_actors import NAMESPACE, actor_name

        secret = secrets.token_bytes(32)

        def start(name: str) -> Any:
            options = {**OPTIONS, "name": actor_name(RUNTIME, name), "namespace": NAMESPACE}
            return ray.remote(Actor).options(**options).remote(name, secret)

        self._peer, self._asker = start("peer"), start("asker")
        ray.get([self._peer.hello.remote(), self._asker.connect.remote("peer")])
        self._driver = End("driver", "peer", secret)

    async def measure(self, end: str, count: int, seconds: float) -> dict[str, Figures]:
        """Every way, one after the other."""
        if count == 1:
            each = self._driver.one_at_a_time if end == "driver" else self._asker.one_at_a_time.remote
            taken: dict[str, Figures] = await each(seconds * len(WAYS))
            return taken
        measure = self._driver.measure if end == "driver" else self._asker.measure.remote
        taken = {}
        for way in WAYS:
            before, start = tree_seconds(), now()
            taken[way] = await measure(way, count, seconds)
            messages = taken[way]["messages_per_s"] * (now() - start)
            taken[way]["cpu_us"] = (tree_seconds() - before) / messages * 1e6
        return taken

    async def sweep(self, sizes: list[int], repetitions: int, seconds: float) -> Records:
        records: Records = {}
        settle_memory()
        for end in ENDS:
            await self.measure(end, 1, 0.1)
            await self.measure(end, 100, 0.3)
        for number in range(repetitions):
            for count in sizes:
                for end in ENDS:
                    say(f"{number + 1}/{repetitions} {end}, {count} conversations")
                    records.setdefault((end, count), []).append(await self.measure(end, count, seconds))
        say("")
        return records


def tree_seconds() -> float:
    """CPU time of this process and all that it started, Ray's own processes among them."""
    me = psutil.Process()
    return float(sum(cpu_seconds(process) for process in (me, *me.children(recursive=True))))


# showing


def median(records: Records, end: str, count: int, way: str, figure: str) -> float | None:
    values = [each[way][figure] for each in records.get((end, count), []) if figure in each.get(way, {})]
    return statistics.median(values) if values else None


def ratio(records: Records, end: str, count: int, figure: str, ours: str, theirs: str) -> float | None:
    values = [each[ours][figure] / each[theirs][figure] for each in records.get((end, count), []) if theirs in each]
    return statistics.median(values) if values else None


def bars(records: Records) -> list[Bar]:
    """Both bars, for both ends."""
    found = []
    for end in ENDS:
        faster = ratio(records, end, MANY, "messages_per_s", "mailbox", "call")
        found.append(Bar(f"{end}: messages/s at {MANY:,} conversations / a Ray call each", faster, AT_LEAST, at_least=True))
        slower = ratio(records, end, 1, "p50_ms", "mailbox", "bare")
        found.append(Bar(f"{end}: round trip at one conversation / a bare Ray call", slower, AT_MOST, at_least=False))
    return found


def table(records: Records) -> Table:
    columns = ("from", "way", "conversations", "messages/s", "p50 ms", "CPU us a message", "x a Ray call each")
    shown = plain_table("500-byte requests and replies", *columns, left=2)
    for end, count in records:
        for way, name in {**(BARE if count == 1 else {}), **WAYS}.items():
            rate, p50 = (median(records, end, count, way, figure) or 0.0 for figure in ("messages_per_s", "p50_ms"))
            cpu = median(records, end, count, way, "cpu_us")
            faster = ratio(records, end, count, "messages_per_s", way, "call") or 0.0
            cells = [f"{rate:,.0f}", f"{p50:.2f}", "" if cpu is None else f"{cpu:,.1f}", f"{faster:.2f}"]
            shown.add_row(end, name, f"{count:,}", *cells)
    return shown


# the command


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Messages between two processes on Ray: through the mailbox, and one Ray call each.",
        epilog="example: mailbox.py --conversations 1,1000 --check",
    )
    parser.add_argument("--conversations", default="1,10,100,1000", help="how many at once (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="of which the median counts (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure and repetition (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of tables")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every bar that was measured holds")
    chosen = parser.parse_args()
    try:
        chosen.conversations = sorted({int(count) for count in chosen.conversations.split(",")})
    except ValueError:
        parser.error("--conversations takes whole numbers, such as 1,1000")
    if chosen.repeat < 1 or chosen.seconds <= 0 or chosen.conversations[0] < 1:
        parser.error("--conversations, --repeat and --seconds must be positive")
    return chosen


def main() -> int:
    chosen = options()
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    told = circumstances(load=round(os.getloadavg()[0], 1))
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        records = asyncio.run(Bench().sweep(chosen.conversations, chosen.repeat, chosen.seconds))
    finally:
        ray.shutdown()
    found = bars(records)
    if chosen.json:
        shown = [{"from": end, "conversations": count, "repetitions": each} for (end, count), each in records.items()]
        print(json.dumps({"circumstances": told, "bars": [bar.to_dict() for bar in found], "records": shown}, indent=1))
    else:
        out = console()
        out.print(table(records))
        out.print()
        out.print(verdict(found))
        out.print(one_line(told))
    return 1 if chosen.check and any(bar.holds is False for bar in found) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
