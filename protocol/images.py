"""Images inside result texts: base64 segments with a media type (STATE-6).

A segment reads ``<umbel-image type="image/png">iVBORw0...</umbel-image>``. What only looks like one (an unknown media type,
base64 that does not decode, a missing end) stays text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence

from .messages import Frozen, Message, Text

TOKENS_PER_IMAGE = 1_600
CHARS_PER_TOKEN = 4
SHOWN_RESULTS = 3
PLACEHOLDER = "[image no longer shown]"
MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_OPENING = "<umbel-image "
_SEGMENT = re.compile(r'<umbel-image type="([a-z0-9/.+-]{1,40})">([A-Za-z0-9+/=]+)</umbel-image>')


class Image(Frozen):
    """One image: its media type and its bytes in base64, as providers take them."""

    media_type: Text
    base64: Text


def image_segment(data: bytes, media_type: str) -> str:
    """``data`` as a piece of a result text.

    Raises:
        ValueError: the media type is not one that models take, or there are no bytes.
    """
    if media_type not in MEDIA_TYPES:
        raise ValueError(f"media type {media_type!r} is none of {', '.join(sorted(MEDIA_TYPES))}")
    if not data:
        raise ValueError("an image needs at least one byte")
    return f'<umbel-image type="{media_type}">{base64.b64encode(data).decode()}</umbel-image>'


def split_images(text: str) -> tuple[str | Image, ...]:
    """``text`` as its pieces in order: plain text (never empty) and images. Only text when there are no images."""
    pieces: list[str | Image] = []
    end = 0
    for match in _segments(text):
        if match.start() > end:
            pieces.append(text[end : match.start()])
        pieces.append(Image.trusted(media_type=match[1], base64=match[2]))
        end = match.end()
    if end < len(text):
        pieces.append(text[end:])
    return tuple(pieces)


def strip_images(text: str, placeholder: str = "") -> str:
    """``text`` with ``placeholder`` instead of each image."""
    if _OPENING not in text:
        return text
    return "".join(piece if isinstance(piece, str) else placeholder for piece in split_images(text))


def count_images(text: str) -> int:
    """How many images ``text`` holds."""
    return sum(1 for _ in _segments(text))


def text_length(text: str) -> int:
    """Characters of ``text`` outside its images."""
    return len(text) - sum(match.end() - match.start() for match in _segments(text))


def text_tokens(text: str) -> int:
    """A rough count of tokens: one per four characters outside images, 1,600 per image."""
    return text_length(text) // CHARS_PER_TOKEN + TOKENS_PER_IMAGE * count_images(text)


def without_old_images(messages: Sequence[Message], shown: int = SHOWN_RESULTS) -> tuple[Message, ...]:
    """``messages`` with a placeholder for each image of all but the last ``shown`` tool results that hold any."""
    holding = [
        index for index, message in enumerate(messages) if message.role == "tool" and count_images(message.content or "")
    ]
    old = set(holding[: max(0, len(holding) - shown)])
    return tuple(
        message.evolve(content=strip_images(message.content or "", PLACEHOLDER)) if index in old else message
        for index, message in enumerate(messages)
    )


def _segments(text: str) -> Iterator[re.Match[str]]:
    if _OPENING not in text:
        return
    for match in _SEGMENT.finditer(text):
        if match[1] in MEDIA_TYPES and _decodes(match[2]):
            yield match


def _decodes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True
