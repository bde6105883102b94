"""Patterns that guardrails and filters look for. Every one is linear in the length of the text.

They find what looks like personal data or an attack, no more: a pattern is a signal, not a proof.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any

PII: dict[str, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}(?![\w-])"),
    "ssn": re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])"),
    "card": re.compile(r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])"),
    "phone": re.compile(r"(?<![\w.-])(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"),
    "ip": re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]\w|\w)"),
}
ATTACKS: dict[str, re.Pattern[str]] = {
    "sql": re.compile(
        r"\bunion\s{1,9}(?:all\s{1,9})?select\b|\bdrop\s{1,9}(?:table|database|schema)\b|;\s{0,9}(?:delete\s{1,9}from|insert\s{1,9}into"
        r"|update\s{1,9}\w{1,64}\s{1,9}set|truncate\s)|['\"]\s{0,9}or\s{1,9}['\"]?(\w{1,16})['\"]?\s{0,9}=\s{0,9}['\"]?\1",
        re.IGNORECASE,
    ),
    "path_traversal": re.compile(r"(?:\.\.[/\\]){2,99}|(?:%2e%2e(?:%2f|%5c)){1,99}", re.IGNORECASE),
    "shell": re.compile(r"[;|&`]|\$\("),
}


def find_pii(kind: str, text: str) -> Iterator[re.Match[str]]:
    """Where ``text`` holds this kind of personal data; card numbers must satisfy their check digit, addresses their range."""
    for match in PII[kind].finditer(text):
        if kind == "card" and not _luhn(match[0]):
            continue
        if kind == "ip" and not _is_address(match[0]):
            continue
        yield match


def redact_pii(text: str, kinds: Iterable[str]) -> tuple[str, dict[str, int]]:
    """``text`` with every find replaced by ``[REDACTED <KIND>]``, and how many of each kind there were."""
    counts: dict[str, int] = {}
    for kind in kinds:
        parts: list[str] = []
        end = 0
        for match in find_pii(kind, text):
            parts += [text[end : match.start()], f"[REDACTED {kind.upper()}]"]
            end = match.end()
            counts[kind] = counts.get(kind, 0) + 1
        text = "".join([*parts, text[end:]])
    return text, counts


def redact_value(value: Any, kinds: Iterable[str]) -> Any:
    """``value`` (JSON-like) with every text inside it redacted, at any depth; keys stay."""
    kinds = tuple(kinds)
    if isinstance(value, str):
        return redact_pii(value, kinds)[0]
    if isinstance(value, dict):
        return {key: redact_value(item, kinds) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(item, kinds) for item in value]
    return value


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


def _luhn(text: str) -> bool:
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
