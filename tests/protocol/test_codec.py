from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from umbel.protocol import codec
from umbel.protocol.codec import (
    SEPARATOR,
    decode,
    encode,
    kind_of,
    message_type,
    message_types,
    pack,
    to_json,
    unpack,
    upgrade_from,
)
from umbel.protocol.commands import Define, ExecuteCall, Failure, RunFinished, StartRun
from umbel.protocol.errors import DecodeError, MessageTooLarge, ProtocolError, SchemaVersionError, UnknownKind
from umbel.protocol.events import SubagentEvent, ThinkEvent
from umbel.protocol.messages import MAX_NESTING, Frozen, Message, ToolCall
from umbel.protocol.state import AgentState

from .strategies import json_values, messages, minimal

EVERY = pytest.mark.parametrize("cls", message_types(), ids=lambda cls: cls.__name__)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages registered by the test are forgotten after it."""
    for name in ("_BY_KIND", "_BY_NAME", "_UPGRADES"):
        monkeypatch.setattr(codec, name, dict(getattr(codec, name)))


def read_or_refuse(kind: Any, blob: Any) -> Frozen | None:
    """The message, or None for a typed refusal; anything else fails the test."""
    try:
        return decode(kind, blob)
    except ProtocolError:
        return None


class TestRoundTrip:
    @EVERY
    @FEW
    @given(data=st.data())
    @pytest.mark.spec("STATE-45", "EVT-2")
    def test_every_message_comes_back_equal(self, cls: type[Frozen], data: st.DataObject) -> None:
        message = data.draw(messages(cls))
        kind, blob = encode(message)
        back = decode(kind, blob)
        if isinstance(message, RunFinished):  # its state travels as JSON, to be read only by those who want it
            state = message.attachment()
            message = message.evolve(outcome=message.outcome.evolve(state=None, state_json=state))
        assert back == message
        assert type(back) is cls
        assert encode(back) == (kind, blob)

    @EVERY
    def test_it_survives_a_frame(self, cls: type[Frozen]) -> None:
        message = minimal(cls)
        kind, blob = unpack(pack(list(encode(message))))
        assert decode(kind, blob) == message

    @EVERY
    @pytest.mark.spec("STATE-46")
    def test_unknown_fields_are_ignored(self, cls: type[Frozen]) -> None:
        kind, blob = encode(minimal(cls))
        wider = rewritten(blob, lambda fields: {**fields, "field_of_a_later_version": {"deep": [1, 2]}})
        assert decode(kind, wider) == minimal(cls)

    @EVERY
    @pytest.mark.spec("STATE-46")
    def test_missing_fields_take_their_defaults(self, cls: type[Frozen]) -> None:
        kind, blob = encode(minimal(cls))
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        narrow = rewritten(blob, lambda fields: {name: value for name, value in fields.items() if name in required})
        assert decode(kind, narrow) == minimal(cls)

    def test_bytes_are_exact(self) -> None:
        message = Define(definition="d", blob=bytes(range(256)))
        assert decode(*encode(message)) == message

    @given(st.recursive(st.none() | st.booleans() | st.binary() | st.text() | st.integers(-(2**63), 2**64 - 1), st.lists))
    @FEW
    def test_frames_come_back_equal(self, frame: Any) -> None:
        assert unpack(pack(frame)) == frame


def rewritten(blob: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """``blob`` with another JSON object before its attachment."""
    head, mark, attachment = blob.partition(SEPARATOR)
    return json.dumps(change(json.loads(head))).encode() + mark + attachment


class TestRegistry:
    def test_an_unregistered_class_is_refused(self) -> None:
        class Stranger(Frozen):
            pass

        with pytest.raises(ProtocolError, match="Stranger"):
            encode(Stranger())

    @pytest.mark.usefixtures("registry")
    def test_two_classes_cannot_share_a_name(self) -> None:
        clash = type("StartRun", (Frozen,), {"__module__": "elsewhere"})
        with pytest.raises(ProtocolError, match="StartRun"):
            message_type(clash)

    def test_an_unknown_kind_is_named(self) -> None:
        with pytest.raises(UnknownKind, match="Telegram"):
            decode("Telegram@1", b"{}")

    @pytest.mark.parametrize("version", ["0", "2", "99", "", "x", "1.0"])
    def test_an_unknown_version_is_named(self, version: str) -> None:
        with pytest.raises(SchemaVersionError, match="StartRun"):
            decode(f"StartRun@{version}", b"{}")

    @pytest.mark.parametrize("kind", [None, 5, b"StartRun@1", ["StartRun@1"], {}, "\ud83d", "x" * 10_000])
    def test_a_kind_of_the_wrong_type_is_refused(self, kind: Any) -> None:
        with pytest.raises(ProtocolError) as caught:
            decode(kind, b"{}")
        assert len(str(caught.value)) < 500


@pytest.mark.usefixtures("registry")
class TestUpgrades:
    @pytest.fixture
    def parcel(self) -> type[Frozen]:
        @message_type
        class Parcel(Frozen):
            schema_version: ClassVar[int] = 2
            weight_grams: int

        @upgrade_from(Parcel, 1)
        def from_kilograms(data: dict[str, Any]) -> dict[str, Any]:
            return {"weight_grams": data["weight_kg"] * 1000}

        return Parcel

    def test_an_old_version_is_read(self, parcel: type[Frozen]) -> None:
        assert decode("Parcel@1", b'{"weight_kg": 3}') == parcel(weight_grams=3000)
        assert kind_of(parcel) == "Parcel@2"

    @pytest.mark.parametrize(
        "blob", [b"{}", b"[]", b"null", b"{", b'{"weight_kg": "x"}', b"[" * 100_000, b'{"weight_kg": null}']
    )
    def test_a_bad_old_message_is_a_typed_error(self, parcel: type[Frozen], blob: bytes) -> None:
        with pytest.raises(DecodeError, match="Parcel@1"):
            decode("Parcel@1", blob)


class TestHostileBytes:
    @EVERY
    def test_truncated(self, cls: type[Frozen]) -> None:
        kind, blob = encode(minimal(cls))
        for length in range(len(blob)):
            with pytest.raises(DecodeError):
                decode(kind, blob[:length])

    @EVERY
    def test_flipped_bytes(self, cls: type[Frozen]) -> None:
        kind, blob = encode(minimal(cls))
        chance = random.Random(cls.__name__)
        for _ in range(100):
            broken = bytearray(blob)
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            read_or_refuse(kind, bytes(broken))

    @EVERY
    @FEW
    @given(value=json_values)
    def test_any_json(self, cls: type[Frozen], value: Any) -> None:
        read_or_refuse(kind_of(cls), json.dumps(value).encode())

    @EVERY
    @FEW
    @given(data=st.data())
    def test_wrong_types_in_any_field(self, cls: type[Frozen], data: st.DataObject) -> None:
        if cls.model_fields:
            kind, blob = encode(minimal(cls))
            field = data.draw(st.sampled_from(sorted(cls.model_fields)))
            wrong = data.draw(json_values)
            read_or_refuse(kind, rewritten(blob, lambda fields: {**fields, field: wrong}))

    @given(st.binary(max_size=300))
    @FEW
    def test_random_bytes(self, blob: bytes) -> None:
        for cls in message_types():
            read_or_refuse(kind_of(cls), blob)
        with contextlib.suppress(DecodeError):
            unpack(blob)

    @EVERY
    @pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"event":', b'{"event":{"event_type":"subagent","event":'])
    def test_deep_nesting(self, cls: type[Frozen], opening: bytes) -> None:
        with pytest.raises(DecodeError):
            decode(kind_of(cls), opening * 100_000)

    def test_deeply_wrapped_events(self) -> None:
        event = b'{"event_type":"think","iteration":1}'
        for _ in range(1000):
            event = b'{"event_type":"subagent","tool_call_id":"c","tool_name":"t","event":' + event + b"}"
        with pytest.raises(DecodeError):
            decode(kind_of(SubagentEvent), event)

    @pytest.mark.parametrize("blob", [None, 5, "text", ["{}"], {}, b"\xff\xfe", b"", b"\x00", b'{"run_id": "\xff"}'])
    def test_blobs_that_are_not_json(self, blob: Any) -> None:
        with pytest.raises(DecodeError):
            decode("StartRun@1", blob)

    @pytest.mark.parametrize("number", ["1" * 5000, "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" * 400, "0.1"])
    @pytest.mark.parametrize("field", ["depth", "timeout", "prompt", "metadata"])
    def test_numbers_out_of_range(self, number: str, field: str) -> None:
        blob = json.dumps({"run_id": "r", "definition": "d", "prompt": "p"})[:-1]
        read_or_refuse("StartRun@1", f'{blob}, "{field}": {number}}}'.encode())
        message = read_or_refuse("StartRun@1", f'{blob}, "metadata": {{"n": {number}}}}}'.encode())
        if message is not None:
            assert decode(*encode(message)).schema_version == 1

    @pytest.mark.parametrize(
        "frame",
        [
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\x0f\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\x91" * 100_000,
            b"\x81\x90\x01",
            b"\xa1\xff",
            b"\xc1",
            b"",
            b"\x92\x01",
            b"\xc7\x01\xff\x00",
            b"\x01\x01",
        ],
    )
    def test_malformed_frames(self, frame: bytes) -> None:
        with pytest.raises(DecodeError):
            unpack(frame)

    @pytest.mark.parametrize("frame", [None, 5, "text", object()])
    def test_frames_that_are_not_bytes(self, frame: Any) -> None:
        with pytest.raises(DecodeError):
            unpack(frame)


class TestUnwritable:
    @pytest.mark.parametrize("frame", [10**30, "\ud83d", object(), {1, 2}])
    def test_a_frame_that_msgpack_cannot_write(self, frame: Any) -> None:
        with pytest.raises(ProtocolError):
            pack(frame)

    @pytest.mark.spec("STATE-48")
    def test_a_value_that_json_cannot_write(self) -> None:
        with pytest.raises(ProtocolError, match="StartRun"):
            encode(StartRun(run_id="r", definition="d", prompt="p", metadata={"x": object()}))

    def test_nesting_that_nobody_could_read_is_refused_as_it_enters(self) -> None:
        value: Any = 1
        for _ in range(MAX_NESTING + 1):
            value = [value]
        with pytest.raises(ValueError, match="nested more than"):
            ToolCall(name="t", arguments={"x": value})

    def test_nesting_at_the_limit_is_read_everywhere(self) -> None:
        value: Any = 1
        for _ in range(MAX_NESTING - 1):
            value = [value]
        call = ToolCall(name="t", arguments={"x": value})
        state = AgentState(messages=(Message.assistant(tool_calls=(call,)),))
        assert decode(*encode(state)) == state
        execute = ExecuteCall(run_id="r", definition="d", call=call)
        assert decode(*encode(execute)) == execute
        event: Any = ThinkEvent(iteration=1, tool_calls=(call,))
        for _ in range(20):
            event = SubagentEvent(tool_call_id="c", tool_name="t", event=event)
        assert decode(*encode(event)) == event

    def test_a_message_over_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 100)
        with pytest.raises(MessageTooLarge) as caught:
            encode(Failure(code="x", message="y" * 200))
        assert caught.value.details["size"] > 200


class TestSurrogates:
    """Text from outside may hold halves of surrogate pairs; nothing that is written may."""

    HALF, PAIR = "ok \ud83d", "\ud83d\ude00"

    @EVERY
    @pytest.mark.case(2)
    def test_in_every_field_that_takes_text(self, cls: type[Frozen]) -> None:
        required = dict(minimal(cls))
        for name in cls.model_fields:
            for dirty in (self.HALF, self.PAIR, {self.HALF: [self.PAIR]}, (self.HALF,), [{"x": self.HALF}]):
                try:
                    message = cls(**{**required, name: dirty})
                except ValueError:
                    continue  # not a field for such a value
                self.check(message)
                if isinstance(dirty, str | dict) and type(getattr(message, name)) is type(dirty):
                    self.check(message.evolve(**{name: dirty}))  # a value that nothing validated

    def check(self, message: Frozen) -> None:
        kind, blob = encode(message)
        assert not re.search(rb"\\\\u[dD][89a-fA-F]", blob.decode().encode())
        assert encode(decode(kind, blob))[1].decode()

    @pytest.mark.case(2)
    def test_one_text_everywhere(self) -> None:
        call = ToolCall(id=self.HALF, name=self.HALF, arguments={self.HALF: [self.PAIR, {"x": self.HALF}]})
        assert call.name == call.id == "ok \ufffd"
        assert call.arguments == {"ok \ufffd": ["\U0001f600", {"x": "ok \ufffd"}]}
        message = Message.assistant(self.PAIR, (call,), note=self.HALF)
        assert message.content == "\U0001f600"
        assert message.metadata == {"note": "ok \ufffd"}
        state = AgentState().with_message(message).with_error(self.HALF).with_metadata(self.HALF, {"x": self.HALF})
        assert decode(*encode(state)) == state
        assert state.metadata["ok \ufffd"] == {"x": "ok \ufffd"}

    @pytest.mark.case(2)
    def test_text_that_slipped_past_validation_is_cleaned_as_it_is_written(self) -> None:
        message = Message.user("x").evolve(content=self.HALF, metadata={self.HALF: self.PAIR})
        assert json.loads(to_json(message))["content"] == "ok \ufffd"

    @pytest.mark.case(2)
    def test_escaped_halves_on_the_wire_are_refused(self) -> None:
        with pytest.raises(DecodeError):
            decode("Failure@1", rb'{"code": "x", "message": "\ud83d"}')
        assert decode("Failure@1", rb'{"code": "x", "message": "\ud83d\ude00"}') == Failure(code="x", message="\U0001f600")
