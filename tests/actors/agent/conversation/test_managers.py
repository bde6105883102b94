"""Managers shorten requests and never break them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from umbel.actors.agent.conversation import (
    ConversationManager,
    LLMCompactor,
    NullManager,
    SlidingWindow,
    SummarizingManager,
    manage,
)
from umbel.actors.agent.conversation.steps import is_summary
from umbel.actors.agent.models import paired
from umbel.protocol.errors import ConfigurationError
from umbel.protocol.messages import Message
from umbel.protocol.state import estimate_tokens

from .histories import calls, check_shortened, histories, result, turn, work


class Summariser:
    """Records what it is asked, and answers ``S1``, ``S2``..., or fails."""

    def __init__(self, failing: bool = False) -> None:
        self.asked: list[list[Message]] = []
        self.failing = failing

    async def __call__(self, messages: list[Message]) -> str:
        self.asked.append(messages)
        if self.failing:
            raise RuntimeError("no model")
        return f"S{len(self.asked)}"


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content or "" for message in messages]


def summaries(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if is_summary(message)]


MANAGERS = st.one_of(
    st.builds(NullManager),
    st.integers(1, 12).flatmap(lambda n: st.builds(SlidingWindow, st.just(n), slide_step=st.integers(1, n))),
    st.builds(
        SummarizingManager,
        st.integers(5, 12),
        st.integers(1, 4),
        st.sampled_from([None, Summariser(), Summariser(failing=True)]),
    ),
    st.builds(
        LLMCompactor,
        st.sampled_from([50, 300, 1_500]),
        head_turns=st.integers(0, 3),
        tool_output_ttl=st.integers(1, 5),
        slide_step=st.integers(1, 4),
        summarise=st.sampled_from([None, Summariser(), Summariser(failing=True)]),
    ),
)


@pytest.mark.spec("MEM-1")
@pytest.mark.case(13)
@settings(deadline=None)  # the machine may be busy
@given(MANAGERS, histories())
def test_whatever_is_sent_is_valid_and_keeps_what_matters(manager: ConversationManager, history: list[Message]) -> None:
    given = list(history)
    for request in (manager.apply(history), asyncio.run(manage(manager, history))):
        check_shortened(history, request)
        assert request is not history
    assert history == given


@settings(deadline=None)  # the machine may be busy
@given(MANAGERS, st.lists(st.sampled_from([Message.user("u"), Message.system("s"), calls("a", "b"), result("a"), result("x")])))
def test_broken_conversations_are_repaired_not_refused(manager: ConversationManager, history: list[Message]) -> None:
    if not isinstance(manager, NullManager):
        request = manager.apply(history)
        assert paired(request) == request


class LastTwo:
    """Somebody's own manager, which knows nothing of calls and results."""

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages[-2:])


class LastTwoLater(LastTwo):
    async def aapply(self, messages: Sequence[Message]) -> list[Message]:
        return [*messages[:2], *self.apply(messages)]


@pytest.mark.spec("LOOP-43")
@pytest.mark.case(13)
async def test_what_another_manager_separates_is_dropped_and_its_async_form_is_preferred() -> None:
    messages = [*work(0), calls("a", "b", text="looking"), result("a"), result("b"), Message.assistant("done")]
    assert await manage(LastTwo(), messages) == messages[-1:]
    assert await manage(LastTwo(), messages[:3]) == [Message.user("request"), Message.assistant("looking")]
    assert await manage(LastTwoLater(), messages) == [*work(0), messages[-1]]


@pytest.mark.spec("MEM-2")
def test_the_null_manager_copies() -> None:
    messages = work(3)
    request = NullManager().apply(messages)
    assert request == messages and request is not messages


class TestSlidingWindow:
    @pytest.mark.spec("MEM-3")
    def test_defaults_and_limits(self) -> None:
        window = SlidingWindow()
        assert (window.window_size, window.preserve_system, window.preserve_first_user, window.slide_step) == (
            20,
            True,
            True,
            1,
        )
        for size, step in [(0, 1), (5, 0), (5, 6)]:
            with pytest.raises(ConfigurationError, match="SlidingWindow"):
                SlidingWindow(size, slide_step=step)

    @pytest.mark.spec("MEM-4")
    @pytest.mark.case(13)
    def test_it_drops_whole_steps_and_keeps_prompt_and_request(self) -> None:
        messages = [*work(2), calls("a", "b"), result("a"), result("b"), Message.assistant("done")]
        assert SlidingWindow(3).apply(messages) == [*messages[:2], messages[-1]]
        assert SlidingWindow(4).apply(messages) == [*messages[:2], *messages[-4:]]

    @pytest.mark.spec("MEM-4", "BUG-53")
    def test_the_request_is_the_one_that_opened_this_turn(self) -> None:
        messages = [*work(1), Message.assistant("answer"), Message.user("second"), *turn(8), *turn(9)]
        assert texts(SlidingWindow(2).apply(messages))[:2] == ["system", "second"]
        note = Message.user("go on", automated=True)
        assert Message.user("second") in SlidingWindow(2).apply([*messages, note])  # a note is not a request
        assert Message.user("second") not in SlidingWindow(2, preserve_first_user=False).apply(messages)

    @pytest.mark.spec("MEM-4")
    def test_orphans_go_and_later_system_messages_are_nothing_special(self) -> None:
        messages = [result("lost"), *work(0), Message.system("note"), *turn(1), *turn(2)]
        assert SlidingWindow(2).apply(messages[1:]) == [*work(0), *turn(2)]
        assert result("lost") not in SlidingWindow(20).apply(messages)
        assert SlidingWindow(2, preserve_system=False).apply(messages[1:]) == [Message.user("request"), *turn(2)]

    def test_the_newest_step_is_sent_even_where_it_is_larger_than_the_window(self) -> None:
        batch = [calls("a", "b", "c"), result("a"), result("b"), result("c")]
        assert SlidingWindow(2).apply([*work(3), *batch]) == [*work(0), *batch]

    @pytest.mark.spec("MEM-5")
    def test_the_cut_moves_in_jumps(self) -> None:
        window = SlidingWindow(12, slide_step=6)
        cuts = []
        messages = work(0)
        for number in range(30):
            messages += turn(number)
            request = window.apply(messages)
            assert len(request) <= 12 + 2
            cuts.append(len(messages) - len(request))
        moves = [n for n in range(1, len(cuts)) if cuts[n] != cuts[n - 1]]
        assert len(moves) >= 5
        assert all(later - earlier >= 3 for earlier, later in pairwise(moves))


class TestSummarizingManager:
    @pytest.mark.spec("MEM-6")
    def test_defaults_and_limits(self) -> None:
        manager = SummarizingManager()
        assert (manager.threshold, manager.keep_recent) == (30, 10)
        for keep in (0, 30, 31):
            with pytest.raises(ConfigurationError, match="keep_recent"):
                SummarizingManager(30, keep)

    @pytest.mark.spec("MEM-6")
    async def test_the_older_messages_become_a_system_message_behind_every_leading_one(self) -> None:
        summarise = Summariser()
        manager = SummarizingManager(10, 4, summarise)
        messages = [Message.system("first"), Message.system("second"), *work(6)[1:]]
        request = await manager.aapply(messages)
        assert request[:2] == messages[:2]
        assert request[2].role == "system" and "S1" in (request[2].content or "") and request[2].metadata["automated"]
        assert request[3:] == [Message.user("request"), *messages[-4:]]
        assert summarise.asked == [messages[2:-4]]

    @pytest.mark.spec("MEM-6")
    def test_the_sync_form_says_what_is_missing(self) -> None:
        summarise = Summariser()
        request = SummarizingManager(10, 4, summarise).apply(work(6))
        assert "9 earlier messages" in (request[1].content or "") and summarise.asked == []

    async def test_a_summary_is_made_once_and_then_carried_forward(self) -> None:
        summarise = Summariser()
        manager = SummarizingManager(10, 4, summarise)
        lengths = []
        for turns in range(6, 30):
            request = await manager.aapply(work(turns))
            assert len(summaries(request)) == 1
            lengths.append(len(request))
        assert max(lengths) <= 1 + 1 + 1 + 10
        assert len(summarise.asked) < 10
        assert "S1" in (summarise.asked[1][0].content or "")
        assert manager.apply(work(29)) == request  # also the sync form knows it by now

    @pytest.mark.spec("MEM-6")
    async def test_what_is_remembered_is_bounded(self) -> None:
        manager = SummarizingManager(3, 1, Summariser())
        for number in range(400):
            await manager.aapply([Message.user(f"{number} {n}") for n in range(5)])
        assert len(manager._summaries) == manager._summaries.limit == 256

    async def test_a_failing_summary_leaves_a_note(self) -> None:
        request = await SummarizingManager(10, 4, Summariser(failing=True)).aapply(work(6))
        assert "9 earlier messages" in (request[1].content or "")


class TestLLMCompactor:
    @pytest.mark.spec("MEM-7")
    def test_defaults_and_limits(self) -> None:
        made = LLMCompactor()
        assert (made.context_length, made.trigger, made.head_turns, made.tail_fraction) == (128_000, 0.8, 2, 0.5)
        assert (made.tool_output_ttl, made.slide_step, made.summarise, made.limit) == (10, 1, None, 102_400)
        wrong = [("trigger", 0), ("head_turns", -1), ("tail_fraction", 1.0), ("tool_output_ttl", 0), ("slide_step", 0)]
        for name, value in wrong:
            with pytest.raises(ConfigurationError, match=name):
                LLMCompactor(**{name: value})  # type: ignore[arg-type]

    @pytest.mark.spec("MEM-7")
    def test_below_the_trigger_everything_is_sent(self) -> None:
        assert LLMCompactor(10_000).apply(work(20)) == work(20)

    @pytest.mark.spec("MEM-7")
    def test_old_outputs_go_first(self) -> None:
        messages = work(20)  # about 2,100 tokens
        request = LLMCompactor(2_400).apply(messages)
        cleared = [n for n, message in enumerate(request) if message != messages[n]]
        assert len(request) == len(messages)
        assert cleared == [3 + 2 * n for n in range(10)]
        assert all("was carried out" in (request[n].content or "") for n in cleared)

    @pytest.mark.spec("MEM-7")
    async def test_then_the_middle_becomes_a_summary_in_the_users_role(self) -> None:
        summarise = Summariser()
        compactor = LLMCompactor(1_000, head_turns=1, summarise=summarise)
        messages = work(20)
        request = await compactor.aapply(messages)
        (note,) = summaries(request)
        assert note.role == "user" and "S1" in (note.content or "")
        assert request[:4] == [*messages[:3], request[3]] and request[-2:] == messages[-2:]
        assert estimate_tokens(request) <= compactor.limit
        asked = summarise.asked[0]
        assert asked == messages[4 : 4 + len(asked)]  # whole outputs, not the cleared ones

    @pytest.mark.spec("MEM-7")
    def test_without_a_summary_head_and_tail_are_sent(self) -> None:
        compactor = LLMCompactor(1_000, head_turns=1)
        request = compactor.apply(work(20))
        assert "earlier messages are not shown" in (summaries(request)[0].content or "")
        assert estimate_tokens(request) <= compactor.limit

    @pytest.mark.spec("MEM-8")
    async def test_a_failing_summary_falls_back_to_head_and_tail(self) -> None:
        failing = LLMCompactor(1_000, head_turns=1, summarise=Summariser(failing=True))
        assert await failing.aapply(work(20)) == LLMCompactor(1_000, head_turns=1).apply(work(20))

    @pytest.mark.spec("MEM-8")
    async def test_a_summary_is_carried_forward_in_its_own_thread_only(self) -> None:
        summarise = Summariser()
        compactor = LLMCompactor(1_000, head_turns=1, summarise=summarise)
        one = work(20)
        other = [Message.system("system"), Message.user("request"), *(m for n in range(50, 70) for m in turn(n))]
        for messages in (one, other, [*one, *(m for n in range(20, 32) for m in turn(n))]):
            await compactor.aapply(messages)
        first, second, third = summarise.asked
        assert summaries(first) == summaries(second) == []
        assert "S1" in (third[0].content or "") and "S2" not in (third[0].content or "")

    async def test_a_summary_serves_until_the_request_is_too_large_again(self) -> None:
        summarise = Summariser()
        compactor = LLMCompactor(1_000, head_turns=1, summarise=summarise)
        for turns in range(20, 40):
            request = await compactor.aapply(work(turns))
            assert estimate_tokens(request) <= compactor.limit
            assert len(summaries(request)) == 1
            assert compactor.apply(work(turns)) == request  # the sync form knows it by now
        assert len(summarise.asked) < 12

    def test_clearing_moves_in_jumps(self) -> None:
        compactor = LLMCompactor(4_000, tool_output_ttl=3, slide_step=4)
        horizons = []
        for turns in range(35, 60):
            request = compactor.apply(work(turns))
            assert summaries(request) == [] and len(request) == len(work(turns))
            horizons.append(sum(one != other for one, other in zip(request, work(turns), strict=True)))
        assert {later - earlier for earlier, later in pairwise(horizons)} == {0, 4}

    def test_cuts_move_in_jumps(self) -> None:
        compactor = LLMCompactor(2_000, head_turns=1, slide_step=4)
        firsts = [compactor.apply(work(turns))[:6] for turns in range(40, 60)]
        changes = sum(one != other for one, other in pairwise(firsts))
        assert 3 <= changes <= 10


@pytest.mark.parametrize("manager", [SummarizingManager(5, 1), LLMCompactor(1_000)])
def test_managers_travel_without_what_they_remember(manager: SummarizingManager | LLMCompactor) -> None:
    fresh = pickle.dumps(manager)
    manager._summaries.keep(b"key", "text")
    assert pickle.dumps(manager) == fresh
    assert len(pickle.loads(fresh)._summaries) == 0
