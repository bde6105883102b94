"""Which manager an agent's conversations get when it names none.

Source: spec MEM-9, MEM-10.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Message
from ..models.catalogue import facts_of, title_of
from .budgets import CompactionConfig, budgets_of
from .compactor import LLMCompactor
from .manager import ConversationManager, NullManager
from .window import SlidingWindow

logger = logging.getLogger("umbel.conversation")

WINDOW_VARIABLE = "UMBEL_CONTEXT_WINDOW"
COMPACTOR_SLIDE = 8
_warned: set[str] = set()


class ConversationSettings(Protocol):
    """The fields of an agent's configuration that decide."""

    @property
    def conversation_manager(self) -> Any: ...
    @property
    def compaction(self) -> Any: ...
    @property
    def context_window(self) -> int | None: ...
    @property
    def max_iterations(self) -> int: ...


class Selection(NamedTuple):
    """How an agent's conversations are kept small.

    Attributes:
        manager: shortens each request.
        compaction: rewrites the stored conversation; None when the context compactor is not in use.
        window: the model's context window, tokens, if it is known.
    """

    manager: ConversationManager
    compaction: CompactionConfig | None
    window: int | None


def window_of(config: ConversationSettings, model: Any) -> int | None:
    """The context window of ``model``, tokens.

    From the agent's ``context_window``, else the environment's ``UMBEL_CONTEXT_WINDOW``, else the catalogue of models, else
    the model's own attribute ``context_window``.

    Raises:
        ConfigurationError: the environment variable or the attribute is not a positive whole number.
    """
    if config.context_window is not None:
        return config.context_window
    text = os.environ.get(WINDOW_VARIABLE, "").strip()
    if text:
        return _positive(text, f"the environment variable {WINDOW_VARIABLE}")
    known = facts_of(model).context_window
    own = getattr(model, "context_window", None)
    if known is None and own is not None:
        return _positive(own, f"context_window of {type(model).__name__}")
    return known


def choose(config: ConversationSettings, model: Any, window: int | None) -> Selection:
    """The manager for ``config``.

    A manager that the agent names wins. A known window has the context compactor, or an :class:`LLMCompactor` where
    compaction is off. For an unknown one a :class:`SlidingWindow` does, wide enough for a turn, and one warning per model.

    Args:
        config: the agent's.
        model: its primary model, for the warning.
        window: what :func:`window_of` gives.

    Raises:
        ConfigurationError: the manager has no ``apply``, or the compaction settings are wrong.
    """
    compaction = CompactionConfig.of(config.compaction)
    manager = config.conversation_manager
    if manager is not None:
        if not isinstance(manager, ConversationManager):
            raise ConfigurationError(f"conversation_manager: {type(manager).__name__} has no apply(messages); see NullManager")
        return Selection(manager, None, window)
    if window is None:
        size = max(20, 2 * config.max_iterations)
        return Selection(FallbackWindow(size, title_of(model)), None, None)
    if not compaction.enabled:
        return Selection(LLMCompactor(window, slide_step=COMPACTOR_SLIDE), None, window)
    budgets_of(compaction, window)
    return Selection(NullManager(), compaction, window)


class FallbackWindow(SlidingWindow):
    """The window of a model whose own is unknown; it says so when it first leaves something out.

    Args:
        window_size: messages.
        model: its name, for the warning.
    """

    def __init__(self, window_size: int, model: str) -> None:
        super().__init__(window_size, slide_step=window_size // 4)
        self.model = model

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        kept = super().apply(messages)
        if len(kept) < len(messages):
            warn_once(self.model)
        return kept


def warn_once(model: str) -> None:
    """Say, once per process and model, that its context window is unknown."""
    if model not in _warned:
        _warned.add(model)
        logger.warning(
            "the context window of model %s is unknown: only the newest messages are sent. "
            "Set Agent(context_window=...), %s, or register_model(...)",
            model,
            WINDOW_VARIABLE,
        )


def _positive(value: Any, what: str) -> int:
    number = str(value).strip()
    if isinstance(value, bool) or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ConfigurationError(f"{what} must be a positive whole number of tokens, not {value!r}")
    return int(number)
