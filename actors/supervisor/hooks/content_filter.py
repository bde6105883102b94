"""A hook with blocked words and patterns, and limits on length, for what goes in and what comes out."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ....protocol.errors import GuardrailViolation
from .base import Hook, Priority
from .output_filter import compiled, words_pattern
from .patterns import texts_of

if TYPE_CHECKING:
    from ....protocol.state import AgentState
    from .events import AfterModelCall, BeforeToolCall

CUT = " [cut]"


class ContentFilterHook(Hook):
    """Refuses prompts, and cancels tool calls, that hold what is blocked or are too long; cuts replies that are too long.

    Args:
        blocked_words: words or phrases, found as whole words without case.
        blocked_patterns: regular expressions, searched without case.
        max_input_length: characters of a prompt, and of all texts of a call's arguments together.
        max_output_length: characters of a reply's text; what is beyond is cut and marked. None: no limit.

    Raises:
        ConfigurationError: a pattern is no regular expression.

    Source: HOOK-41.
    """

    priority = Priority.SECURITY

    def __init__(
        self,
        *,
        blocked_words: Collection[str] = (),
        blocked_patterns: Collection[str] = (),
        max_input_length: int = 50_000,
        max_output_length: int | None = None,
    ) -> None:
        words = [words_pattern(blocked_words)] if blocked_words else []
        self._blocked = [*words, *(compiled(pattern, "ContentFilterHook") for pattern in blocked_patterns)]
        self.max_input_length = max_input_length
        self.max_output_length = max_output_length

    async def on_before_invocation(self, prompt: str, state: AgentState) -> AgentState:
        """Let the prompt pass, or not.

        Raises:
            GuardrailViolation: it holds what is blocked, or is too long.
        """
        problem = self._problem(prompt)
        if problem is not None:
            raise GuardrailViolation(f"the prompt was refused: {problem}", rule="content_filter")
        return state

    async def on_before_tool_call(self, event: BeforeToolCall) -> None:
        problem = self._problem("\n".join(texts_of(event.arguments)))
        if problem is not None:
            event.cancel = f"{event.tool_name} was not run: {problem}"

    async def on_after_model_call(self, event: AfterModelCall) -> None:
        message, limit = event.response.message, self.max_output_length
        if limit is None or message.content is None or len(message.content) <= limit:
            return
        kept = message.content[: max(0, limit - len(CUT))] + CUT
        event.response = event.response.evolve(message=message.evolve(content=kept[:limit]))

    def _problem(self, text: str) -> str | None:
        if len(text) > self.max_input_length:
            return f"it has {len(text)} characters, {self.max_input_length} are allowed"
        if any(pattern.search(text) for pattern in self._blocked):
            return "it holds blocked content"
        return None
