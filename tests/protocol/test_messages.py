from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from umbel.protocol.markers import AUTOMATED, MEMORY_BLOCK, TURN_ONLY, is_durable, is_request
from umbel.protocol.messages import (
    Message,
    ModelResponse,
    ToolCall,
    ToolResult,
    Usage,
    clean_text,
    clean_value,
)

RESULT = ToolResult(tool_call_id="c1", name="look", content="found")


class TestMessage:
    @pytest.mark.spec("STATE-1")
    def test_roles_and_defaults(self) -> None:
        assert [make("x").role for make in (Message.system, Message.user, Message.assistant)] == ["system", "user", "assistant"]
        message = Message(role="assistant")
        assert (message.content, message.tool_calls, message.tool_call_id, message.name, message.metadata) == (
            None,
            (),
            None,
            None,
            {},
        )
        with pytest.raises(ValidationError):
            Message(role="narrator")

    @pytest.mark.spec("STATE-1")
    @pytest.mark.parametrize(
        "value", [Message.user("x"), RESULT, ToolCall(name="t"), Usage(), ModelResponse(message=Message.user("x"))]
    )
    def test_immutable(self, value: Any) -> None:
        field = next(iter(type(value).model_fields))
        with pytest.raises(ValidationError):
            setattr(value, field, "other")
        with pytest.raises(ValidationError):
            delattr(value, field)

    @pytest.mark.spec("STATE-2")
    def test_markers_say_what_outlives_the_turn_and_who_wrote_it(self) -> None:
        assert is_durable(Message.user("x", anything=True))
        assert not is_durable(Message.user("x", **{TURN_ONLY: True}))
        assert not is_durable(Message.system("x", **{MEMORY_BLOCK: True}))
        assert is_request(Message.user("x"))
        assert not is_request(Message.user("x", **{AUTOMATED: True}))
        assert not is_request(Message.system("x"))

    @pytest.mark.spec("STATE-5")
    @pytest.mark.parametrize(
        ("content", "error", "shown"),
        [
            ("found", None, "found"),
            ("", None, ""),
            ("", "broke", "Error: broke"),
            ("half", "broke", "half"),
            ("", "", "Error: "),
        ],
    )
    def test_a_tool_message_shows_the_text_or_else_the_error(self, content: str, error: str | None, shown: str) -> None:
        result = RESULT.evolve(content=content, error=error, structured_content={"secret": 1})
        message = Message.tool(result)
        assert message == Message(role="tool", content=shown, tool_call_id="c1", name="look")


class TestToolCall:
    @pytest.mark.spec("STATE-3")
    def test_args_is_another_name_for_arguments(self) -> None:
        assert ToolCall(name="t").arguments == {}
        assert ToolCall.model_validate({"name": "t", "args": {"a": 1}}) == ToolCall(name="t", arguments={"a": 1})

    @pytest.mark.spec("STATE-3")
    def test_malformed_arguments_keep_the_providers_text(self) -> None:
        assert ToolCall(name="t", malformed_arguments='{"q": "x').malformed_arguments == '{"q": "x'

    def test_the_callers_dict_is_not_shared(self) -> None:
        arguments = {"a": [1]}
        call = ToolCall(name="t", arguments=arguments)
        arguments["a"].append(2)
        assert call.arguments == {"a": [1]}


class TestToolResult:
    @pytest.mark.spec("STATE-4")
    def test_success_means_no_error(self) -> None:
        assert RESULT.success
        assert not RESULT.evolve(error="broke").success
        assert not RESULT.evolve(error="").success
        assert (RESULT.duration_ms, RESULT.structured_content, RESULT.content_blocks) == (0.0, None, ())


def test_usage_total_leaves_the_caches_out() -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=4, cache_creation_tokens=100, cache_read_tokens=100)
    assert usage.total_tokens == 7


class TestEvolve:
    def test_the_copy_differs_only_where_told(self) -> None:
        message = Message.user("x")
        other = message.evolve(content="y", name="z")
        assert message == Message.user("x")
        assert other == Message(role="user", content="y", name="z", metadata={})
        assert other.model_dump(exclude_defaults=True) == {"role": "user", "content": "y", "name": "z"}
        assert other.metadata is message.metadata

    def test_the_copy_is_a_whole_model(self) -> None:
        other: Any = Message.user("x").evolve(content="y")
        assert pickle.loads(pickle.dumps(other)) == other
        assert other.model_copy() == other
        assert repr(other).startswith("Message(role='user', content='y'")
        with pytest.raises(ValidationError):
            other.content = "z"


class TestCleaning:
    @pytest.mark.case(2)
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("plain", "plain"),
            ("größer", "größer"),
            ("\U0001f600", "\U0001f600"),
            ("\ud83d\ude00", "\U0001f600"),
            ("ok \ud83d", "ok \ufffd"),
            ("\ude00\ud83d", "\ufffd\ufffd"),
            ("\ud83d\ud83d\ude00!", "\ufffd\U0001f600!"),
        ],
    )
    def test_pairs_become_one_character_and_halves_are_replaced(self, text: str, clean: str) -> None:
        assert clean_text(text) == clean

    @pytest.mark.case(2)
    @given(st.text(st.characters(categories=("Cs", "Ll", "So"))))
    def test_any_text_can_be_encoded_afterwards(self, text: str) -> None:
        clean = clean_text(text)
        clean.encode()
        assert clean_text(clean) == clean

    def test_values_keep_their_shape(self) -> None:
        value = {"a": [1, None, True, 2.5, {"b": "\ud83d"}], "\ud83d": ()}
        assert clean_value(value) == {"a": [1, None, True, 2.5, {"b": "\ufffd"}], "\ufffd": []}

    def test_a_value_without_end_is_refused(self) -> None:
        ring: list[Any] = []
        ring.append(ring)
        with pytest.raises(ValueError, match="nested"):
            clean_value(ring)


def test_the_empty_object_that_values_share_cannot_be_filled() -> None:
    first: Any = Message.trusted(role="user", content="x")
    assert first.metadata == {} and first.metadata is Message(role="user").metadata
    for change, arguments in (("update", [{"a": 1}]), ("__setitem__", ["a", 1]), ("setdefault", ["a", 1]), ("clear", [])):
        with pytest.raises(TypeError, match="frozen"):
            getattr(first.metadata, change)(*arguments)
    assert pickle.loads(pickle.dumps(first)) == first and first.model_dump_json() == Message.user("x").model_dump_json()
    assert first.model_copy(deep=True).metadata == {} and {**first.metadata, "a": 1} == {"a": 1}
