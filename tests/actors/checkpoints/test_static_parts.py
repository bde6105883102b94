"""Long system prompts are stored once, and come back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from umbel.actors.checkpoints import Baseline, Store, build_save, open_store, restore
from umbel.actors.checkpoints.conformance.requests import garbage
from umbel.actors.checkpoints.static_parts import LONG, MARK, references
from umbel.protocol.commands import CheckpointLoaded, SaveCheckpoint
from umbel.protocol.errors import CheckpointError
from umbel.protocol.messages import Message
from umbel.protocol.state import AgentState

PROMPT = "You are careful, and you know the rules of the house by heart: naïve 😀. " * 500


def built(
    state: AgentState, number: int = 0, baseline: Baseline | None = None, **fields: Any
) -> tuple[SaveCheckpoint, Baseline]:
    fields = {"thread_id": "thread"} | fields
    save, baseline = build_save(
        state, store="memory://", checkpoint_id=f"c{number}", created_at=1.0, baseline=baseline, every=10, **fields
    )
    return save, baseline


def conversation(*messages: Message) -> AgentState:
    state = AgentState(run_id="r")
    for message in messages:
        state = state.with_message(message)
    return state


@pytest.mark.case(18)
@pytest.mark.spec("OURS-22")
async def test_a_prompt_is_stored_once_in_200_turns_and_three_resumes(store: Store) -> None:
    state, baseline = conversation(Message.system(PROMPT)), None
    written = sent = 0
    for number in range(200):
        if number in {50, 100, 150}:  # another process goes on
            baseline = restore(await store.load("thread"))
            assert baseline is not None and baseline.state == state
            state = baseline.state
        state = state.with_message(Message.user(f"question {number}")).with_message(Message.assistant("answer " * 20))
        save, baseline = built(state, number, baseline)
        [outcome] = await store.save([save])
        written += len(save.state)
        sent += len(save.statics)
        assert PROMPT[:40].encode() not in save.state
        assert not isinstance(outcome, CheckpointError)

    assert sent == 1
    assert written < 3 * len(state.model_dump_json()), "and all that was said, in snapshots and deltas"
    found = restore(await store.load("thread"))
    assert found is not None and found.state == state
    early = restore(await store.load("thread", "c3"))
    assert early is not None and early.state.messages[0].content == PROMPT


@pytest.mark.case(18)
async def test_a_file_holds_a_prompt_once_for_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    store = open_store(f"sqlite:///{path}?synchronous=normal")
    for number in range(30):
        await store.save([built(conversation(Message.system(PROMPT)), thread_id=f"t{number}")[0]])
    await store.close()
    assert 480 < path.read_bytes().count(b"You are careful") <= 500, "a few lie across two pages"
    assert path.stat().st_size < 5 * len(PROMPT.encode()), "not 30 times"


@pytest.mark.parametrize(
    "text",
    [
        "short",
        "",
        "x" * (LONG - 1),
        "x" * LONG,
        "é😀\x00\r\n" * LONG,
        MARK,
        MARK + "d" * 64,
        MARK + "not a hash",
        f'{{"content":"{MARK}{"d" * 64}"}}' * 20,
    ],
)
async def test_every_text_comes_back_exactly(store: Store, text: str) -> None:
    state = conversation(Message.system(text), Message.user(text), Message.assistant(text), Message.user("last"))
    first, baseline = built(state)
    second, _ = built(state.with_message(Message.system(text)).with_message(Message.system(PROMPT)), 1, baseline)
    await store.save([first, second])
    for checkpoint_id, messages in (("c0", 4), ("c1", 6)):
        found = restore(await store.load("thread", checkpoint_id))
        assert found is not None
        assert [message.content for message in found.state.messages] == [text, text, text, "last", text, PROMPT][:messages]


async def test_a_prompt_that_changes_and_changes_back(store: Store) -> None:
    other = "Something else. " * 100
    baseline: Baseline | None = None
    sent = []
    for number, prompt in enumerate([PROMPT, other, other, PROMPT]):
        save, baseline = built(conversation(Message.system(prompt), Message.user("x")), number, baseline)
        await store.save([save])
        sent.append(len(save.statics))
    assert sent == [1, 1, 0, 1], "a text is sent unless the parent refers to it: only then the store surely has it"
    for number, prompt in enumerate([PROMPT, other, other, PROMPT]):
        found = restore(await store.load("thread", f"c{number}"))
        assert found is not None and found.state.messages[0].content == prompt


async def test_a_collected_thread_goes_on_with_its_prompt(store: Store) -> None:
    state, baseline = conversation(Message.system("Old. " * 500)), None
    for number in range(5):
        state = state.with_message(Message.user(str(number)))
        save, baseline = built(state, number, baseline)
        await store.save([save])
    state = state.evolve(messages=(Message.system(PROMPT), *state.messages[1:]))
    save, baseline = built(state, 5, baseline)
    await store.save([save])
    freed = await store.collect(garbage(keep=1))
    assert (freed.checkpoints, freed.static_parts) == (5, 1)

    found = restore(await store.load("thread"))
    assert found is not None and found.state == state
    save, _ = built(found.state.with_message(Message.user("on")), 6, found)
    assert (save.kind, save.statics) == ("delta", {})
    await store.save([save])
    again = restore(await store.load("thread"))
    assert again is not None and again.state.messages[0].content == PROMPT


def test_a_missing_text_is_an_error_that_names_it() -> None:
    save, _ = built(conversation(Message.system(PROMPT)))
    [digest] = references(save.state)
    loaded = CheckpointLoaded(checkpoint_id="c0", state=save.state, statics=save.statics)
    assert restore(loaded) is not None
    with pytest.raises(CheckpointError, match=f"'c0' is damaged: the store has lost the text {digest}"):
        restore(loaded.evolve(statics={}))
    with pytest.raises(CheckpointError, match=f"the text {digest} of a system message was changed"):
        restore(loaded.evolve(statics={digest: PROMPT + "!"}))


def test_what_only_looks_like_a_reference_is_none() -> None:
    digest = "d" * 64
    save, _ = built(conversation(Message.user(f'see "{MARK}{digest}" and {{"content":"{MARK}{digest}"}}')))
    assert references(save.state) == set()
