"""Where a model answers, and errors that name it without ever showing its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

import httpx

from ....protocol.errors import ConfigurationError, ModelError
from ....protocol.messages import clean_text

QUOTED_CHARS = 500
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared with, never bound
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[ -~\t]*")
_SECRET_HEADER_WORDS = ("auth", "key", "token", "secret", "cookie")

E = TypeVar("E", bound=ModelError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL, the model behind it, and how to speak of them.

    Attributes:
        provider: prefix of the model string.
        model: the provider's name of the model.
        url: base URL.
        key_variable: environment variable that holds the key, for advice in errors.
        secrets: texts that no error may show.
    """

    provider: str
    model: str
    url: httpx.URL
    key_variable: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def address(self) -> str:
        """The base URL without user, password and query."""
        return str(self.url.copy_with(userinfo=b"", query=None)).rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine."""
        return self.url.host in _LOOPBACK

    @property
    def account(self) -> str:
        """A digest that tells apart the accounts of one base URL."""
        return sha256("\n".join(self.secrets).encode()).hexdigest()

    def redact(self, text: str) -> str:
        """``text`` as valid Unicode without any secret."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return clean_text(text)

    def quote(self, text: str) -> str:
        """A bounded, redacted excerpt of what the provider said."""
        text = self.redact(" ".join(text[: 20 * QUOTED_CHARS].split()))
        return text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]}... [{len(text)} characters]"

    def error(self, cls: type[E], problem: str, **details: Any) -> E:
        """An error of class ``cls`` that names provider, model and address. None-valued details are left out."""
        given = {name: value for name, value in details.items() if value is not None}
        where = f"{self.provider}:{self.model} at {self.address}"
        return cls(f"{where}: {problem}", provider=self.provider, model=self.model, **given)


def parse_base_url(text: str, provider: str) -> httpx.URL:
    """``text`` as the base URL of ``provider``.

    Raises:
        ConfigurationError: it is not an http or https URL.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError(
            f"the base URL of {provider!r} must start with http:// or https:// and name a host, for example 'http://127.0.0.1:8000/v1'"
        )
    return url


def check_key(key: str | None, provider: str) -> str | None:
    """``key`` without surrounding space, None if empty.

    Raises:
        ConfigurationError: it cannot be sent in a header. The message does not show it.
    """
    key = (key or "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise ConfigurationError(f"the API key of {provider!r} holds what no key can hold: a space, a line break or the like")
    return key or None


def check_headers(headers: Mapping[str, str], provider: str) -> None:
    """Refuse headers that the HTTP client would refuse later, quoting them.

    Raises:
        ConfigurationError: names the header and does not show its value.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(str(value).strip(" \t")):
            raise ConfigurationError(f"the header {name!r} of {provider!r} cannot be sent: a line break, or not ASCII?")


def secret_values(key: str | None, url: httpx.URL, headers: Mapping[str, str]) -> tuple[str, ...]:
    """What errors must not show: the key, the URL's password and query values, and headers that look like credentials."""
    values = [key or "", url.password, *(value for _, value in url.params.multi_items())]
    values += [value for name, value in headers.items() if any(word in name.lower() for word in _SECRET_HEADER_WORDS)]
    return tuple(sorted({value for value in values if len(value) > 3}, key=len, reverse=True))
