"""Group chats: who speaks, that all read all, and how they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import CapReached, ConfigurationError, MemberFailed, NothingRan, RunFailed
from umbel.patterns.auxiliary import name_in
from umbel.patterns.group_chat import GroupChat
from umbel.patterns.pipeline import parallel, sequential
from umbel.testing import ScriptedModel, error, text, tool_call

from .team import FLOOR, FloorModel, kinds_of, member, replying


def lines_of(request: str) -> list[str]:
    """What was said, as a member reads it."""
    said = request.partition("The conversation so far:\n\n")[2]
    for end in ("\n\nYou are ", "\n\nWho speaks next?"):
        said = said.partition(end)[0]
    return said.split("\n\n") if said and said != "(nothing yet)" else []


def counting(name: str) -> Agent:
    """Says how many messages it has read."""
    return member(name, replying(lambda request: f"{len(lines_of(request))}"))


@pytest.mark.spec("OURS-24")
async def test_every_member_reads_everything(runtime: Runtime) -> None:
    read = {name: member(name, replying(lambda request: "|".join(lines_of(request)) or "start")) for name in ("ann", "bob")}
    result = await GroupChat(read, max_rounds=3).arun("Talk.")
    assert result.success and result.outputs == ["start", "ann: start", "ann: start|bob: ann: start"]
    assert result.details == {"speakers": ["ann", "bob", "ann"], "ended_by": "max_rounds"}
    assert result.final_output == result.outputs[-1] and result.metrics.model_calls == 3


@pytest.mark.spec("OURS-25")
async def test_a_cap_is_an_end_only_where_no_other_was_asked_for(inline: Runtime) -> None:
    team = [counting("ann"), counting("bob")]
    assert (await GroupChat(team, max_rounds=4).arun("Talk.")).success
    content = await GroupChat(team, max_rounds=9, until=lambda said: said == "3").arun("Talk.")
    assert content.success and len(content.outputs) == 4 and content.details["ended_by"] == "until"
    capped = await GroupChat(team, max_rounds=4, until=lambda said: said == "9").arun("Talk.")
    assert not capped.success and capped.stop_reason == "max_iterations" and isinstance(capped.error, CapReached)
    assert capped.outputs == ["0", "1", "2", "3"] and capped.error.details == {"cap": "max_rounds", "limit": 4}


async def test_a_function_chooses(inline: Runtime) -> None:
    async def choose(lines: list[dict[str, str]]) -> str | None:
        return ["bob", "bob", "ann", None][len(lines)]

    result = await GroupChat([counting("ann"), counting("bob")], speaker=choose).arun("Talk.")
    assert result.success and result.details == {"speakers": ["bob", "bob", "ann"], "ended_by": "speaker"}
    with pytest.raises(RunFailed, match="IndexError"):
        await GroupChat([counting("ann")], speaker=lambda lines: lines[0]["speaker"]).arun("Talk.")


def selector(*names: str) -> Any:
    """Chooses these, one after another."""
    return replying(lambda request: json.dumps({"speaker": names[len(lines_of(request))]}))


@pytest.mark.parametrize("plain", [False, True])
async def test_a_model_chooses(inline: Runtime, plain: bool) -> None:
    team = [counting("ann"), counting("bob")]
    if plain:
        said = replying(lambda request: ["bob", "I choose Ann.", " done "][len(lines_of(request))])
        chat = GroupChat(team, speaker=member("chair", said))
    else:
        chat = GroupChat(team, model=ScriptedModel([selector("bob", "ann", "DONE")]))
    result = await chat.arun("Talk.")
    assert result.success and result.details == {"speakers": ["bob", "ann"], "ended_by": "speaker"}
    assert result.metrics.model_calls == 2 + 3, "r n k + r, with one speaker a round"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (" ann", "ann"),
        ("ANN!", "ann"),
        ("Ann or bob", None),
        ("annabel", None),
        ("the ann-2", "ann-2"),
        ("Next: ann-2, not ann", "ann-2"),
        ("", None),
    ],
)
def test_whom_a_model_means(said: str, meant: str | None) -> None:
    assert name_in(said, ["ann", "bob", "ann-2"]) == meant


@pytest.mark.spec("OURS-25")
@pytest.mark.parametrize("on_error", ["fail", "continue"])
async def test_somebody_who_is_not_there_or_nobody_chosen(inline: Runtime, on_error: Any) -> None:
    team = [counting("ann"), counting("bob")]
    unknown = GroupChat(team, model=ScriptedModel([selector(*["eve"] * 9)]), max_rounds=2, on_error=on_error)
    broken = GroupChat(team, speaker=member("chair", error("no idea")), max_rounds=2, on_error=on_error)
    for chat, why in ((unknown, "'eve' was chosen"), (broken, "no idea")):
        result = await chat.arun("Talk.")
        if on_error == "fail":
            assert not result.success and isinstance(result.error, MemberFailed) and why in str(result.error)
        else:
            assert result.success and result.details["speakers"] == ["ann", "bob"]


@pytest.mark.spec("OURS-25")
async def test_a_member_that_fails(inline: Runtime) -> None:
    team = [counting("ann"), member("bob", error("lost its voice")), counting("cid")]
    strict = await GroupChat(team, max_rounds=3).arun("Talk.")
    assert not strict.success and "bob: ModelError: lost its voice" in str(strict.error) and strict.outputs == ["0"]
    lenient = await GroupChat(team, max_rounds=3, on_error="continue").arun("Talk.")
    assert lenient.success and lenient.details["speakers"] == ["ann", "cid"]
    assert [one.status for one in lenient.members] == ["completed", "failed", "completed"]
    silent = await GroupChat([member("bob", error("lost"))], max_rounds=3, on_error="continue", until=bool).arun("Talk.")
    assert not silent.success and isinstance(silent.error, MemberFailed)
    for nobody in (GroupChat([]), GroupChat(team, speaker=lambda lines: None)):
        result = await nobody.arun("Talk.")
        assert not result.success and isinstance(result.error, NothingRan)


@tool
async def consult(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("What now?"))


@pytest.mark.spec("OURS-24", "OURS-3")
async def test_a_speaker_may_ask_a_person_at_any_depth(inline: Runtime) -> None:
    asks = Agent(
        ScriptedModel([tool_call("consult"), lambda messages: text(str(messages[-1].content))]), [consult], name="asks"
    )
    other = Agent(FloorModel(text("hm")), name="other")
    chat = GroupChat([other, asks], max_rounds=4, name="chat")
    pattern = parallel(sequential(chat, name="inner"), name="outer", checkpointer="memory://")
    result = await pattern.arun("Talk.", thread_id="t")
    for answer in ("one", "two"):
        assert result.stop_reason == "interrupted" and len(result.interrupts) == 1
        result = await pattern.aresume(answer, thread_id="t")
    assert result.success and (result.members[0].members[0].pattern or {})["outputs"] == ["hm", "one", "hm", "two"]
    assert sum(FLOOR.came.values()) == 2, "what was said is not said again"


@pytest.mark.spec("OURS-5")
async def test_cancelled_speakers_end_with_it(inline: Runtime) -> None:
    chat = GroupChat([Agent(FloorModel(text("hm"), together=9), name="slow")], max_rounds=3)
    running = asyncio.ensure_future(chat.arun("Talk."))
    async with asyncio.timeout(20):
        while not FLOOR.now:
            await asyncio.sleep(0)
        chat.cancel()
        result = await running
    assert result.stop_reason == "cancelled" and not FLOOR.now


@pytest.mark.spec("PAT-16")
async def test_its_events(inline: Runtime) -> None:
    assert await kinds_of(GroupChat([counting("ann")], max_rounds=2), "x") == ["speaker_selected"] * 2 + ["chat_ended"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"max_rounds": 0}, "max_rounds"),
        ({"speaker": "loudest"}, "loudest"),
        ({"speaker": len, "model": "openai:gpt-4o-mini"}, "not both"),
        ({"template": "{history}"}, "history"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        GroupChat([counting("ann")], **settings)
