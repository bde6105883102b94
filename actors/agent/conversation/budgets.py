"""How the context compactor is configured, and the sizes that follow from it and from a model's window.

Source: spec API-12, MEM-11, MEM-13 to MEM-15.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import Field

from ....protocol.errors import ConfigurationError
from ....protocol.settings import SwitchedSettings

MOST_RESERVED = 20_000
MOST_OUTPUTS = 40_000


class CompactionConfig(SwitchedSettings):
    """How a run keeps its conversation within the model's context (spec API-12).

    Attributes:
        enabled: False leaves the conversation alone.
        trigger_fraction: share of the usable window at which compaction begins.
        reserved_tokens: tokens of the window left for the reply; None is a fifth of it, at most 20,000.
        tail_turns: newest turns (a reply with its results) that are never folded, as far as they fit.
        tail_token_fraction: share of the window that they may take.
        tool_output_keep_tokens: tokens of tool outputs that stay when old ones are cleared; None is a quarter of the usable
            window, at most 40,000.
        summary_model: for summaries; None uses the agent's auxiliary model, or else its primary one.
        summary_max_tokens: length of a summary; None is a tenth of the window, 256 to 4,096.
        min_iterations_between_summaries: a second summary sooner than this ends the run.
    """

    field = "compaction"

    trigger_fraction: float = Field(default=0.9, gt=0, le=1)
    reserved_tokens: int | None = Field(default=None, ge=0)
    tail_turns: int = Field(default=6, ge=1)
    tail_token_fraction: float = Field(default=0.25, gt=0, lt=1)
    tool_output_keep_tokens: int | None = Field(default=None, ge=0)
    summary_model: Any = None
    summary_max_tokens: int | None = Field(default=None, ge=1)
    min_iterations_between_summaries: int = Field(default=3, ge=0)


class Budgets(NamedTuple):
    """What a window allows, in tokens (see :func:`budgets_of`)."""

    window: int
    usable: int
    threshold: int
    outputs: int
    tail: int
    summary: int

    @property
    def goal(self) -> int:
        """What clearing outputs must reach; anything less would have to be done again at once."""
        return self.threshold - self.usable // 10


def budgets_of(config: CompactionConfig, window: int) -> Budgets:
    """The sizes that follow from a window of ``window`` tokens (spec MEM-11, MEM-13 to MEM-15).

    Raises:
        ConfigurationError: nothing of the window is left beside ``reserved_tokens``.
    """
    reserved = min(MOST_RESERVED, window // 5) if config.reserved_tokens is None else config.reserved_tokens
    usable = window - reserved
    if usable <= 0:
        raise ConfigurationError(
            f"compaction: reserved_tokens={reserved} leaves nothing of a context window of {window} tokens; lower it"
        )
    outputs = config.tool_output_keep_tokens
    return Budgets(
        window=window,
        usable=usable,
        threshold=int(usable * config.trigger_fraction),
        outputs=min(MOST_OUTPUTS, usable // 4) if outputs is None else outputs,
        tail=int(window * config.tail_token_fraction),
        summary=config.summary_max_tokens or max(256, min(4_096, window // 10)),
    )
