"""Calls that a model wrote as text: what is run, what is left alone, and that hostile text costs no time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from umbel.actors.agent.models import Recovery, recover
from umbel.actors.agent.models.leaked_calls import FORMATS, check_formats, family_of, find_leak, formats_of
from umbel.actors.agent.models.offers import Offers
from umbel.protocol.errors import ConfigurationError


def schema(name: str, required: list[str] | None = None, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties) if required is None else required,
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [schema("weather", ["city"], city="string", days="integer"), schema("now")]
PARIS: dict[str, Any] = {"city": "Paris", "days": 3}

WIDE = str.maketrans({"|": "\uff5c", "_": "\u2581"})


def wide(text: str) -> str:
    return text.translate(WIDE)


def dsml(name: str, arguments: dict[str, Any]) -> str:
    fields = [
        f'<|DSML|parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</|DSML|parameter>\n"
        for key, value in arguments.items()
    ]
    return f'<|DSML|invoke name="{name}">\n{"".join(fields)}</|DSML|invoke>\n'.replace("|", "\uff5c")


def deepseek(name: str, arguments: dict[str, Any]) -> str:
    sep = wide("<|tool_sep|>")
    return f"{wide('<|tool_call_begin|>')}{name}{sep}{json.dumps(arguments)}{wide('<|tool_call_end|>')}"


def deepseek_r1(name: str, arguments: dict[str, Any]) -> str:
    body = f"function{wide('<|tool_sep|>')}{name}\n```json\n{json.dumps(arguments)}\n```"
    return f"{wide('<|tool_call_begin|>')}{body}{wide('<|tool_call_end|>')}\n"


def kimi(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


def qwen(name: str, arguments: dict[str, Any]) -> str:
    fields = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{fields}</function>\n</tool_call>\n"


def glm(name: str, arguments: dict[str, Any]) -> str:
    fields = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{fields}</tool_call>\n"


WRITERS: dict[str, Any] = {
    "dsml": (dsml, "<\uff5cDSML\uff5cfunction_calls>\n", "</\uff5cDSML\uff5cfunction_calls>"),
    "deepseek": (deepseek, wide("<|tool_calls_begin|>"), wide("<|tool_calls_end|>")),
    "deepseek_r1": (deepseek_r1, wide("<|tool_calls_begin|>"), wide("<|tool_calls_end|>")),
    "kimi": (kimi, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "hermes": (hermes, "", ""),
    "qwen_xml": (qwen, "", ""),
    "glm": (glm, "", ""),
}
each = pytest.mark.parametrize("written", list(WRITERS))


def markup(written: str, *calls: tuple[str, dict[str, Any]]) -> str:
    write, before, after = WRITERS[written]
    return str(before + "".join(write(*call) for call in calls) + after)


def leaked(written: str, text: str | None, reasoning: str | None = None) -> Recovery | None:
    return recover(text, reasoning, TOOLS, [written.removesuffix("_r1")])


def named(found: Recovery | None) -> list[tuple[str, dict[str, Any]]] | None:
    return None if found is None else [(call.name, call.arguments) for call in found.calls]


# --- leaked markup ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("LOOP-55")
@each
def test_leaked_calls_are_found_behind_prose_which_is_kept(written: str) -> None:
    text = f"Let me look.\n\n{markup(written, ('weather', PARIS), ('now', {}))}"
    found = leaked(written, text)
    assert named(found) == [("weather", PARIS), ("now", {})]
    assert found is not None
    assert (found.prose, found.unfinished) == ("Let me look.", False)
    assert len({call.id for call in found.calls}) == 2
    bare = leaked(written, markup(written, ("now", {})))
    assert bare is not None
    assert bare.prose is None


@pytest.mark.spec("LOOP-55")
@each
@pytest.mark.parametrize("end", ["\n\n", "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>\n", "</s></s>\n<|user|>"])
def test_end_tokens_may_follow(written: str, end: str) -> None:
    assert named(leaked(written, markup(written, ("weather", PARIS)) + end)) == [("weather", PARIS)]


@pytest.mark.spec("LOOP-55", "LOOP-56", "BUG-15")
@each
@pytest.mark.parametrize("behind", [" is how a call looks.", "\n```", "`", "\n\nDone!"])
def test_what_stands_in_prose_is_not_run(written: str, behind: str) -> None:
    assert leaked(written, markup(written, ("weather", PARIS)) + behind) is None


@pytest.mark.spec("LOOP-55")
@each
@pytest.mark.parametrize(
    "bad",
    [("wether", PARIS), ("weather", {}), ("weather", {"city": "Paris", "unit": "C"}), ("now", {"x": 1})],
    ids=["unknown tool", "required missing", "undeclared", "undeclared alone"],
)
def test_one_bad_call_rejects_the_block(written: str, bad: tuple[str, dict[str, Any]]) -> None:
    assert leaked(written, markup(written, ("weather", PARIS), bad)) is None
    assert leaked(written, markup(written, bad, ("weather", PARIS))) is None


@pytest.mark.spec("LOOP-55")
@pytest.mark.parametrize("arguments", ['["Paris"]', '"Paris"', "null", '{"city": NaN}', '{"city": 1e999}', "{'city': 1}"])
def test_arguments_must_be_an_object(arguments: str) -> None:
    assert leaked("hermes", f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>') is None
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call = f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    assert leaked("kimi", begin + call + end) is None


@each
def test_reasoning_is_read_only_when_the_body_is_empty(written: str) -> None:
    thought = f"I need the weather.\n{markup(written, ('weather', PARIS))}"
    found = leaked(written, " \n", thought)
    assert named(found) == [("weather", PARIS)]
    assert found is not None
    assert found.prose is None
    assert leaked(written, "It is sunny.", thought) is None


@each
@pytest.mark.parametrize("prose", ["Let me look.", ""])
def test_an_unfinished_block_is_cut_back_to_its_prose(written: str, prose: str) -> None:
    whole = markup(written, ("weather", PARIS)).rstrip()
    lengths = range(whole.index(">") + 1, len(whole) - 1)
    for length in lengths:
        found = leaked(written, f"{prose}\n{whole[:length]}")
        assert found == Recovery((), prose or None, unfinished=True), whole[:length]


@each
def test_a_whole_call_before_an_unfinished_one_is_not_run(written: str) -> None:
    second = markup(written, ("weather", PARIS)).rstrip()[:-2]
    assert leaked(written, markup(written, ("now", {})) + second) == Recovery((), None, unfinished=True)


@pytest.mark.parametrize(
    "text",
    [
        "Wrap it in `<tool_call>{` tags",
        "The tag is `<tool_call>",
        "A call starts with <tool_call>",
        "Use <tool_call> and then a name",
        'She said "<function=',
    ],
)
@pytest.mark.parametrize("written", ["hermes", "qwen_xml", "glm"])
def test_a_tag_that_prose_mentions_is_no_unfinished_call(written: str, text: str) -> None:
    assert leaked(written, text) is None


def test_a_mention_before_the_call_is_prose() -> None:
    text = f"I write <tool_call> tags now:\n{hermes('now', {})}"
    found = leaked("hermes", text)
    assert named(found) == [("now", {})]
    assert found is not None
    assert found.prose == "I write <tool_call> tags now:"


def test_values_may_hold_the_closing_tag() -> None:
    arguments = {"city": "</tool_call> <tool_call>"}
    assert named(leaked("hermes", hermes("weather", arguments))) == [("weather", arguments)]
    multiline = {"city": "two\nlines <b> & more"}
    assert named(leaked("qwen_xml", qwen("weather", multiline))) == [("weather", multiline)]
    assert named(leaked("glm", glm("weather", multiline))) == [("weather", multiline)]


def test_texts_stay_texts_and_numbers_become_numbers() -> None:
    assert named(leaked("qwen_xml", qwen("weather", {"city": "75", "days": "3"}))) == [("weather", {"city": "75", "days": 3})]
    assert named(leaked("glm", glm("weather", {"city": "true", "days": "three"}))) == [
        ("weather", {"city": "true", "days": "three"})
    ]


def test_qwen_may_lose_its_outer_tags() -> None:
    bare = "Sure.\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>"
    assert named(leaked("qwen_xml", bare)) == [("weather", {"city": "Paris"})]
    assert named(leaked("qwen_xml", bare + "\n</tool_call>")) == [("weather", {"city": "Paris"})]


def test_only_the_formats_that_are_asked_for_are_read() -> None:
    text = hermes("now", {})
    assert recover(text, None, TOOLS, ["kimi", "dsml"]) is None
    assert recover(text, None, TOOLS, []) is None
    assert named(recover(text, None, TOOLS, FORMATS)) == [("now", {})]


def test_formats_are_checked_and_follow_from_the_models_name() -> None:
    assert check_formats(["glm", "kimi"]) == ("glm", "kimi")
    with pytest.raises(ConfigurationError, match="qwen_xml"):
        check_formats(["qwen"])
    assert formats_of(family_of("deepseek-ai/DeepSeek-V3.2")) == ("dsml", "deepseek")
    assert formats_of(family_of("Qwen3-Coder-30B")) == ("hermes", "qwen_xml")
    assert formats_of(family_of("gpt-4o-mini")) == ()


# --- generic calls ----------------------------------------------------------------------------------------------------

CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
EXPECTED = [("weather", {"city": "Paris"})]


def generic(text: str) -> Recovery | None:
    return recover(text, None, TOOLS, (), generic=True)


@pytest.mark.spec("LOOP-56")
@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n [{CALL}] \n",
        '{"name": "weather", "parameters": {"city": "Paris"}}',
        '{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}',
        f"```json\n{CALL}\n```",
        f"```tool_call\n{CALL}\n```\n",
        f"I will look it up:\n```json\n{CALL}\n```",
        "```tool_code\nweather(city='Paris')\n```",
        f"<tool_call>{CALL}</tool_call>",
        f"<function_call>\n{CALL}\n</function_call>",
        "weather(city='Paris')",
        "weather(\n    city='Paris',\n)",
    ],
)
def test_generic_calls_are_the_whole_message_or_its_labelled_end(text: str) -> None:
    found = generic(text)
    assert named(found) == EXPECTED
    assert found is not None
    assert found.prose == text  # the body stays as it is
    assert recover(text, None, TOOLS) is None  # not enabled


@pytest.mark.spec("LOOP-56")
@pytest.mark.parametrize(
    "text",
    [
        f"You could call {CALL}",
        f"{CALL} is what I would send.",
        f"```json\n{CALL}\n```\nThat is an example.",
        f"```\n{CALL}\n```",
        f"```python\n{CALL}\n```",
        f"````\n```json\n{CALL}\n```\n````",
        f"```text\n<tool_call>{CALL}</tool_call>\n```",
        f"```text\nthis\n```json\n{CALL}\n```",
        "To find out, use weather(city='Paris')",
        "weather(city='Paris') would tell.",
        "weather('Paris')",
        "weather(city=input())",
        "weather(**{'city': 'Paris'})",
        "weather(city=b'Paris')",
        "weather(city='Paris'); import os",
        "x = weather(city='Paris')",
        "print(weather(city='Paris'))",
        '{"name": "weather", "arguments": "Paris"}',
        '{"name": "weather", "arguments": {"city": "Paris"}, "note": 1}',
        f"[{CALL}, 7]",
        f'[{CALL}, {{"name": "rm", "arguments": {{}}}}]',
        '{"city": "Paris"}',
        "[]",
        "",
        "weather",
    ],
)
def test_everything_else_is_an_answer(text: str) -> None:
    assert generic(text) is None


def test_leaked_markup_goes_before_generic_calls() -> None:
    found = recover(f"So:\n{hermes('now', {})}", None, TOOLS, ["hermes"], generic=True)
    assert found is not None
    assert (named(found), found.prose) == ([("now", {})], "So:")


def test_several_lines_of_calls_and_literals() -> None:
    found = generic("now()\nweather(city='a\\d', days=-1)\nweather(city='b')")
    assert named(found) == [("now", {}), ("weather", {"city": "a\\d", "days": -1}), ("weather", {"city": "b"})]


# --- hostile input ----------------------------------------------------------------------------------------------------

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=weather>", "<function=", "</function>", "<parameter=city>", "</parameter>",
    "<arg_key>city</arg_key>", "<arg_value>", "</arg_value>", '{"name": "weather", "arguments": {"city": "', '"}}', "{", "}",
    "[", '"', "\\", "```json\n", "```", "\n", " ", "weather(city='", "')", "weather", "\ud800", "<|im_end|>", "</s>", "(", "-",
    wide("<|tool_calls_begin|>"), wide("<|tool_call_begin|>"), wide("<|tool_sep|>"), wide("<|tool_call_end|>"),
    wide("<|tool_calls_end|>"), "<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.weather:0",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|DSML|function_calls>",
    '<|DSML|invoke name="weather">', '<|DSML|parameter name="city" string="true">', "</|DSML|parameter>", "</|DSML|invoke>",
    "</|DSML|function_calls>",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), st.booleans())
def test_whatever_is_found_would_be_taken_by_a_tool(text: str, in_reasoning: bool) -> None:
    found = recover(None, text, TOOLS, FORMATS, True) if in_reasoning else recover(text, None, TOOLS, FORMATS, True)
    if found is None:
        return
    assert found.unfinished != bool(found.calls)
    offers = Offers(TOOLS)
    assert all(call.name in offers and isinstance(call.arguments, dict) for call in found.calls)
    assert all(call.arguments.keys() <= {"city", "days"} for call in found.calls)
    assert found.prose is None or text.startswith(found.prose)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_repetition_does_not_blow_up(fragment: str) -> None:
    """A megabyte of each fragment."""
    text = fragment * (1_000_000 // len(fragment))
    assert not (recover(text, None, TOOLS, FORMATS, True) or Recovery()).calls
    assert find_leak(text + " prose", FORMATS, Offers(TOOLS)) is None


def test_many_openings_are_not_all_tried() -> None:
    """Several megabytes: a scan that looks at the whole text for each would run into the time limit of the test."""
    assert find_leak("<tool_call>" * 400_000, ["hermes"], Offers(TOOLS)) is None


@pytest.mark.parametrize("written", ["hermes", "kimi"])
def test_a_flood_of_calls_is_not_run(written: str) -> None:
    found = leaked(written, markup(written, *[("now", {})] * 99))
    assert found is not None
    assert len(found.calls) == 99
    assert leaked(written, markup(written, *[("now", {})] * 100)) is None
    assert leaked(written, markup(written, *[("now", {})] * 150)) is None


@pytest.mark.parametrize("depth", [200, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    assert generic(f'{{"name": "weather", "arguments": {{"city": {nested}}}}}') is None
    assert generic(f"weather(city={nested})") is None
    assert leaked("hermes", f'<tool_call>{{"name": "weather", "arguments": {{"city": {nested}}}}}</tool_call>') is None
    assert generic("weather(city=" + "-" * 19_000 + "1)") is None
