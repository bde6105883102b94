"""What signals do to a program that works: the first ends it in order, the second at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Stoppable(Protocol):
    """Something that a signal can stop."""

    def stop(self, reason: str = ...) -> None:
        """End soon; ``reason`` is the signal's name."""


@contextmanager
def stop_on_signals(work: Stoppable, *signals: signal.Signals) -> Iterator[None]:
    """The first of these signals stops ``work`` cleanly; a second one acts as it would have without this."""
    with on_signals([work.stop], signals):
        yield


@contextmanager
def on_signals(steps: Sequence[Callable[[str], None]], signals: Sequence[signal.Signals]) -> Iterator[None]:
    """The first of these signals calls the first of ``steps`` with its name, the second the second, and so on.

    A signal for which no step is left acts as it would have without this. Only the main thread can handle signals; elsewhere
    this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}
    left = list(steps)

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def take(number: signal.Signals) -> None:
        step = left.pop(0)
        if not left:
            restore()
        step(number.name)

    for number in signals:
        loop.add_signal_handler(number, take, number)
    try:
        yield
    finally:
        restore()
