"""A window that slides over the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from ....protocol.errors import ConfigurationError
from ....protocol.messages import Message
from ..models.history import paired
from .steps import asks, join, leading_systems, opening, split_steps, step_at


class SlidingWindow:
    """Sends the newest messages, in whole steps.

    Leading system messages are sent on top of the window, and so is the request that opened the turn, when nothing in the
    window is a request of the user. The newest step is always sent, even where it alone is larger than the window.

    Args:
        window_size: messages, 1 or more.
        preserve_system: keep the leading system messages.
        preserve_first_user: keep the turn's opening request.
        slide_step: by how many messages the window moves at once, 1 to ``window_size``. Between two moves requests only
            grow at their end, so the provider's prefix cache serves them.

    Raises:
        ConfigurationError: a number is out of range.

    Source: spec MEM-3 to MEM-5; BUG-53.
    """

    def __init__(
        self,
        window_size: int = 20,
        preserve_system: bool = True,
        preserve_first_user: bool = True,
        slide_step: int = 1,
    ) -> None:
        if window_size < 1:
            raise ConfigurationError(f"SlidingWindow: window_size must be 1 or more, not {window_size}")
        if not 1 <= slide_step <= window_size:
            raise ConfigurationError(f"SlidingWindow: slide_step must be 1 to {window_size} (window_size), not {slide_step}")
        self.window_size = window_size
        self.preserve_system = preserve_system
        self.preserve_first_user = preserve_first_user
        self.slide_step = slide_step

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        whole = paired(messages)
        systems = leading_systems(whole) if self.preserve_system else 0
        body = whole[systems:]
        excess = len(body) - self.window_size
        if excess <= 0:
            return whole
        jumps = -(-excess // self.slide_step)
        steps = split_steps(body)
        start = step_at(steps, jumps * self.slide_step)
        kept = steps[start:]
        if self.preserve_first_user and not any(map(asks, kept)):
            request = opening(steps, start)
            if request is not None:
                kept.insert(0, steps[request])
        return [*whole[:systems], *join(kept)]
