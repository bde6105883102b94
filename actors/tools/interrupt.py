"""The signal of a tool that must ask a person before it can go on (OURS-2)."""

from __future__ import annotations

from ...protocol.messages import InterruptRequest


class Interrupt(BaseException):
    """Raised by :meth:`ToolContext.interrupt`; it ends the body, and the run pauses until there is an answer.

    Not an ``Exception``, so that a body that handles its errors does not take the question for one of them. A body that
    catches ``BaseException`` must raise it again.

    Args:
        request: what is asked.
    """

    def __init__(self, request: InterruptRequest) -> None:
        super().__init__(request)
        self.request = request


def request_in(error: BaseException) -> InterruptRequest | None:
    """What ``error`` asks: it is an interrupt, or a group (of a ``TaskGroup``) with one inside. Of several, the first."""
    if isinstance(error, Interrupt):
        return error.request
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := request_in(inner)) is not None), None)
    return None
