from __future__ import annotations

import json
from typing import Any

import pytest

from umbel.actors.agent.models.base import collect
from umbel.actors.agent.models.offline import MAX_CALLS, OfflineModel
from umbel.actors.agent.models.registry import resolve_model
from umbel.protocol.errors import ConfigurationError
from umbel.protocol.messages import Message, ModelResponse, ToolResult
from umbel.testing import validate_history


def offer(name: str, *, required: tuple[str, ...] | None = None, **properties: str | dict[str, Any]) -> dict[str, Any]:
    schemas = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(schemas if required is None else required)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


async def converse(task: str, tools: list[dict[str, Any]], results: dict[str, Any]) -> tuple[list[Message], ModelResponse]:
    """Drive the model as the agent loop does; ``results`` answers each tool by name."""
    conversation = [Message.system("You review."), Message.user(task)]
    for _ in range(10):
        validate_history(conversation)
        reply = await OfflineModel().complete(conversation, tools)
        conversation.append(reply.message)
        if not reply.tool_calls:
            return conversation, reply
        for call in reply.tool_calls:
            value = results[call.name]
            text = value if isinstance(value, str) else json.dumps(value)
            conversation.append(Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content=text)))
    raise AssertionError("the model never came to an end")


def calls_of(conversation: list[Message]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for message in conversation for call in message.tool_calls]


MEASURE = offer("measure_module", path="string")
READ = offer("read_source", path="string", start_line="integer", end_line="integer")
DELETE = offer("delete_file", path="string")
TASK = "Review the module lib/argparse.py: measure it and read the source of its longest function."


async def test_it_calls_what_the_task_asks_for_and_takes_arguments_from_results() -> None:
    measured = {"lines": 2700, "longest_function": {"name": "add", "start_line": 10, "end_line": 90}, "todos": []}
    conversation, reply = await converse(
        TASK, [MEASURE, READ, DELETE], {"measure_module": measured, "read_source": "def add(): ..."}
    )
    assert calls_of(conversation) == [
        ("measure_module", {"path": "lib/argparse.py"}),
        ("read_source", {"path": "lib/argparse.py", "start_line": 10, "end_line": 90}),
    ]
    assert reply.stop_reason == "stop"
    assert "lines 2700" in (reply.content or "")
    assert "def add(): ..." in (reply.content or "")


async def test_one_call_for_each_path_each_with_its_own_results() -> None:
    tools = [MEASURE, READ]
    first = await OfflineModel().complete([Message.user("Measure and read the source of a/x.py and /b/y.py.")], tools)
    assert [call.arguments["path"] for call in first.tool_calls] == ["a/x.py", "/b/y.py"]
    conversation = [Message.user("Measure and read the source of a/x.py and /b/y.py."), first.message]
    for call, line in zip(first.tool_calls, (1, 2), strict=True):
        content = json.dumps({"start_line": line, "end_line": line * 10})
        conversation.append(Message.tool(ToolResult(tool_call_id=call.id, name=call.name, content=content)))
    second = await OfflineModel().complete(conversation, tools)
    assert [(call.arguments["path"], call.arguments["end_line"]) for call in second.tool_calls] == [
        ("a/x.py", 10),
        ("/b/y.py", 20),
    ]


async def test_the_answer_is_json_when_the_task_says_so() -> None:
    _, reply = await converse(TASK + " Answer as JSON.", [MEASURE], {"measure_module": {"lines": 5, "name": "é"}})
    assert json.loads(reply.content or "") == {"lines": 5, "name": "é"}


async def test_an_error_is_reported_and_not_tried_again() -> None:
    conversation, reply = await converse(TASK, [MEASURE, READ], {"measure_module": "Error: no such file"})
    assert len(calls_of(conversation)) == 1
    assert "no such file" in (reply.content or "")


async def test_tools_that_change_things_need_the_very_verb() -> None:
    assert not (await OfflineModel().complete([Message.user("Review the file a.py")], [DELETE])).tool_calls
    assert (await OfflineModel().complete([Message.user("Delete the file a.py")], [DELETE])).tool_calls


@pytest.mark.parametrize(
    ("task", "tool", "arguments"),
    [
        ("Fetch https://x.org/a?b=1 now", offer("fetch_url", url="string"), {"url": "https://x.org/a?b=1"}),
        (
            "Refund order_id=4821, amount: 9.5",
            offer("refund", order_id="string", amount="number"),
            {"order_id": "4821", "amount": 9.5},
        ),
        ("Search for 'actor model'", offer("search", query="string"), {"query": "actor model"}),
        ("Measure '/my files/a b.py', don't wait", MEASURE, {"path": "/my files/a b.py"}),
        ("Roll the dice of /usr/lib/python3.11.7/x 4 times at 10:30", offer("roll_dice", count="integer"), {"count": 4}),
        ("Search the docs", offer("search", query="string"), {"query": "Search the docs"}),
        ("Roll 3 dice", offer("roll_dice", count="integer"), {"count": 3}),
        ("Convert to celsius", offer("convert", unit={"enum": ["kelvin", "celsius"]}), {"unit": "celsius"}),
        ("Check the status", offer("status"), {}),
        ("List files, depth=2", offer("list_files", required=(), depth="integer", hidden="boolean"), {"depth": 2}),
    ],
)
async def test_arguments_come_from_the_task(task: str, tool: dict[str, Any], arguments: dict[str, Any]) -> None:
    (call,) = (await OfflineModel().complete([Message.user(task)], [tool])).tool_calls
    assert call.arguments == arguments


async def test_a_call_with_an_unknown_argument_is_not_made_up() -> None:
    reply = await OfflineModel().complete([Message.user("Send the mail")], [offer("send_mail", to="string", body="string")])
    assert not reply.tool_calls
    assert "No tool on offer fits" in (reply.content or "")


async def test_without_tools_it_answers_from_what_it_has() -> None:
    conversation, _ = await converse(TASK, [MEASURE], {"measure_module": {"lines": 5}})
    reply = await OfflineModel().complete([*conversation[:-1], Message.user("Sum up.", automated=True)])
    assert reply.content == "measure_module(path=lib/argparse.py): lines 5."


async def test_only_the_turn_counts() -> None:
    conversation, _ = await converse(TASK, [MEASURE], {"measure_module": {"lines": 5}})
    conversation.append(Message.user(TASK))
    assert (await OfflineModel().complete(conversation, [MEASURE])).tool_calls
    ids = [call.id for message in conversation for call in message.tool_calls]
    assert len(set(ids)) == len(ids)


async def test_the_number_of_calls_is_bounded() -> None:
    task = "Measure the modules " + " ".join(f"m{number}.py" for number in range(100))
    assert len((await OfflineModel().complete([Message.user(task)], [MEASURE])).tool_calls) == MAX_CALLS


async def test_stream_and_complete_agree_and_are_deterministic() -> None:
    conversation, reply = await converse(TASK, [MEASURE], {"measure_module": {"lines": 5}})
    for cut in (2, len(conversation) - 1):
        whole = await OfflineModel().complete(conversation[:cut], [MEASURE])
        assert await collect(OfflineModel().stream(conversation[:cut], [MEASURE])) == whole
        assert await OfflineModel().complete(conversation[:cut], [MEASURE], temperature=1) == whole
    assert reply.model == "offline:reviewer"


async def test_usage_is_about_a_token_for_four_characters() -> None:
    reply = await OfflineModel().complete([Message.user("x" * 400)])
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 100
    assert reply.usage.completion_tokens == (len(reply.content or "") + 3) // 4


@pytest.mark.parametrize("task", ["", "a" * 200_000, "a-" * 100_000, "a/" * 100_000, "a='" * 50_000, "[" * 50_000])
async def test_hostile_tasks_are_answered(task: str) -> None:
    assert (await OfflineModel().complete([Message.user(task)], [MEASURE, READ])).message.role == "assistant"
    assert (await OfflineModel().complete([], [MEASURE])).message.role == "assistant"


def test_it_is_found_by_name_and_only_under_its_own() -> None:
    assert isinstance(resolve_model("offline:reviewer"), OfflineModel)
    with pytest.raises(ConfigurationError, match="offline:reviewer"):
        resolve_model("offline:gpt")
