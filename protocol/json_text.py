"""JSON out of text that a model wrote: strict about what JSON is, and safe with hostile input."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from .messages import clean_value


def read_json(text: str) -> Any:
    """The JSON value that all of ``text`` is.

    Raises:
        ValueError: it is not JSON, nests too deep, or holds NaN or an infinity.
    """
    text = text.strip()
    value, end = read_json_at(text, 0)
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def read_json_at(text: str, position: int) -> tuple[Any, int]:
    """The JSON value at ``position``, and where it ends.

    Raises:
        ValueError: as for :func:`read_json`.
    """
    try:
        return _DECODER.raw_decode(text, position)
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_plain(value: Any) -> bool:
    """Whether ``value`` is JSON that a message can carry: finite numbers, text keys, no tuples, not nested too deep."""
    try:
        json.dumps(clean_value(value), allow_nan=False)
    except (TypeError, ValueError):
        return False
    return _is_exact(value)


def _is_exact(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_exact(item) for key, item in value.items())
    return all(map(_is_exact, value)) if isinstance(value, list) else not isinstance(value, tuple)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
