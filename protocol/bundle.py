"""Many messages as one: what crosses between two actors costs by the message, and little by the byte."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from .codec import decode, encode, message_type, pack, unpack
from .errors import DecodeError
from .messages import Frozen


@message_type
class Bundle(Frozen):
    """Requests that are made at once; or their replies, in the same places, ``Failure`` where one failed.

    Attributes:
        parts: the messages, as a msgpack array of kind and blob each.
    """

    parts: bytes = Field(default=b"", exclude=True)

    attached = "parts"

    @classmethod
    def of(cls, messages: Iterable[Frozen]) -> Bundle:
        """A bundle of ``messages``.

        Raises:
            ProtocolError: one of them cannot be written.
        """
        return cls.trusted(parts=pack([encode(message) for message in messages]))

    def messages(self) -> list[Frozen]:
        """What is in it.

        Raises:
            DecodeError: it was damaged.
            UnknownKind: the sender knows messages that this process does not.
        """
        parts = unpack(self.parts)
        if not isinstance(parts, list) or not all(isinstance(part, list) and len(part) == 2 for part in parts):
            raise DecodeError("a bundle is an array of kind and blob each")
        return [decode(kind, blob) for kind, blob in parts]
