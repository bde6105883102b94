"""Long texts that never change, stored once: a system prompt is a reference in every snapshot and delta.

A snapshot holds the whole conversation, and a thread has many; what a prompt of 30 KB would take in each of them is most of
what a store would hold. So a system message's long text is replaced by its content hash, and the text travels beside the
first save that refers to it (``SaveCheckpoint.statics``). A store keeps it once for all threads. Source: OURS-22.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from ...protocol.errors import CheckpointError
from ...protocol.messages import Message, clean_text

MARK = "umbel-static:"
LONG = 1_024  # characters
_REFERENCE = re.compile(rb'"umbel-static:([0-9a-f]{64})"')


def references(state: bytes) -> set[str]:
    """The content hashes of the texts that a stored state refers to, and perhaps some that only look like it.

    A store may use it to find which of a thread's texts it must return with a state, and which nobody needs any more.
    """
    return {digest.decode() for digest in _REFERENCE.findall(state)}


def take_out(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], dict[str, str]]:
    """``messages`` with references instead of long system texts, and those texts by content hash."""
    texts: dict[str, str] = {}
    if not any(_is_static(message) for message in messages):
        return messages, texts
    referring: list[Message] = []
    for message in messages:
        if _is_static(message):
            text = clean_text(message.content or "")
            digest = sha256(text.encode()).hexdigest()
            texts[digest] = text
            message = message.evolve(content=MARK + digest)  # noqa: PLW2901 - the one that is stored
        referring.append(message)
    return tuple(referring), texts


def put_back(messages: tuple[Message, ...], texts: Mapping[str, str], where: str) -> tuple[Message, ...]:
    """What :func:`take_out` was given.

    Args:
        messages: as they were stored.
        texts: by content hash.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: a text is missing, or is not the one that was stored.
    """
    if not any(_refers(message) for message in messages):
        return messages
    return tuple(_whole(message, texts, where) if _refers(message) else message for message in messages)


def digests(messages: Iterable[Message]) -> frozenset[str]:
    """The content hashes that stored ``messages`` refer to."""
    return frozenset((message.content or "")[len(MARK) :] for message in messages if _refers(message))


def _whole(message: Message, texts: Mapping[str, str], where: str) -> Message:
    digest = (message.content or "")[len(MARK) :]
    text = texts.get(digest)
    if text is None:
        raise CheckpointError(f"{where} is damaged: the store has lost the text {digest} of a system message", digest=digest)
    if sha256(text.encode()).hexdigest() != digest:
        raise CheckpointError(f"{where} is damaged: the text {digest} of a system message was changed", digest=digest)
    return message.evolve(content=text)


def _refers(message: Message) -> bool:
    return message.role == "system" and (message.content or "").startswith(MARK)


def _is_static(message: Message) -> bool:
    """A long text; and whatever would be taken for a reference."""
    return message.role == "system" and (len(message.content or "") >= LONG or _refers(message))
