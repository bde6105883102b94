"""Conversations within a model's context: managers that shorten requests, and the compactor of what is stored."""

from .budgets import CompactionConfig
from .compaction import (
    Compaction,
    CompactionMemory,
    Pressure,
    SummaryModel,
    compact,
    measure,
)
from .compactor import LLMCompactor
from .manager import ConversationManager, NullManager, manage
from .selection import Selection, choose, window_of
from .summaries import Summarise
from .summarizing import SummarizingManager
from .tokens import reported_size, request_tokens, schema_tokens
from .window import SlidingWindow

__all__ = [
    "Compaction",
    "CompactionConfig",
    "CompactionMemory",
    "ConversationManager",
    "LLMCompactor",
    "NullManager",
    "Pressure",
    "Selection",
    "SlidingWindow",
    "Summarise",
    "SummarizingManager",
    "SummaryModel",
    "choose",
    "compact",
    "manage",
    "measure",
    "reported_size",
    "request_tokens",
    "schema_tokens",
    "window_of",
]
