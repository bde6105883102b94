"""Whose a model call is, where an endpoint's limits are shared out."""

from __future__ import annotations

from pydantic import Field

from .messages import Frozen


class Share(Frozen):
    """A claim to an endpoint's limits. Runs without one form a fleet of their own, of weight 1.

    Attributes:
        fleet: which fleet the call belongs to; those that compete are served in proportion to their weights.
        weight: of the fleet. What a fleet does not use goes to the others.
        priority: within the fleet, higher ones are served first, then those that wait longest.
    """

    fleet: str = ""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    priority: int = 0
