"""How large a request is, in tokens, without a tokenizer: a token per four characters, or what the provider said.

Source: spec MEM-12, STATE-28.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ....protocol.messages import Message, Usage
from ....protocol.state import CHARS_PER_TOKEN, count_characters, estimate_tokens


def schema_tokens(schemas: Sequence[dict[str, Any]] | None) -> int:
    """An estimate for the tool schemas of a request, which are sent as JSON."""
    return len(json.dumps(schemas, default=str)) // CHARS_PER_TOKEN if schemas else 0


def request_tokens(messages: Sequence[Message], tools_tokens: int = 0, reported_tokens: int | None = None) -> int:
    """The size of the next request, in tokens: the larger of two estimates.

    Args:
        messages: the conversation that would be sent.
        tools_tokens: what :func:`schema_tokens` gives.
        reported_tokens: prompt tokens (cached ones too) of the last request, which held everything before the last
            assistant message; None when nothing was reported, or the conversation was rewritten since.
    """
    estimate = estimate_tokens(messages) + tools_tokens
    if reported_tokens is None:
        return estimate
    return max(estimate, reported_tokens + estimate_tokens(messages[last_reply(messages) :]))


def last_reply(messages: Sequence[Message]) -> int:
    """Index of the newest assistant message, or the number of messages when there is none."""
    return next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"), len(messages))


def reported_size(usage: Usage | None) -> int | None:
    """Tokens of a request as its reply's usage tells them, those from or into a cache too; None when it tells nothing."""
    if usage is None:
        return None
    return usage.prompt_tokens + usage.cache_creation_tokens + usage.cache_read_tokens or None


class RunningEstimate:
    """The estimate of a conversation that mostly grows: only messages that are new since the last time are counted."""

    __slots__ = ("_characters", "_known", "_last")

    def __init__(self) -> None:
        self._known = 0
        self._last: Message | None = None
        self._characters = 0

    def tokens(self, messages: Sequence[Message]) -> int:
        """What ``estimate_tokens(messages)`` gives."""
        known = self._known
        if known > len(messages) or (known and messages[known - 1] is not self._last):
            known = self._characters = 0
        self._characters += sum(map(count_characters, messages[known:]))
        self._known = len(messages)
        self._last = messages[-1] if messages else None
        return self._characters // CHARS_PER_TOKEN
