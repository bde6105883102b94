from __future__ import annotations

import pytest

from umbel.actors.supervisor.hooks import AfterModelCall, BeforeModelCall, ModelRetryHook
from umbel.errors import ConfigurationError
from umbel.events import RunInfo
from umbel.protocol.messages import ModelResponse
from umbel.testing import text, tool_call

from .tiny_loop import TinyLoop


class Naps:
    """A sleep that only writes down how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.spec("HOOK-35")
async def test_empty_replies_are_retried_with_doubling_delays() -> None:
    naps = Naps()
    loop = TinyLoop([ModelRetryHook(sleep=naps)], [text(""), text("  \n"), text(""), text("at last")])
    state = await loop.run("go")
    assert state.messages[-1].content == "at last"
    assert naps.seconds == [1.0, 2.0, 4.0]


@pytest.mark.spec("HOOK-35")
async def test_it_gives_up_after_its_retries_and_starts_afresh_at_the_next_call() -> None:
    naps = Naps()
    hook = ModelRetryHook(2, initial_delay=20, sleep=naps)
    await TinyLoop([hook], [text("")] * 3).run("go")
    assert naps.seconds == [20, 30]
    await TinyLoop([hook], [text(""), text("fine")]).run("go")
    assert naps.seconds == [20, 30, 20]
    assert len(hook._retries) == 0


@pytest.mark.parametrize("reply", [text("words"), tool_call("add")])
async def test_replies_with_text_or_calls_are_accepted(reply: ModelResponse) -> None:
    event = AfterModelCall(response=reply)
    await ModelRetryHook(sleep=Naps()).on_after_model_call(event)
    assert event.retry is False


@pytest.mark.spec("HOOK-35")
async def test_concurrent_runs_do_not_share_their_count() -> None:
    naps = Naps()
    hook = ModelRetryHook(1, sleep=naps)
    retries: dict[str, list[bool]] = {"a": [], "b": []}
    for run_id in "ab":
        await hook.on_before_model_call(BeforeModelCall(messages=(), run=RunInfo(run_id=run_id)))
    for run_id in "abab":
        event = AfterModelCall(response=text(""), run=RunInfo(run_id=run_id))
        await hook.on_after_model_call(event)
        retries[run_id].append(event.retry)
    assert retries == {"a": [True, False], "b": [True, False]}
    assert naps.seconds == [1.0, 1.0]


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must not be negative"):
        ModelRetryHook(-1)
