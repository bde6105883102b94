"""What a supervisor keeps of runs that go on without a caller, and what the incarnation after it makes of that."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from umbel import Agent, Topology, tool
from umbel.actors.definitions import Definitions
from umbel.actors.local_link import LocalLink
from umbel.actors.supervisor.event_log import EventLog, Space
from umbel.cluster.cell import ROLES, Cell
from umbel.errors import EventsExpired, PeerLost, RunLost, RunNotFound
from umbel.protocol.commands import CancelRun, StartRun
from umbel.protocol.handles import AwaitOutcome, BeginRun, ListRuns, ReadEvents
from umbel.testing import ScriptedModel, text, tool_call

EPOCHS = itertools.count(1)


@tool
async def pay(folder: str) -> str:
    """Pay once."""
    with (Path(folder) / "paid").open("a") as file:
        file.write("paid;")
    return "paid"


class Gated(ScriptedModel):
    """Pays; answers once the gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__([tool_call("pay", folder=str(folder)), text("done")])
        self.folder = folder

    async def complete(self, messages: Any, tools: Any = None, **settings: Any) -> Any:
        while messages[-1].role == "tool" and not (self.folder / "gate").exists():
            await asyncio.sleep(0.005)
        return await super().complete(messages, tools, **settings)


class Values:
    """A register in memory; ``left`` is what the next incarnation finds."""

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        self.values = values or {}

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        self.values[key] = value

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)

    async def load(self) -> dict[str, bytes]:
        return dict(self.values)

    def left(self) -> Values:
        return Values(dict(self.values))


class Nowhere:
    """A checkpointer that a process which died cannot reach."""

    async def request(self, message: Any, **options: Any) -> Any:
        raise PeerLost("this incarnation is dead")


class Shard:
    """One incarnation of a supervisor, with everything it needs in its process."""

    def __init__(self, folder: Path, register: Values, **shape: Any) -> None:
        self.register = register
        self.definitions = Definitions()
        self.cell = Cell("supervisor/default/0", next(EPOCHS), ROLES, Topology(**shape), None, self.definitions, register)
        self.agent = Agent(Gated(folder), tools=[pay], checkpointer=f"sqlite:///{folder}/t.db")
        self.ask = LocalLink(self.cell.mailbox).request

    def die(self) -> Values:
        """What it stores from now on is stored nowhere; what the next incarnation finds."""
        left = self.register.left()
        self.cell.directory.checkpointer = Nowhere  # type: ignore[method-assign, assignment]
        return left

    async def begin(self, run_id: str, **options: Any) -> None:
        start = StartRun(run_id=run_id, definition=self.definitions.register(self.agent), prompt="go", **options)
        await self.ask(BeginRun(start=start))

    async def read(self, run_id: str, after: int | None) -> tuple[list[tuple[int, str]], bool]:
        read = await self.ask(ReadEvents(run_id=run_id, after_seq=after))
        events = [json.loads(line) for line in read.lines.split(b"\n") if line]
        return [(event["seq"], event["event_type"]) for event in events], read.ended

    async def rest(self, run_id: str, after: int) -> list[tuple[int, str]]:
        events, ended = await self.read(run_id, after)
        while not ended:
            more, ended = await self.read(run_id, events[-1][0] if events else after)
            events += more
        return events

    async def until(self, run_id: str, seq: int) -> None:
        """Read until that event."""
        last = -1
        while last < seq:
            events, _ = await self.read(run_id, last)
            last = events[-1][0]


@pytest.fixture
async def shards(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Shard] = []

    def make(register: Values | None = None, **shape: Any) -> Shard:
        made.append(Shard(tmp_path, register or Values(), **shape))
        return made[-1]

    yield make
    for shard in made:
        await shard.cell.close()


async def test_the_next_incarnation_goes_on_by_itself(shards: Any, tmp_path: Path) -> None:
    first = shards()
    await first.begin("r", thread_id="t", ephemeral={"key": "a secret"})
    await first.until("r", 2)
    assert not any(b"a secret" in value for value in first.register.values.values())
    second = shards(first.die())
    await second.cell.begun.ready()  # as its process does when it starts
    assert (await second.read("r", 2))[0] == [(3, "custom")]
    (tmp_path / "gate").touch()
    assert await second.rest("r", 2) == [(3, "custom"), (4, "think"), (5, "terminate")]
    assert await second.rest("r", 0) == [(1, "tool_start"), (2, "tool_complete"), (3, "custom"), (4, "think"), (5, "terminate")]
    outcome = (await second.ask(AwaitOutcome(run_id="r"))).outcome
    assert (outcome.message, outcome.metrics.model_calls) == ("done", 2)
    assert (tmp_path / "paid").read_text() == "paid;"

    third = shards(second.die())
    assert await third.rest("r", 3) == [(4, "think"), (5, "terminate")], "no end is told twice"
    assert (await third.ask(AwaitOutcome(run_id="r"))).outcome.message == "done"


async def test_an_end_that_nobody_had_read_is_told_by_the_next_incarnation(shards: Any, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    first = shards()
    await first.begin("r", thread_id="t")
    assert (await first.ask(AwaitOutcome(run_id="r"))).outcome.message == "done"
    while b'"over":true' not in first.register.values["run/r"]:
        await asyncio.sleep(0)
    second = shards(first.die())
    assert await second.rest("r", -1) == [(0, "custom"), (1, "terminate")]
    assert (await second.ask(AwaitOutcome(run_id="r"))).outcome.message == "done"


async def test_what_a_reader_that_is_far_behind_misses(shards: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.actors.supervisor.begun_runs.TOLD_BYTES", 0)
    first = shards()
    await first.begin("r", thread_id="t")
    last = -1
    while last < 2:
        events, _ = await first.read("r", last)
        last = events[-1][0]
    second = shards(first.die())
    (tmp_path / "gate").touch()
    first_of_last_answer = events[0][0]
    assert (await second.rest("r", first_of_last_answer - 1))[0] == events[0], "an answer that was lost on the way comes again"
    if first_of_last_answer:
        with pytest.raises(EventsExpired, match=f"the oldest is {first_of_last_answer}"):
            await second.read("r", -1)


async def test_a_run_without_a_thread_is_lost_and_said_to_be(shards: Any) -> None:
    first = shards()
    await first.begin("r")
    second = shards(first.die())
    for message in (AwaitOutcome(run_id="r"), ReadEvents(run_id="r")):
        with pytest.raises(RunLost, match="its supervisor died, and it had no thread"):
            await second.ask(message)
    assert [run.status for run in (await second.ask(ListRuns())).runs] == ["lost"]
    assert second.register.values == {}


async def test_a_run_that_kills_its_supervisors_is_given_up(shards: Any) -> None:
    shard = shards(max_recoveries=1)
    await shard.begin("r", thread_id="t", timeout=60)
    for _ in range(2):
        await asyncio.sleep(0.01)
        shard = shards(shard.die(), max_recoveries=1)
        await shard.ask(ListRuns())
    with pytest.raises(RunLost, match=r"its supervisor died over it 2 times \(Topology.max_recoveries\)"):
        await shard.ask(AwaitOutcome(run_id="r"))


async def test_runs_keep_their_places_in_the_queue_of_a_thread(shards: Any, tmp_path: Path) -> None:
    first = shards()
    for number in range(4):
        await first.begin(f"r{number}", thread_id="t")
    await first.until("r0", 2)
    left = first.die()
    left.values = dict(reversed(left.values.items()))
    second = shards(left)
    start = StartRun(run_id="waits", definition=second.definitions.register(second.agent), prompt="last", thread_id="t")
    waiting = asyncio.ensure_future(second.ask(start))  # a driver sends it before the others are known again
    assert (await second.read("r0", 2))[0] == [(3, "custom")]
    (tmp_path / "gate").touch()
    outcomes = [(await second.ask(AwaitOutcome(run_id=f"r{number}"))).outcome for number in range(4)]
    outcomes.append((await waiting).outcome)
    assert [outcome.message for outcome in outcomes] == ["done"] * 5
    assert [len(outcome.state_json or b"") for outcome in outcomes[:4]] == sorted(
        len(outcome.state_json or b"") for outcome in outcomes[:4]
    ), "each saw the turns before it"


async def test_a_cancel_is_not_forgotten(shards: Any) -> None:
    first = shards()
    await first.begin("r", thread_id="t")
    await first.until("r", 2)
    begun = first.register.left()
    assert (await first.ask(CancelRun(run_id="r"))).count == 1
    first.die()
    begun.values["run/r"] = first.register.values["run/r"].replace(b'"over":true', b'"over":false')
    second = shards(begun)
    assert (await second.ask(AwaitOutcome(run_id="r"))).outcome.stop_reason == "cancelled"


async def test_a_request_that_comes_again_begins_nothing(shards: Any, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    shard = shards()
    for _ in range(3):
        await shard.begin("r", thread_id="t")
    assert (await shard.ask(AwaitOutcome(run_id="r"))).outcome.message == "done"
    assert (tmp_path / "paid").read_text() == "paid;" and len((await shard.ask(ListRuns())).runs) == 1


async def test_the_register_holds_what_is_needed_and_no_more(shards: Any, tmp_path: Path) -> None:
    shard = shards(kept_runs=1)
    for number in range(3):
        await shard.begin(f"r{number}", thread_id=f"t{number}")
    definition = f"definition/{shard.agent.packed[0]}"
    assert {*shard.register.values} == {"run/r0", "run/r1", "run/r2", definition}
    (tmp_path / "gate").touch()
    for number in range(3):
        await shard.ask(AwaitOutcome(run_id=f"r{number}")) if number == 2 else None
    while len(shard.register.values) > 2:
        await asyncio.sleep(0.005)
    [left] = (await shard.ask(ListRuns())).runs
    assert {*shard.register.values} == {f"run/{left.run_id}", definition}
    await shard.begin("volatile")
    await shard.ask(AwaitOutcome(run_id="volatile"))
    while shard.register.values:
        await asyncio.sleep(0.005)


async def test_what_cannot_be_read_does_not_stop_the_others(
    shards: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = shards()
    await first.begin("good", thread_id="t")
    await first.begin("bad", thread_id="u")
    left = first.die()
    left.values["told/bad"] = left.values["run/bad"]
    second = shards(left)
    (tmp_path / "gate").touch()
    assert (await second.ask(AwaitOutcome(run_id="good"))).outcome.message == "done"
    with pytest.raises(RunNotFound, match="no run 'bad' was begun here"):
        await second.ask(AwaitOutcome(run_id="bad"))
    assert "bad" in caplog.text


def test_a_log_is_bounded() -> None:
    space = Space(limit=100)
    log, other = EventLog(5, 3, 50, space), EventLog(0, 10, 1_000, space)
    for number in range(5):
        log.append(b"%d" % number)
    assert (log.oldest, log.next, log.read(7, 99), space.used) == (7, 10, [b"2", b"3", b"4"], 3)
    assert log.read(8, 1) == [b"3"] and log.read(9, 0) == [b"4"] and log.read(10, 9) == []
    assert log.before(9, 99) == [b"2", b"3"] and log.before(9, 1) == [b"3"] and log.before(7, 99) == []
    log.append(b"x" * 60)
    assert (log.oldest, space.used) == (10, 60), "one is kept, however large"
    for _ in range(3):
        other.append(b"y" * 30)
    assert (other.oldest, space.used) == (2, 90), "what is full makes the one grow less that tells the next"
    other.clear()
    assert (other.next, space.used) == (3, 60)
