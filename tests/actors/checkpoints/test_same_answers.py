"""To a long row of random requests every store answers as the one in memory does: states, refusals, tokens, lists, counts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from umbel.actors.checkpoints import MemoryStore, Store, open_store
from umbel.actors.checkpoints.conformance.requests import a_record, a_save, begun, done, garbage, give_back, refused, take
from umbel.actors.checkpoints.static_parts import MARK
from umbel.protocol.commands import CheckpointLoaded, CheckpointSaved, SaveCheckpoint
from umbel.protocol.errors import UmbelError
from umbel.protocol.storage import GarbageCollected, LeaseTaken, ListThreads

Request = Callable[[Store], Awaitable[Any]]
THREADS = ["a", "a/b", "ä#", "x" * 300, "\u2028z", " "]
STEPS = 150


class Walk:
    """Requests as writers make them who now and then are late, rude, or wrong about what is newest."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.made = 0
        self.newest: dict[str, str] = {}
        self.lengths: dict[str, int] = {}  # messages in the state of a checkpoint
        self.tokens: dict[str, int] = {}

    def next(self, thread: str) -> Request:
        choose, token = self.random.choice, self.tokens.get(thread, 0)
        owner, rude, number = choose("PQ"), choose([True, False]), self.random.randint(1, 5)
        earlier, keep = choose([None, f"c{self.random.randint(0, self.made)}"]), choose([None, 1, 2, 3])
        where: dict[str, Any] = choose([{}, {"k": 1, "text": "é"}])
        page = ListThreads(store="", prefix=choose(["", "a"]), after=choose(["", "a"]), limit=choose([1, 2, 100]), where=where)
        calls = begun(f"call-{number}"), done(f"call-{number % 3}")
        save = self.save(thread, choose([token] * 5 + [0, 1]))
        kinds: list[tuple[int, Request]] = [
            (9, lambda store: refused(store, save)),
            (2, lambda store: refused(store, a_record(*calls, token=token, thread_id=thread))),
            (3, lambda store: take(store, owner, steal=rude, thread_id=thread)),
            (1, lambda store: give_back(store, owner, token, thread_id=thread)),
            (1, lambda store: store.delete(thread)),
            (1, lambda store: store.load(thread, earlier)),
            (1, lambda store: store.history(thread, number)),
            (1, lambda store: store.threads(page)),
            (2, lambda store: store.collect(garbage(keep=keep))),
        ]
        weights, requests = zip(*kinds, strict=True)
        request: Request = self.random.choices(requests, weights)[0]
        return request

    def save(self, thread: str, token: int) -> SaveCheckpoint:
        self.made += 1
        newest, choose = self.newest.get(thread), self.random.choice
        parent = choose([newest] * 8 + [None, "c1"])
        delta = parent is not None and choose([True, True, False])
        base = self.lengths.get(f"{thread}/{parent}", 0) if delta else 0
        name = newest if newest is not None and self.made % 7 == 0 else f"c{self.made}"
        digest = choose("12") * 64 if self.made % 3 == 0 else None
        self.lengths.setdefault(f"{thread}/{name}", base + 1)
        return a_save(
            name,
            parent,
            thread_id=thread,
            kind="delta" if delta else "snapshot",
            base=base,
            state=json.dumps({"messages": [f"m{self.made}" if digest is None else MARK + digest], "n": self.made}).encode(),
            statics={} if digest is None else {digest: f"text {digest[0]}"},
            token=token,
            settles=choose([True, False]),
            created_at=1_000.0 + self.made,
            metadata={"k": self.made % 3, "text": "é", "real": 1.5},
            entries=tuple(begun(f"call-{number}") for number in range(choose([0, 0, 2]))),
        )

    def learn(self, thread: str, answer: Any) -> None:
        if isinstance(answer, CheckpointSaved):
            self.newest[thread] = answer.checkpoint_id
        elif isinstance(answer, LeaseTaken):
            self.tokens[thread] = answer.token


async def answer_of(store: Store, request: Request) -> Any:
    try:
        return await request(store)
    except UmbelError as error:
        return error


def comparable(answer: Any) -> Any:
    """What must be the same: not when a lease ends, how many bytes things take, and when texts of refused saves go."""
    if isinstance(answer, UmbelError):
        return type(answer), {name: value for name, value in answer.details.items() if name != "expires_at"}
    if isinstance(answer, LeaseTaken):
        return answer.token
    if isinstance(answer, CheckpointLoaded):
        return answer.evolve(state=None), json.loads(answer.state or b"null")
    if isinstance(answer, GarbageCollected):
        return answer.threads, answer.checkpoints, answer.tombstones
    threads = getattr(answer, "threads", None)
    return [thread.evolve(bytes=0) for thread in threads] if isinstance(threads, tuple) else answer


@pytest.fixture(params=["sqlite", "file", "redis_server", "postgres_server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("sqlite", "file"):
        return f"{request.param}:///{tmp_path}/store?synchronous=normal"
    option = "prefix" if request.param == "redis_server" else "schema"
    return f"{request.getfixturevalue(request.param).url}?{option}=t{uuid4().hex}"


@pytest.mark.spec("OURS-15", "OURS-21", "OURS-22", "OURS-23")
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_store_answers_as_the_one_in_memory(address: str, seed: int) -> None:
    memory, store, walk = MemoryStore(), open_store(address), Walk(seed)
    for step in range(STEPS):
        thread = walk.random.choice(THREADS)
        request = walk.next(thread)
        expected = await answer_of(memory, request)
        assert comparable(await answer_of(store, request)) == comparable(expected), f"seed {seed}, step {step}"
        walk.learn(thread, expected)
        assert comparable(await store.load(thread)) == comparable(await memory.load(thread)), f"seed {seed}, step {step}"
    assert len(walk.newest) > 3, "too little was stored for this to show anything"
    await store.close()
