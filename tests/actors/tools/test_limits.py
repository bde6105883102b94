"""Long results: cut in the middle, or stored once and referenced."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest

from umbel.actors.tools.limits import cut, limited
from umbel.actors.tools.result_store import (
    DirectoryResultStore,
    MemoryResultStore,
    ResultStore,
    StoredResults,
    result_key,
    stored_key,
)
from umbel.protocol.errors import ConfigurationError, StoreUnavailable
from umbel.protocol.images import count_images, image_segment
from umbel.protocol.messages import Message, ToolResult

PNG = image_segment(b"p" * 3_000, "image/png")


def result(content: str = "", error: str | None = None) -> ToolResult:
    return ToolResult(tool_call_id="c", name="t", content=content, error=error, structured_content={"whole": True})


def numbered(size: int, seed: str = "") -> str:
    return (seed + "".join(f"{n:07} " for n in range(size // 8 + 1)))[:size]


class Plain:
    """A store of someone else: sync, and it may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.texts: dict[str, str] = {}
        self.threads: list[int] = []
        self.error = error

    def save(self, key: str, text: str) -> None:
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.texts[key] = text

    def load(self, key: str) -> str | None:
        return self.texts.get(key)


class Awaited(Plain):
    """Its save is sync and gives an awaitable."""

    def save(self, key: str, text: str) -> Awaitable[None]:  # type: ignore[override]
        async def store() -> None:
            Plain.save(self, key, text)

        return store()


@pytest.mark.spec("LOOP-91")
async def test_head_and_tail_stay_around_a_marker() -> None:
    text = numbered(100_000)
    short = await limited(result(text), limit=32_000, head_fraction=0.4, store=None)
    head, marker, tail = short.content.split("\n")
    assert head == text[:12_800]
    assert tail == text[-19_200:]
    assert "68,000 of 100,000 characters" in marker
    assert short.structured_content == {"whole": True}
    assert Message.tool(short).content == short.content


@pytest.mark.spec("LOOP-91", "BUG-39")
async def test_the_verdict_at_the_end_survives() -> None:
    output = "collected 3,000 tests\n" + "." * 200_000 + "\n1 failed, 2,999 passed"
    short = await limited(result(output), limit=1_000, head_fraction=0.4, store=None)
    assert short.content.startswith("collected")
    assert short.content.endswith("1 failed, 2,999 passed")
    assert len(short.content) < 1_200


@pytest.mark.spec("LOOP-91")
@pytest.mark.parametrize(("text", "limit"), [("x" * 32_000, 32_000), ("x" * 99, 0), ("é" * 10 + PNG, 10), ("", 1)])
async def test_what_fits_is_left_alone(text: str, limit: int) -> None:
    whole, store = result(text), MemoryResultStore()
    assert await limited(whole, limit=limit, head_fraction=0.4, store=StoredResults(store, threshold=0, preview=0)) is whole
    assert len(store) == 0


@pytest.mark.spec("LOOP-91", "STATE-6")
async def test_images_are_taken_out_before_a_cut() -> None:
    text = "a" * 60 + PNG + "b" * 60
    short = await limited(result(text), limit=100, head_fraction=0.4, store=None)
    assert count_images(short.content) == 0
    assert short.content.startswith("a" * 40 + "\n") and short.content.endswith("\n" + "b" * 60)
    assert "20 of 120 characters and its images" in short.content


@pytest.mark.parametrize(("fraction", "head", "tail"), [(0.0, 0, 10), (1.0, 10, 0), (0.5, 5, 5)])
def test_shares(fraction: float, head: int, tail: int) -> None:
    first, _, last = cut("abcdefghijklmnopqrstuvwxyz", 10, fraction).split("\n")
    assert (len(first), len(last)) == (head, tail)
    assert cut("abc", 10, fraction) == "abc"


@pytest.mark.spec("LOOP-91", "BUG-38")
async def test_a_long_error_is_limited_too_and_stays_an_error() -> None:
    short = await limited(result(error=numbered(500)), limit=100, head_fraction=0.4, store=None)
    assert short.error is not None and "400 of 500" in short.error and not short.success


@pytest.mark.spec("TOOL-42", "TOOL-43", "OURS-20")
async def test_a_large_result_is_stored_and_referenced() -> None:
    store, text = MemoryResultStore(), numbered(40_000)
    short = await limited(result(text), limit=32_000, head_fraction=0.4, store=store)
    key = stored_key(short.content)
    assert key == result_key(text)
    assert await store.load(key) == text
    lead, head, gap, tail = short.content.split("\n")
    assert "40,000 characters" in lead and "first 3,200" in lead and "last 4,800" in lead
    assert (head, gap, tail) == (text[:3_200], "[...]", text[-4_800:])


@pytest.mark.spec("TOOL-43", "OURS-20")
async def test_two_results_share_a_key_only_when_they_are_equal() -> None:
    store = MemoryResultStore()
    texts = [numbered(40_000, "a"), numbered(40_000, "b"), numbered(40_000, "a")]
    keys = [stored_key((await limited(result(text), limit=10, head_fraction=0.4, store=store)).content) for text in texts]
    assert keys[0] == keys[2] != keys[1]
    assert len(store) == 2
    assert [await store.load(key or "") for key in keys] == texts


@pytest.mark.spec("TOOL-44")
async def test_a_higher_threshold_of_the_store_lets_results_through() -> None:
    whole, store = result(numbered(20_000)), MemoryResultStore()
    assert (await limited(whole, limit=10_000, head_fraction=0.4, store=store)).content == whole.content
    assert len(store) == 0


@pytest.mark.spec("TOOL-44")
@pytest.mark.parametrize("text", ["", "plain", "see [This result of 5 characters is stored under x. ]", "[This result of"])
def test_other_texts_hold_no_key(text: str) -> None:
    assert stored_key(text) is None


@pytest.mark.spec("TOOL-42")
def test_preview_and_threshold_are_checked() -> None:
    store = MemoryResultStore()
    assert (StoredResults(store).threshold, StoredResults(store).preview) == (32_000, 8_000)
    StoredResults(store, threshold=5, preview=5)
    for threshold, preview in ((5, 6), (5, -1)):
        with pytest.raises(ValueError, match="preview"):
            StoredResults(store, threshold=threshold, preview=preview)
    with pytest.raises(ConfigurationError, match=r"save\(key, text\)"):
        StoredResults(object())  # type: ignore[arg-type]


async def test_nothing_of_a_stored_result_need_be_shown() -> None:
    kept = StoredResults(MemoryResultStore(), threshold=10, preview=0)
    short = await limited(result("x" * 11), limit=10, head_fraction=0.4, store=kept)
    assert "x" * 2 not in short.content
    assert stored_key(short.content) == result_key("x" * 11)


@pytest.mark.spec("TOOL-45")
@pytest.mark.parametrize("kind", [Plain, Awaited])
async def test_a_store_may_be_sync_or_async(kind: type[Plain]) -> None:
    store, text = kind(), numbered(40_000)
    short = await limited(result(text), limit=10, head_fraction=0.4, store=store)
    assert store.texts == {stored_key(short.content): text}
    assert (threading.get_ident() in store.threads) is (kind is Awaited), "a sync one never holds up the loop"


@pytest.mark.spec("TOOL-45", "OURS-20")
@pytest.mark.parametrize("kind", [Plain, Awaited])
async def test_a_failing_store_loses_nothing_that_a_cut_keeps(kind: type[Plain], caplog: pytest.LogCaptureFixture) -> None:
    store, text = kind(OSError("disk full, password=hunter2hunter2")), numbered(40_000)
    with caplog.at_level(logging.WARNING, "umbel.tools"):
        short = await limited(result(text), limit=1_000, head_fraction=0.4, store=store)
    assert short.success
    assert short.content.startswith(text[:400]) and short.content.endswith(text[-600:])
    assert "storing the whole failed: OSError: disk full" in short.content
    assert "hunter2" not in short.content
    assert "could not be stored" in caplog.text


async def test_a_directory_keeps_each_content_once(tmp_path: Path) -> None:
    store: DirectoryResultStore = pickle.loads(pickle.dumps(DirectoryResultStore(tmp_path / "deep" / "results")))
    assert issubclass(DirectoryResultStore, ResultStore)
    text = "a\r\nb\n\u2028é" * 5_000
    key = result_key(text)
    assert store.load(key) is None
    for _ in range(2):
        short = await limited(result(text), limit=10, head_fraction=0.4, store=store)
        assert stored_key(short.content) == key
    assert store.load(key) == text
    assert [path.name for path in store.folder.iterdir()] == [f"{key}.txt"]


@pytest.mark.parametrize("key", ["../etc/passwd", "result-", "result-" + "0" * 63, "result-" + "0" * 64 + "/x", ""])
def test_a_directory_takes_no_other_keys(tmp_path: Path, key: str) -> None:
    store = DirectoryResultStore(tmp_path)
    with pytest.raises(ConfigurationError, match="not the key"):
        store.load(key)
    with pytest.raises(ConfigurationError, match="not the key"):
        store.save(key, "text")


def test_an_outage_is_an_error_and_not_nothing(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    store = DirectoryResultStore(in_the_way)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.save(result_key("x"), "x")
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        store.load(result_key("x"))
