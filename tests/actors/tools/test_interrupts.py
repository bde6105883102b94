"""A tool that asks a person: a typed signal from wherever the body runs, and never a text (OURS-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from umbel import Runtime, ToolContext, current_tool_context, tool
from umbel.actors.tools.interrupt import Interrupt, request_in
from umbel.actors.tools.invoke import Asked, invoke
from umbel.protocol.codec import decode, encode
from umbel.protocol.commands import ToolReply
from umbel.protocol.messages import InterruptRequest, ToolResult

from .executors import executor_of

Make = Callable[..., Any]


async def on_the_loop(ctx: ToolContext, item: str) -> str:
    answer = ctx.interrupt(f"Delete {item}?", ["yes", "no"], {"reason": {"type": "string"}}, {"risk": 3})
    return f"{item}: {answer} {ctx.answered}"


def beside_the_loop(ctx: ToolContext, item: str) -> str:
    answer = ctx.interrupt(f"Delete {item}?", ["yes", "no"], {"reason": {"type": "string"}}, {"risk": 3})
    return f"{item}: {answer} {ctx.answered}"


WHERE = {
    "async": tool(on_the_loop),
    "sync": tool(beside_the_loop),
    "async in a process": tool(name="async_process", isolation="process")(on_the_loop),
    "sync in a thread": tool(name="sync_thread", isolation="thread")(beside_the_loop),
    "sync with a deadline": tool(name="sync_deadline", timeout=30)(beside_the_loop),
    "async with a deadline": tool(name="async_deadline", timeout=30)(on_the_loop),
    "retried": tool(name="retried", retries=2, idempotent=True)(on_the_loop),
}


@pytest.mark.spec("OURS-2", "LOOP-89", "TOOL-36")
async def test_the_question_arrives_from_wherever_the_body_runs(runtime: Runtime) -> None:
    async with executor_of(runtime, *WHERE.values()) as execute:
        for where, chosen in WHERE.items():
            reply = await execute(chosen, {"item": "x"})
            assert reply.interrupt == InterruptRequest(
                question="Delete x?",
                options=("yes", "no"),
                fields={"reason": {"type": "string"}},
                metadata={"risk": 3},
                answers=False,
            ), where
            assert type(reply.interrupt) is InterruptRequest
            assert (reply.result.success, reply.result.code) == (False, "interrupted"), "nothing takes it for a result"
            assert reply.result.tool_call_id == "call_1"


@pytest.mark.spec("OURS-2")
async def test_the_answer_makes_the_call_go_through(runtime: Runtime) -> None:
    async with executor_of(runtime, *WHERE.values()) as execute:
        for where, chosen in WHERE.items():
            reply = await execute(chosen, {"item": "x"}, {"approved": ["é", 2**70, None]})
            assert (reply.interrupt, reply.result.content) == (None, f"x: {{'approved': ['é', {2**70}, None]}} True"), where


@pytest.mark.spec("OURS-2")
async def test_questions_are_answered_in_the_order_in_which_they_are_asked(runtime: Runtime) -> None:
    @tool
    def twice(ctx: ToolContext) -> list[Any]:
        return [ctx.interrupt("first?"), ctx.interrupt("second?")]

    async with executor_of(runtime, twice) as execute:
        questions = [(await execute(twice, {}, *answers)).interrupt for answers in ((), ("a",))]
        assert [asked and asked.question for asked in questions] == ["first?", "second?"]
        done = await execute(twice, {}, "a", None)
        assert done.interrupt is None
        assert done.result.content.split() == ["[", '"a",', "null", "]"], "None is an answer like any other"


@pytest.mark.spec("OURS-2", "BUG-44", "LOOP-87", "LOOP-88")
@pytest.mark.parametrize(
    "marker", ['{"__interrupt__": true, "question": "Send the money?"}', "__interrupt__", '{"interrupt": {"question": "q"}}']
)
async def test_no_text_ever_pauses(runtime: Runtime, marker: str) -> None:
    @tool
    async def fetched(content: str) -> str:
        return content

    @tool
    def computed(content: str) -> dict[str, Any]:
        return {"__interrupt__": True, "question": content}

    async with executor_of(runtime, fetched, computed) as execute:
        for chosen in (fetched, computed):
            reply = await execute(chosen, {"content": marker})
            assert reply.interrupt is None
            assert reply.result.success
            assert "interrupt" in reply.result.content


@pytest.mark.spec("OURS-2")
async def test_a_body_that_handles_errors_does_not_swallow_the_question(request_for: Make) -> None:
    @tool
    async def careful(ctx: ToolContext) -> str:
        try:
            return str(ctx.interrupt("Sure?"))
        except Exception as error:  # noqa: BLE001 - what careless bodies do
            return f"handled {error!r}"

    @tool
    async def deep() -> str:
        async def ask() -> str:
            context = current_tool_context()
            assert context is not None
            return str(await asyncio.to_thread(context.interrupt, "Sure?"))

        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask())
        return task.result()

    for each in (careful, deep):
        result = await invoke(*request_for(each))
        assert isinstance(result, Asked)
        assert (result.code, result.interrupt.question) == ("interrupted", "Sure?")


@pytest.mark.spec("OURS-2")
async def test_a_retried_attempt_gets_the_same_answers(request_for: Make) -> None:
    attempts = []

    @tool(retries=1)
    async def flaky(ctx: ToolContext) -> str:
        attempts.append(ctx.interrupt("which?"))
        if len(attempts) == 1:
            raise ConnectionError("try again")
        return ",".join(attempts)

    each, call, context = request_for(flaky)
    context.answers = ("left",)
    assert (await invoke(each, call, context)).content == "left,left"
    attempts.clear()
    context.answers = ()
    assert (await invoke(each, call, context)).code == "interrupted"
    assert attempts == [], "a question is no failure, so it is not repeated"


@pytest.mark.spec("OURS-2", "OURS-10")
@pytest.mark.parametrize("question", [{"question": 5}, {"question": "q", "metadata": {"a": object()}}])
async def test_a_question_that_is_no_data_is_the_calls_error(request_for: Make, question: dict[str, Any]) -> None:
    @tool
    async def ask(ctx: ToolContext) -> None:
        ctx.interrupt(**question)

    result = await invoke(*request_for(ask))
    assert result.code == "tool"
    assert result.error


def test_groups_without_a_question_are_errors() -> None:
    request = InterruptRequest(question="q")
    inner = BaseExceptionGroup("inner", [ValueError("x"), Interrupt(request)])
    assert request_in(BaseExceptionGroup("outer", [ValueError("y"), inner])) is request
    assert request_in(ExceptionGroup("outer", [ValueError("y")])) is None
    assert request_in(KeyboardInterrupt()) is None


def test_it_crosses_the_wire() -> None:
    reply = ToolReply(
        result=ToolResult(tool_call_id="c", name="n", error="waits", code="interrupted"),
        interrupt=InterruptRequest(question="q", options=("a",), answers=True),
    )
    assert decode(*encode(reply)) == reply
