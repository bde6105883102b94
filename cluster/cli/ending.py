"""How commands end: exit codes, and errors as one clear message."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
P = ParamSpec("P")
T = TypeVar("T")


def ends_cleanly(command: Callable[P, T]) -> Callable[P, T]:
    """Decorator for commands: errors of ours become a message and an exit code, Ctrl-C becomes 130, nobody sees a traceback.

    Exit codes: 1 something failed, 2 wrong usage or configuration, 130 Ctrl-C. ``UMBEL_TRACEBACK=1`` and ``-v`` show
    where an error came from.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from ...protocol.errors import ConfigurationError, UmbelError

        try:
            return command(*args, **kwargs)
        except ConfigurationError as error:
            raise fail(error.message or str(error), USAGE) from error
        except UmbelError as error:
            raise fail(f"{error.code}: {error.message or error}", FAILED) from error
        except KeyboardInterrupt as error:
            raise fail("interrupted", INTERRUPTED) from error

    return run


def fail(message: str, code: int) -> typer.Exit:
    """Say why on stderr and return what to raise."""
    if logging.getLogger("umbel").isEnabledFor(logging.DEBUG) and sys.exc_info()[0] is not None:
        traceback.print_exc()
    typer.secho(f"umbel: {message}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
    return typer.Exit(code)


def set_up_logging(verbose: int, *, quiet: bool = False) -> None:
    """Logs of Umbel go to stderr: warnings, with ``-v`` information, with ``-vv`` everything, with ``-q`` errors."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("umbel")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
