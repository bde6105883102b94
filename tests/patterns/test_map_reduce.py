"""Map and reduce: every item is accounted for, and what is made of them does not depend on who was first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from umbel import Agent, Runtime, ToolContext, tool
from umbel.errors import ConfigurationError, MemberFailed, NothingRan, RunFailed
from umbel.patterns.map_reduce import MapReduce, map_reduce
from umbel.patterns.pipeline import parallel, sequential
from umbel.testing import ScriptedModel, error, text, tool_call

from .team import FLOOR, FloorModel, asked, kinds_of, member, replying

ITEMS = [f"item {number}" for number in range(50)]


def mapper(failing: Any = (), **model: Any) -> Agent:
    def turn(messages: list[Any]) -> Any:
        if asked(messages) in failing:
            raise error("spoiled")
        return text(f"[{asked(messages)}]")

    return Agent(FloorModel(turn, **model), name="mapper")


@pytest.mark.spec("OURS-25")
@pytest.mark.parametrize("concurrency", [1, 3, 50])
@pytest.mark.parametrize("failing", [[], ITEMS[3::7], ITEMS])
@pytest.mark.parametrize("on_error", ["fail", "continue"])
async def test_as_many_records_as_items(inline: Runtime, concurrency: int, failing: list[str], on_error: Any) -> None:
    together = concurrency
    pattern = map_reduce(mapper(failing, together=together, slow=20), items=ITEMS, concurrency=concurrency, on_error=on_error)
    async with asyncio.timeout(30):
        result = await pattern.arun("go")
    assert FLOOR.most == concurrency and sum(FLOOR.came.values()) == 50
    records = result.details["items"]
    assert [record["item"] for record in records] == ITEMS and [record["index"] for record in records] == list(range(50))
    for record, output in zip(records, result.outputs, strict=True):
        bad = record["item"] in failing
        assert record["status"] == ("failed" if bad else "completed") and output == (None if bad else f"[{record['item']}]")
        assert record["error"] == ("ModelError: spoiled" if bad else None)
    expected = not failing or (on_error == "continue" and len(failing) < 50)
    assert result.success == expected and isinstance(result.error, type(None) if expected else MemberFailed)
    assert result.value == ([f"[{item}]" for item in ITEMS if item not in failing] if expected else None)


@pytest.mark.spec("OURS-24")
async def test_the_reducer_gets_everything_in_item_order(runtime: Runtime) -> None:
    reducer = member("reducer", replying(lambda request: request.split("Results, in order:\n\n")[1].split("\n\nUnite")[0]))
    pattern = MapReduce(member("m", replying(str.upper)), reducer, split=str.split, template="{item} {index} {task}")
    result = await pattern.arun("c a b")
    assert result.success and result.final_output == "1. C 0 C A B\n\n2. A 1 C A B\n\n3. B 2 C A B"
    assert result.metrics.model_calls == 4, "n k + 1"


@pytest.mark.case(21)
@pytest.mark.parametrize("seed", range(5))
async def test_partial_lists_are_merged_in_task_order(inline: Runtime, seed: int) -> None:
    """Ten subagents return partial lists, two of them the same; the merge sees them in task order, whoever is first."""
    parts = [[number * 10, number * 10 + 1] for number in range(10)]
    parts[7] = parts[2]
    order: list[str] = []

    def turn(messages: list[Any]) -> Any:
        order.append(asked(messages))
        return text(json.dumps(parts[int(asked(messages))]))

    def merged(outputs: list[str]) -> list[int]:
        seen: dict[int, None] = {}
        for output in outputs:
            seen |= dict.fromkeys(json.loads(output))
        return list(seen)

    pattern = MapReduce(Agent(FloorModel(turn, slow=50, seed=seed), name="m"), merged, items=[str(n) for n in range(10)])
    result = await pattern.arun("go")
    assert order != sorted(order), "they ended in another order"
    assert result.value == [number for index, part in enumerate(parts) if index != 7 for number in part]
    assert [json.loads(output) for output in result.outputs] == parts, "the duplicate is there, in its place"


@pytest.mark.case(21)
async def test_a_reducer_that_fails_leaves_what_was_mapped(inline: Runtime) -> None:
    broken = [True]

    def reducer(outputs: list[str]) -> str:
        if broken:
            raise ValueError("cannot add up")
        return " ".join(outputs)

    pattern = MapReduce(mapper(), reducer, items=["a", "b"], checkpointer="memory://")
    with pytest.raises(RunFailed, match="cannot add up"):
        await pattern.arun("go", thread_id="t")
    broken.clear()
    result = await pattern.continue_turn("t")
    assert result.success and result.final_output == "[a] [b]" and FLOOR.came == {"a": 1, "b": 1}

    agent = member("reducer", error("too much"))
    result = await MapReduce(mapper(), agent, items=["a", "b"]).arun("go")
    assert not result.success and "too much" in str(result.error) and result.outputs == ["[a]", "[b]"]


async def test_functions_map_values(inline: Runtime) -> None:
    async def double(prompt: str) -> dict[str, Any]:
        """Twice the number."""
        return {"n": json.loads(prompt)["n"] * 2}

    async def pair(prompt: str) -> list[str]:
        """Two of them."""
        return [prompt, prompt]

    async def total(outputs: list[Any]) -> int:
        return sum(output["n"] for output in outputs)

    result = await MapReduce(double, total, items=({"n": n} for n in range(4))).arun("go")
    assert result.value == 12 and result.final_output == "12" and result.outputs[1] == {"n": 2}
    assert (await MapReduce(pair, items=["x"]).arun("go")).value == [["x", "x"]]


async def test_where_the_items_come_from(inline: Runtime) -> None:
    async def lines(prompt: str) -> list[str]:
        return prompt.splitlines()

    assert (await MapReduce(mapper(), split=lines).arun("a\nb")).outputs == ["[a]", "[b]"]
    pattern = MapReduce(mapper(), items=["own"])
    assert (await pattern.arun({"items": ["given", 7, None], "task": "t"})).outputs == ["[given]", "[7]", "[null]"]
    empty = await pattern.arun({"items": []})
    assert not empty.success and isinstance(empty.error, NothingRan)
    with pytest.raises(ConfigurationError, match="items"):
        await MapReduce(mapper()).arun("no items")
    with pytest.raises(ConfigurationError, match="items"):
        await pattern.arun({"item": 1})
    with pytest.raises(RunFailed, match="split"):
        await MapReduce(mapper(), split=lambda prompt: prompt).arun("a b")
    inside = await parallel(MapReduce(mapper(), name="inside")).arun("no items")
    assert not inside.success and "has no items" in str(inside.error)


@tool
async def confirm(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(ctx.interrupt("Sure?"))


@pytest.mark.spec("OURS-24", "OURS-3")
async def test_an_item_may_ask_a_person_and_no_other_is_done_twice(inline: Runtime) -> None:
    def turn(messages: list[Any]) -> Any:
        if messages[-1].role == "user" and asked(messages) in {"b", "d"}:
            return tool_call("confirm")
        return text(f"{asked(messages)} {messages[-1].content}")

    agent = Agent(FloorModel(turn, turn, slow=20), [confirm], name="m")
    inner = MapReduce(agent, items=[*"abcde"], concurrency=2, name="map")
    pattern = sequential(sequential(inner, name="middle"), name="outer", checkpointer="memory://")
    result = await pattern.arun("go", thread_id="t")
    assert len(result.interrupts) == 2 and FLOOR.came == dict.fromkeys("abcde", 1)
    for answer in ("yes", "no"):
        waits = result.interrupts[0]["interrupt_id"]
        result = await pattern.aresume(answer, thread_id="t", interrupt_id=waits)
    assert result.success and "b yes" in result.final_output and "d no" in result.final_output
    assert FLOOR.came == {"a": 1, "b": 2, "c": 1, "d": 2, "e": 1}


@pytest.mark.spec("OURS-5")
async def test_cancelled_items_end_with_it(inline: Runtime) -> None:
    pattern = MapReduce(mapper(together=99), items=ITEMS, concurrency=4)
    running = asyncio.ensure_future(pattern.arun("go"))
    async with asyncio.timeout(20):
        while len(FLOOR.now) < 4:
            await asyncio.sleep(0)
        pattern.cancel()
        result = await running
    assert result.stop_reason == "cancelled" and not FLOOR.now and sum(FLOOR.came.values()) == 4


@pytest.mark.spec("PAT-16")
async def test_its_events(inline: Runtime) -> None:
    assert await kinds_of(MapReduce(mapper(), items=["a"]), "go") == ["fan_out_started", "fan_out_completed"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"items": ["a"], "split": str.split}, "not both"),
        ({"items": "abc"}, "list"),
        ({"items": [object()]}, "JSON"),
        ({"items": ["a"], "concurrency": 0}, "concurrency"),
        ({"items": ["a"], "reducer": "sum"}, "reducer"),
        ({"items": ["a"], "template": "{row}"}, "row"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        MapReduce(Agent(ScriptedModel([])), **settings)
