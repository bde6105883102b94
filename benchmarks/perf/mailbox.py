"""Messages between two processes: batched by the mailbox, and one Ray call each. See README.md.

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
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any

import psutil
from _bars import Bar
from _measure import seconds as cpu_seconds
from rich.console import Console
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
WAYS = ("call", "mailbox")
NAMESPACE = "bench"
Figures = dict[str, float]
Records = dict[tuple[str, int], list[dict[str, Figures]]]  # (end, conversations) -> per repetition: way -> figures
now = time.perf_counter


def padded(make: Callable[[str], Any]) -> Any:
    """The message that ``make`` builds around a text, with a text that makes it 500 bytes."""
    return make("x" * (BYTES - len(encode(make(""))[1])))


REQUEST = padded(lambda text: ToolProgress(tool_call_id="asked", progress=0.5, message=text))
REPLY = padded(lambda text: ToolProgress(tool_call_id="answered", progress=1.0, message=text))


def settle_memory() -> None:
    """As ``Host`` does: the collector need not look again at what is alive now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


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
    return {"messages_per_s": 2 * len(times) / (now() - start), "p50_ms": statistics.median(times) * 1e3}


class End:
    """The asking side, in this process or in an actor."""

    def __init__(self, name: str, peer: str) -> None:
        import ray

        from umbel.cluster.host import NAMESPACE as RAY_NAMESPACE
        from umbel.cluster.host import RayTransport, actor_name

        self._peer = ray.get_actor(actor_name(NAMESPACE, peer), RAY_NAMESPACE)
        self._link = Link(name, time.time_ns(), peer, RayTransport(NAMESPACE, peer))

    async def ask_by_call(self) -> Any:
        return decode(*await self._peer.call.remote(*encode(REQUEST)))

    async def ask_by_mailbox(self) -> Any:
        return await self._link.request(REQUEST)

    async def measure(self, way: str, count: int, seconds: float) -> Figures:
        return await converse(count, seconds, self.ask_by_mailbox if way == "mailbox" else self.ask_by_call)

    async def one_at_a_time(self, seconds: float) -> dict[str, Figures]:
        """One conversation, all ways in short turns, so that what else the machine does hits all alike."""
        payload, end = b"x" * BYTES, now() + seconds
        times: dict[str, list[float]] = {"bare": [], "call": [], "mailbox": []}
        asks = {"bare": lambda: self._peer.echo.remote(payload), "call": self.ask_by_call, "mailbox": self.ask_by_mailbox}
        while now() < end:
            for way, ask in asks.items():
                for _ in range(BARE_CALLS):
                    before = now()
                    await ask()
                    times[way].append(now() - before)
        return {
            way: {"messages_per_s": 2 * len(taken) / sum(taken), "p50_ms": statistics.median(taken) * 1e3}
            for way, taken in times.items()
        }


class Actor:
    """What ``umbel.cluster.host.Host`` offers a link, with one handler; and the other end for the actor-to-actor figures."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch = time.time_ns()
        self._mailbox = Mailbox(name, self._epoch)
        self._mailbox.on(ToolProgress, self._reply)
        self._end: End | None = None
        settle_memory()

    async def _reply(self, message: ToolProgress, caller: Caller) -> ToolProgress:
        return REPLY  # type: ignore[no-any-return]

    async def hello(self) -> int:
        return self._epoch

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
        self._end = End(self._name, peer)

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

        from umbel.cluster.host import NAMESPACE as RAY_NAMESPACE
        from umbel.cluster.host import OPTIONS, actor_name

        def start(name: str) -> Any:
            options = {**OPTIONS, "name": actor_name(NAMESPACE, name), "namespace": RAY_NAMESPACE}
            return ray.remote(Actor).options(**options).remote(name)

        self._peer, self._asker = start("peer"), start("asker")
        ray.get([self._peer.hello.remote(), self._asker.connect.remote("peer")])
        self._driver = End("driver", "peer")

    async def measure(self, end: str, count: int, seconds: float) -> dict[str, Figures]:
        """Every way, one after the other."""
        if count == 1:
            return await (self._driver.one_at_a_time(seconds) if end == "driver" else self._asker.one_at_a_time.remote(seconds))
        measure = self._driver.measure if end == "driver" else self._asker.measure.remote
        figures = {}
        for way in WAYS:
            before, start = tree_seconds(), now()
            figures[way] = await measure(way, count, seconds)
            messages = figures[way]["messages_per_s"] * (now() - start)
            figures[way]["cpu_us"] = (tree_seconds() - before) / messages * 1e6
        return figures

    async def sweep(self, sizes: list[int], repetitions: int, seconds: float) -> Records:
        records: Records = {}
        settle_memory()
        for end in ENDS:
            await self.measure(end, 1, 0.2)
            await self.measure(end, 100, 0.5)
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
    return sum(cpu_seconds(process) for process in (me, *me.children(recursive=True)))


def say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


# showing


def median(records: Records, end: str, count: int, way: str, figure: str) -> float | None:
    values = [each[way][figure] for each in records.get((end, count), []) if way in each]
    return statistics.median(values) if values else None


def ratio(records: Records, end: str, count: int, figure: str, ours: str, theirs: str) -> float | None:
    values = [each[ours][figure] / each[theirs][figure] for each in records.get((end, count), []) if theirs in each]
    return statistics.median(values) if values else None


def bars(records: Records) -> list[Bar]:
    """One per end and bar."""
    found = []
    for end in ENDS:
        faster = ratio(records, end, MANY, "messages_per_s", "mailbox", "call")
        found.append(Bar(f"{end}: messages/s at {MANY:,} conversations / one call each", faster, AT_LEAST, at_least=True))
        slower = ratio(records, end, 1, "p50_ms", "mailbox", "bare")
        found.append(Bar(f"{end}: round trip at one conversation / a bare call", slower, AT_MOST, at_least=False))
    return found


def table(records: Records) -> Table:
    shown = Table(title="500-byte requests and replies", title_justify="left", box=None, pad_edge=False)
    for name in ("from", "conversations", "way", "messages/s", "p50 ms", "CPU us a message", "x one call each"):
        shown.add_column(name, justify="left" if name in {"from", "way"} else "right")
    for end, count in records:
        for way in (*(("bare",) if count == 1 else ()), *WAYS):
            rate, p50 = (median(records, end, count, way, figure) or 0.0 for figure in ("messages_per_s", "p50_ms"))
            cpu = None if count == 1 else median(records, end, count, way, "cpu_us")
            faster = ratio(records, end, count, "messages_per_s", way, "call") or 0.0
            cells = [f"{rate:,.0f}", f"{p50:.2f}", "" if cpu is None else f"{cpu:,.1f}", f"{faster:.2f}"]
            shown.add_row(end, f"{count:,}", way, *cells)
    return shown


def verdict(found: list[Bar]) -> Table:
    shown = Table(title="Bars", title_justify="left", box=None, pad_edge=False)
    for name in ("", "value", "bar", ""):
        shown.add_column(name, justify="left" if not name else "right")
    for bar in found:
        word = {True: "[green]ok[/]", False: "[red]FAIL[/]", None: "not measured"}[bar.holds]
        value = "-" if bar.value is None else f"{bar.value:.2f}"
        shown.add_row(bar.name, value, f"{'>=' if bar.at_least else '<='} {bar.limit:g}", word)
    return shown


def circumstances() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "umbel": metadata.version("umbel"),
        "ray": metadata.version("ray"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


# the command


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Messages between two processes on Ray: batched by the mailbox, and one Ray call each.",
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

    told = circumstances()
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        records = asyncio.run(Bench().sweep(chosen.conversations, chosen.repeat, chosen.seconds))
    finally:
        ray.shutdown()
    found = bars(records)
    if chosen.json:
        shown = [{"from": end, "conversations": count, "repetitions": each} for (end, count), each in records.items()]
        print(json.dumps({"circumstances": told, "bars": [bar.to_dict() for bar in found], "records": shown}, indent=1))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        console.print(table(records))
        console.print()
        console.print(verdict(found))
        console.print(", ".join(f"{name} {value}" for name, value in told.items()))
    return 1 if chosen.check and any(bar.holds is False for bar in found) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
