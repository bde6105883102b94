"""Messages to bytes and back.

A message travels as ``(kind, blob)``: ``kind`` is ``"<ClassName>@<schema version>"`` and ``blob`` is the message's own
JSON, followed, where the class has one, by a zero byte and its attachment. Frames (see ``actors/mailbox.py``) are msgpack;
whoever only routes never looks inside a blob. Decoding is total: any bytes give a message or a typed
:class:`ProtocolError`, never another exception, a hang or code execution.

Older schema versions are read when the class says how (``upgrades``), everything else is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgpack
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .errors import DecodeError, MessageTooLarge, NotStorable, ProtocolError, SchemaVersionError, UnknownKind
from .messages import Frozen, clean_value

SEPARATOR = b"\0"  # cannot occur in JSON
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_T = TypeVar("_T", bound=type[Frozen])
_BY_KIND: dict[str, type[Frozen]] = {}
_BY_NAME: dict[str, type[Frozen]] = {}
_KINDS: dict[type[Frozen], str] = {}
_UPGRADES: dict[str, tuple[type[Frozen], Callable[[dict[str, Any]], dict[str, Any]]]] = {}


def message_type(cls: _T) -> _T:
    """Class decorator: make ``cls`` known to the codec under its name and schema version."""
    if _BY_NAME.get(cls.__name__, cls).__module__ != cls.__module__:
        raise ProtocolError(f"two message types are named {cls.__name__}")
    _BY_NAME[cls.__name__] = _BY_KIND[kind_of(cls)] = cls
    _KINDS[cls] = kind_of(cls)
    return cls


def upgrade_from(cls: type[Frozen], version: int) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Any]:
    """Decorator: the function turns the decoded JSON object of ``cls`` at ``version`` into today's form."""

    def register(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        _UPGRADES[f"{cls.__name__}@{version}"] = (cls, function)
        return function

    return register


def kind_of(cls: type[Frozen]) -> str:
    """The wire name of a message class."""
    return f"{cls.__name__}@{cls.schema_version}"


def message_types() -> tuple[type[Frozen], ...]:
    """Every registered message class, by name."""
    return tuple(_BY_NAME[name] for name in sorted(_BY_NAME))


def encode(message: Frozen) -> tuple[str, bytes]:
    """``message`` as ``(kind, blob)``.

    Raises:
        ProtocolError: the class is not registered, or a value inside cannot be written as JSON (it is named).
        MessageTooLarge: the blob would exceed 256 MiB.
    """
    cls = type(message)
    kind = _KINDS.get(cls)
    if kind is None:
        raise ProtocolError(f"{cls.__name__} is not a message type; decorate it with @message_type")
    blob = to_json(message)
    if cls.attached is not None and (attachment := message.attachment()) is not None:
        blob += SEPARATOR + attachment
    if len(blob) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"{kind} has {len(blob)} bytes, the limit is {MAX_MESSAGE_BYTES}", size=len(blob))
    return kind, blob


def to_json(message: Frozen) -> bytes:
    """``message`` as one JSON object, registered or not. Defaults are left out where the class says so.

    Raises:
        ProtocolError: a value inside cannot be written as JSON.
    """
    try:
        return message.__pydantic_serializer__.to_json(message, exclude_defaults=message.compact)
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
        return _encode_again(message, error)


def plain(value: Any, what: str) -> Any:
    """``value`` as JSON values: models and dataclasses as objects, tuples and sets as lists...

    Args:
        value: anything.
        what: names it in the error.

    Raises:
        NotStorable: it has no JSON form.
    """
    try:
        given = to_jsonable_python(value, inf_nan_mode="constants")
        json.dumps(given, allow_nan=False)
        return clean_value(given)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise NotStorable(f"{what} has no JSON form: {error}") from None


def _encode_again(message: Frozen, error: Exception) -> bytes:
    """Values that no validator cleaned (set by ``evolve``) may hold unpaired surrogates: clean them and try once more."""
    try:
        clean = type(message).model_validate(clean_value(message.model_dump(warnings=False)))
        return clean.__pydantic_serializer__.to_json(clean, exclude_defaults=clean.compact)
    except (PydanticSerializationError, UnicodeEncodeError, ValueError, TypeError, RecursionError):
        raise ProtocolError(f"{type(message).__name__} cannot be written as JSON: {error}") from error


def decode(kind: Any, blob: Any) -> Frozen:
    """The message that :func:`encode` wrote; both arguments may be anything that a peer sent.

    Raises:
        UnknownKind: no such message class here.
        SchemaVersionError: the class is known, this version of it is not.
        DecodeError: the blob is not a valid message of that kind.
    """
    cls = _BY_KIND.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return _decode_old(kind, blob)
    try:
        if cls.attached is None:
            return cls.__pydantic_validator__.validate_json(blob)  # type: ignore[no-any-return]
        head, mark, attachment = blob.partition(SEPARATOR)
        message: Frozen = cls.__pydantic_validator__.validate_json(head)
        if mark:
            return message.with_attachment(attachment)
        if message.attachment() is not None:
            raise ValueError("what should come beside the JSON is missing")
        return message
    except ValidationError as error:
        raise DecodeError(f"not a valid {kind}: {_first(error)}", kind=kind) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DecodeError(f"not a valid {kind}: {error}", kind=str(kind)) from None


def _decode_old(kind: Any, blob: bytes) -> Frozen:
    if not isinstance(kind, str):
        raise DecodeError(f"a message kind is text, not {type(kind).__name__}")
    name, _, version = kind.partition("@")
    if kind in _UPGRADES:
        cls, function = _UPGRADES[kind]
        try:
            return cls.model_validate(function(json.loads(blob)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(f"not a valid {kind}: {error}", kind=kind) from None
    if name in _BY_NAME:
        known = _BY_NAME[name].schema_version
        raise SchemaVersionError(
            f"{name} arrived with schema version {version[:20]!r}, this process knows {known}; run the same Umbel everywhere",
            kind=kind[:200],
        )
    raise UnknownKind(f"no message type is called {name[:100]!r}", kind=kind[:200])


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "(whole)"
    return f"{where}: {first['msg']}"


def pack(frame: Any) -> bytes:
    """A frame (lists, ints, text, bytes) as msgpack.

    Raises:
        ProtocolError: a value that msgpack cannot write.
    """
    try:
        return msgpack.packb(frame)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a frame cannot be written: {error}") from error


def unpack(data: bytes) -> Any:
    """What :func:`pack` wrote.

    Raises:
        DecodeError: truncated, too deep, oversized or otherwise malformed bytes.
    """
    try:
        # Lengths inside the data are limited to the data's own length, so no short frame can ask for much memory.
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError, msgpack.UnpackException) as error:
        raise DecodeError(f"malformed frame: {type(error).__name__}: {str(error)[:200]}") from None
