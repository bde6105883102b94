"""A hook that keeps a model's replies within policy: forbidden content, forbidden topics, personal data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ....protocol.errors import ConfigurationError
from ....protocol.events import CustomEvent
from ....protocol.messages import Message
from .base import Hook, Priority
from .patterns import PII, redact_pii

if TYPE_CHECKING:
    from ....protocol.messages import ModelResponse
    from .events import AfterModelCall

REFUSAL = "I can't help with that."


class OutputFilterHook(Hook):
    """Looks at every reply: content policy, then topic policy, then personal data.

    A reply that breaks a policy becomes the refusal, without its calls; usage and cost stay. Personal data is masked in the
    text and in the reasoning; calls, usage and everything else stay as they are. What a reply was refused for is emitted as
    a custom event ``output_filtered``.

    Args:
        blocked_content: regular expressions by name, searched without case.
        blocked_topics: words or phrases by topic, found as whole words without case.
        redact: kinds of personal data to mask (``email``, ``phone``, ``ssn``, ``card``, ``ip``).
        refusal: text in place of a refused reply.

    Raises:
        ConfigurationError: an expression or a kind that cannot be used.

    Source: HOOK-40.
    """

    priority = Priority.SECURITY

    def __init__(
        self,
        *,
        blocked_content: Mapping[str, str] | None = None,
        blocked_topics: Mapping[str, Collection[str]] | None = None,
        redact: Collection[str] = ("email", "phone", "ssn", "card"),
        refusal: str = REFUSAL,
    ) -> None:
        unknown = sorted(set(redact) - PII.keys())
        if unknown:
            raise ConfigurationError(f"OutputFilterHook cannot redact {', '.join(unknown)}; it knows {', '.join(PII)}")
        self.redact = tuple(redact)
        self.refusal = refusal
        self._content = {name: compiled(pattern, "OutputFilterHook") for name, pattern in (blocked_content or {}).items()}
        self._topics = {topic: words_pattern(words) for topic, words in (blocked_topics or {}).items() if words}

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        why = self._refused(event.response.content or "")
        if why is not None:
            event.response = _refusal(event.response, self.refusal)
            if event.run is not None:
                event.emit(CustomEvent(name="output_filtered", data=why))
            return
        event.response = self._masked(event.response)

    def _refused(self, text: str) -> dict[str, str] | None:
        for policy, patterns in (("content", self._content), ("topic", self._topics)):
            for name, pattern in patterns.items():
                if pattern.search(text):
                    return {"policy": policy, "name": name}
        return None

    def _masked(self, response: ModelResponse) -> ModelResponse:
        content, found = redact_pii(response.content or "", self.redact)
        reasoning, found_too = redact_pii(response.reasoning or "", self.redact)
        if found:
            response = response.evolve(message=response.message.evolve(content=content))
        return response.evolve(reasoning=reasoning) if found_too else response


def compiled(pattern: str, owner: str) -> re.Pattern[str]:
    """A user's regular expression, without case.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ConfigurationError(f"{owner}: {pattern!r} is not a regular expression: {error}") from None


def words_pattern(words: Collection[str]) -> re.Pattern[str]:
    """Any of the words or phrases, as whole words, without case."""
    return re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words), re.IGNORECASE)


def _refusal(response: ModelResponse, text: str) -> ModelResponse:
    return response.evolve(message=Message.assistant(text), stop_reason="stop", reasoning=None)
