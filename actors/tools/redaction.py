"""Secrets and private paths taken out of error texts before a model, an event or a log sees them (TOOL-23).

Every pattern is linear in the length of the text: no nested repetition, bounded look-behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MASK = "[REDACTED]"
_LONG, _HEAD, _TAIL = 18, 6, 4
_LEAST = 8  # shorter ones would mask ordinary words
_CONCEALED: dict[str, None] = {}  # the values of secrets that this process looked up


def redact(text: str) -> str:
    """``text`` with credentials masked; long keys keep 6 leading and 4 trailing characters so that they can be told apart."""
    for secret in _CONCEALED:
        text = text.replace(secret, MASK)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def conceal(secret: str) -> None:
    """Mask this very text wherever it appears from now on in this process; nothing of it is left."""
    if len(secret) >= _LEAST:
        _CONCEALED[secret] = None


def mask(secret: str) -> str:
    """A secret's place holder."""
    return f"{secret[:_HEAD]}...{secret[-_TAIL:]}" if len(secret) >= _LONG else MASK


def _masked(group: int) -> Callable[[re.Match[str]], str]:
    def replace(match: re.Match[str]) -> str:
        secret = match[group]
        if secret.startswith("[REDACTED") or "..." in secret:
            return match[0]
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + mask(secret) + match[0][end:]

    return replace


_SENSITIVE = (
    r"(?:secret|password|passwd|passphrase|pwd|api[_-]?key|apikey|access[_-]?key|private[_-]?key|auth[_-]?key"
    r"|client[_-]?secret|access[_-]?token|refresh[_-]?token|auth[_-]?token|session[_-]?token|token|credentials?|authorization)"
)
_VENDOR = (
    r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{16,}"
    r"|npm_[A-Za-z0-9]{16,}|pypi-[A-Za-z0-9_-]{16,}|xai-[A-Za-z0-9]{16,}|tvly-[A-Za-z0-9-]{8,}|dop_v1_[a-f0-9]{16,}"
)
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"), "[REDACTED JWT]"),
    (re.compile(r"\b((?:bearer|basic)\s{1,4})([A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE), _masked(2)),
    (
        re.compile(
            r"\b((?:postgres(?:ql)?|mysql|mariadb|mongodb|redis|rediss|amqps?|mssql|oracle|clickhouse)(?:\+\w+)?://)[^\s'\"<>]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?<=://)([^\s/@:'\"]{1,256}):([^\s/@'\"]{1,256})(?=@)"), MASK),
    (re.compile(r"\b((?:host|hostaddr|user|dbname)\s?=\s?)([^\s;,'\"&]+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"(?<![A-Za-z0-9])({_VENDOR})"), _masked(1)),
    (
        re.compile(
            rf"([\w-]{{0,40}}{_SENSITIVE}\b[\"']?\s{{0,4}}[:=]\s{{0,4}}(?:bearer\s|basic\s)?[\"']?)([^\s\"',;&)}}\]]+)",
            re.IGNORECASE,
        ),
        _masked(2),
    ),
    (re.compile(r"([?&](?:sig|signature|key|code|state|x-amz-[\w-]{1,40})=)([^\s&#\"']+)", re.IGNORECASE), _masked(2)),
    (re.compile(r"(?:/home|/Users)/[^/\s'\":]+"), "~"),
    (re.compile(r"/root(?=[/\s'\":]|$)"), "~"),
    (re.compile(r"\b[A-Za-z]:\\Users\\[^\\\s'\"]+"), "~"),
)
