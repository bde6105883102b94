"""``umbel.conversation``: what keeps conversations within a model's context."""

from .actors.agent.conversation import (
    Compaction,
    CompactionConfig,
    ConversationManager,
    LLMCompactor,
    NullManager,
    SlidingWindow,
    SummarizingManager,
)
from .actors.agent.models.catalogue import ModelFacts, Prices, facts_of, price_of, register_model

__all__ = [
    "Compaction",
    "CompactionConfig",
    "ConversationManager",
    "LLMCompactor",
    "ModelFacts",
    "NullManager",
    "Prices",
    "SlidingWindow",
    "SummarizingManager",
    "facts_of",
    "price_of",
    "register_model",
]
