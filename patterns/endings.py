"""How a pattern that has run what it could comes to its end. Source: OURS-25."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..protocol.errors import MemberFailed, NothingRan
from ..protocol.patterns import Ending, MemberResult, failure_of
from .pattern import Pattern


def failed(results: Iterable[MemberResult], **fields: Any) -> Ending:
    """The end that the failures among ``results`` mean."""
    reason, error = failure_of(results) or ("error", MemberFailed("a step failed"))
    return Ending.failed(error, reason, **fields)


def concluded(pattern: Pattern, results: list[MemberResult], **fields: Any) -> Ending:
    """The end of a pattern whose members have ended as ``results`` says: a failure of one counts as ``on_error`` says.

    That nothing ran, or nothing but failures came of it, is no success in any case.
    """
    if not results:
        return Ending.failed(NothingRan(f"{pattern.title} had nothing to run"), **fields)
    if failure_of(results) is not None and (pattern.on_error == "fail" or not any(result.success for result in results)):
        return failed(results, **fields)
    return Ending(**fields)
