"""Several accounts of one endpoint as one model: each request goes to the key that is free soonest."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from ....protocol.errors import AuthenticationFailed, ConfigurationError, ModelError, RateLimited
from ....protocol.messages import Message, ModelChunk, ModelResponse
from ...secrets import REFERENCES, find_secret
from ..timing import SYSTEM, Timing
from .base import aclose
from .http_model import HttpModel

logger = logging.getLogger("umbel.models")
REST_SECONDS = 300.0
"""For a key that was refused; then it is tried again."""


class KeyPool:
    """The same model with several API keys, each with limits of its own.

    A key that the endpoint refuses (401, 403) rests, and a line in the log says which one it is by its place; one that
    meets a rate limit is left for another key that is free. Once a piece of a stream was handed on, its failure is raised.

    Args:
        models: one for each key, otherwise alike.
        timing: the clock.
    """

    stateful = False

    def __init__(self, models: Sequence[HttpModel[Any]], *, timing: Timing = SYSTEM) -> None:
        if not models:
            raise ConfigurationError("api_keys needs at least one key")
        self._models = list(models)
        self._timing = timing
        self._rests_until = [0.0] * len(self._models)
        self._turn = 0

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        return self._models[0].name

    @property
    def provider(self) -> str:
        """The provider's prefix."""
        return self._models[0].provider

    @property
    def max_retries(self) -> int | None:
        """Retries that this model wants."""
        return self._models[0].max_retries

    @property
    def endpoint(self) -> str:
        """The address, and digests of the accounts."""
        accounts = ",".join(model.endpoint.rpartition("#")[2] for model in self._models)
        return f"{self._models[0].endpoint.rpartition('#')[0]}#{accounts}"

    @property
    def native_tools(self) -> bool:
        """Whether tool calls come as structured data."""
        return self._models[0].native_tools

    @property
    def supports_response_format(self) -> bool:
        """Whether a ``response_format`` is understood."""
        return self._models[0].supports_response_format

    @property
    def family(self) -> str | None:
        """Whose markup this model may leak."""
        return self._models[0].family

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The whole reply, by the key that is free soonest."""
        failure: ModelError | None = None
        for place in self._places():
            try:
                return await self._models[place].complete(messages, tools, **kwargs)
            except (AuthenticationFailed, RateLimited) as error:
                failure = self._judge(place, error)
        raise failure or self._exhausted()

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncGenerator[ModelChunk, None]:
        """The reply in pieces, by the key that is free soonest."""
        failure: ModelError | None = None
        for place in self._places():
            forwarded = False
            try:
                async with aclosing(self._models[place].stream(messages, tools, **kwargs)) as chunks:
                    async for chunk in chunks:
                        forwarded = True
                        yield chunk
                return
            except (AuthenticationFailed, RateLimited) as error:
                if forwarded:
                    raise
                failure = self._judge(place, error)
        raise failure or self._exhausted()

    async def aclose(self) -> None:
        """Release the connections of every key."""
        for model in self._models:
            await aclose(model)

    def __repr__(self) -> str:
        return f"KeyPool({self._models[0]!r}, keys={len(self._models)})"

    def _places(self) -> Iterator[int]:
        """The keys to try; asked for one by one, the one that is free soonest first."""
        tried: set[int] = set()
        self._turn += 1
        while len(tried) < len(self._models):
            now = self._timing.monotonic()
            left = [place for place in range(len(self._models)) if place not in tried and self._rests_until[place] <= now]
            if not left:
                return
            best = min(left, key=lambda place: (self._models[place].wait_for(), (place - self._turn) % len(self._models)))
            if tried and self._models[best].wait_for() > 0 and not any(self._rests_until[place] > now for place in tried):
                return  # all of them are limited: whoever retries waits, and asks again for the best
            tried.add(best)
            yield best

    def _judge(self, place: int, error: ModelError) -> ModelError:
        if isinstance(error, AuthenticationFailed):
            self._rests_until[place] = self._timing.monotonic() + REST_SECONDS
            status = error.status_code or "refused"
            where = f"{place + 1} of {len(self._models)} for {self._models[0].endpoint.rpartition('#')[0]}"
            logger.warning("API key %s is refused (%s): it rests for %.0f s", where, status, REST_SECONDS)
        return error

    def _exhausted(self) -> AuthenticationFailed:
        wait = min(self._rests_until) - self._timing.monotonic()
        return AuthenticationFailed(
            f"{self.provider}:{self.name}: each of {len(self._models)} API keys was refused; the next try is in {wait:.0f} s",
            provider=self.provider,
            model=self.name,
        )


def keys_of(given: Any) -> list[str]:
    """The keys that a list of keys or references (``env:NAME``, ``file:/path``) means, in this process.

    Raises:
        ConfigurationError: no list of texts, none at all, or a reference leads nowhere.
    """
    if isinstance(given, str) or not isinstance(given, list | tuple) or not given:
        raise ConfigurationError(
            "api_keys must be a list of keys, or of references: ['env:OPENAI_KEY_A', 'file:/run/secrets/b']"
        )
    counted = zip(itertools.count(1), given, strict=False)
    return [_resolved(f"api_keys[{number}]", key) for number, key in counted]


def _resolved(name: str, key: Any) -> str:
    if not isinstance(key, str) or not key.strip():
        raise ConfigurationError(f"{name} is no text")
    if not key.startswith(("env:", "file:")):
        return key
    found = find_secret(name, {**os.environ, REFERENCES: json.dumps({name: key})})
    if found is None:
        raise ConfigurationError(f"{name}: nothing is found where its reference leads")
    return found
