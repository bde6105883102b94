"""Several models as one: when one fails, the next one answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ....protocol.errors import AuthenticationFailed, ConfigurationError, MalformedResponse, ModelError, Overloaded
from ....protocol.messages import Message, ModelChunk, ModelResponse
from ..timing import SYSTEM, Timing
from .base import ModelProtocol, aclose
from .breaker import Breaker, shared_breaker
from .gate import wait_until
from .registry import ModelFactory, registered_factories, resolve_model

Candidate = str | tuple[str, Mapping[str, Any]] | ModelProtocol


class FailoverModel:
    """Asks the first model, and the next one when that fails through no fault of the request.

    Such failures are everything that a retry may cure, and refused credentials; a bad request or one that is too long
    would fail anywhere and is raised. A model that failed ``failures`` times in a row rests: it is skipped for
    ``rest_seconds``, then one request tries it. What is known of an endpoint (address, account and model) is shared by
    the process. Rate limits are not waited for while another model is free. Once a piece of a stream was handed on,
    its failure is raised.

    When every model failed, the failure that may pass soonest is raised, so that ``RetryingModel`` waits for it.

    Args:
        models: in order of preference: ``"provider:name"``, the same with its settings as a pair, or a model object.
            Texts are resolved where the model is used, so keys are read in the actor.
        failures: in a row, until a model rests.
        rest_seconds: how long.
        timing: the clock; one that is not the system's goes with breakers of its own.

    Raises:
        ConfigurationError: no models, or something that is none.
    """

    stateful = False

    def __init__(
        self, models: Sequence[Candidate], *, failures: int = 3, rest_seconds: float = 30.0, timing: Timing = SYSTEM
    ) -> None:
        if isinstance(models, str) or not models:
            raise ConfigurationError("FailoverModel needs a list of models, for example ['openai:gpt-4o', 'anthropic:claude']")
        if failures < 1 or rest_seconds < 0:
            raise ConfigurationError("failures must be 1 or more, rest_seconds 0 or more")
        self._candidates = [_checked(candidate) for candidate in models]
        self._failures = failures
        self._rest = rest_seconds
        self._timing = timing
        self._providers: dict[str, ModelFactory] = {}
        self._opened: dict[int, ModelProtocol] = {}
        self._own_breakers: dict[int, Breaker] = {}

    async def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> ModelResponse:
        """The reply of the first model that gives one; ``model`` names it."""
        failed: list[Exception] = []
        for place in self._admitted():
            try:
                with self._not_waiting():
                    response = await self._model(place).complete(messages, tools, **kwargs)
            except BaseException as error:  # noqa: BLE001 - judged: what no other model can help with is raised again
                failed.append(self._judge(place, error))
                continue
            self._breaker(place).succeed()
            return response if response.model else response.evolve(model=self._title(place))
        raise self._failure(failed)

    async def stream(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> AsyncGenerator[ModelChunk, None]:
        """The reply in pieces, of the first model that gives one; the last piece names it."""
        failed: list[Exception] = []
        for place in self._admitted():
            chunks = self._model(place).stream(messages, tools, **kwargs)
            try:
                with self._not_waiting():
                    first = await anext(chunks, None)
                if first is None:
                    raise MalformedResponse(f"{self._title(place)}: the stream is empty")
            except BaseException as error:  # noqa: BLE001 - judged: what no other model can help with is raised again
                await aclose(chunks)
                failed.append(self._judge(place, error))
                continue
            async with aclosing(self._named(place, first, chunks)) as named:
                async for chunk in named:
                    yield chunk
            return
        raise self._failure(failed)

    async def aclose(self) -> None:
        """Release the connections of every model."""
        for model in self._opened.values():
            await aclose(model)

    def parts(self) -> list[Any]:
        """What travels with a definition that holds this model, so that code no worker can import goes along."""
        models = [type(candidate) for candidate in self._candidates if not isinstance(candidate, str | tuple)]
        return [*models, *self._factories().values()]

    @property
    def native_tools(self) -> bool:
        """Whether every model has structured tool calls."""
        return all(getattr(model, "native_tools", True) for model in self._models())

    @property
    def supports_response_format(self) -> bool:
        """Whether every model takes a ``response_format``."""
        return all(getattr(model, "supports_response_format", False) for model in self._models())

    @property
    def family(self) -> str | None:
        """The family of the first model that has one."""
        families = (getattr(model, "family", None) for model in self._models())
        return next((family for family in families if family), None)

    def __repr__(self) -> str:
        return f"FailoverModel({[self._title(place) for place in range(len(self._candidates))]})"

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"_opened": {}, "_own_breakers": {}, "_providers": self._factories()}
        return self.__dict__ | fresh

    def _factories(self) -> dict[str, ModelFactory]:
        return self._providers | registered_factories(map(_spec, self._candidates))

    def _models(self) -> list[ModelProtocol]:
        return [self._model(place) for place in range(len(self._candidates))]

    def _model(self, place: int) -> ModelProtocol:
        if place not in self._opened:
            candidate = self._candidates[place]
            if isinstance(candidate, str | tuple):
                spec, settings = (candidate, {}) if isinstance(candidate, str) else candidate
                candidate = resolve_model(spec, self._providers, **settings)
            self._opened[place] = candidate
        return self._opened[place]

    def _title(self, place: int) -> str:
        candidate = self._candidates[place]
        return _spec(candidate) or str(getattr(candidate, "name", None) or type(candidate).__name__)

    def _breaker(self, place: int) -> Breaker:
        model = self._model(place)
        endpoint = getattr(model, "endpoint", None)
        if endpoint is None or self._timing is not SYSTEM:
            return self._own_breakers.setdefault(place, Breaker())
        return shared_breaker(f"{endpoint} {getattr(model, 'name', '')}")

    def _admitted(self) -> Iterator[int]:
        """The places to try, those that rest left out; asked for one by one, as each admission must be used."""
        for place in range(len(self._candidates)):
            if self._breaker(place).admit(self._timing.monotonic(), self._rest):
                yield place

    async def _named(
        self, place: int, first: ModelChunk, chunks: AsyncIterator[ModelChunk]
    ) -> AsyncGenerator[ModelChunk, None]:
        """A stream from its first piece on, with the model's name in the last one. Its failure is raised."""
        chunk: ModelChunk | None = first
        is_named = False
        try:
            while chunk is not None:
                is_named = is_named or chunk.model is not None
                yield chunk if is_named or not chunk.done else chunk.evolve(model=self._title(place))
                chunk = await anext(chunks, None)
            self._breaker(place).succeed()
        except BaseException as error:  # also a cancellation: it says something of the endpoint; raised again
            self._judge(place, error)
            raise
        finally:
            await aclose(chunks)

    def _judge(self, place: int, error: BaseException) -> Exception:
        """Tell the breaker how a call failed. Returns a failure of the endpoint, and raises any other again."""
        breaker = self._breaker(place)
        if not isinstance(error, Exception) or _is_the_requests(error):
            breaker.abandon()  # cancelled, or nothing that the endpoint did wrong
            raise error
        if isinstance(error, ModelError) and error.details.get("sent") is False:
            breaker.abandon()  # held back by a known rate limit: the endpoint was not asked
        else:
            breaker.fail(self._timing.monotonic(), self._failures)
        return error

    def _not_waiting(self) -> wait_until:
        """Inside, no rate limit is waited for: the next model may be free, and waiting is for whoever retries."""
        return wait_until(self._timing.monotonic())

    def _failure(self, failed: list[Exception]) -> Exception:
        if failed:
            curable = [error for error in failed if getattr(error, "retryable", True)]
            return min(curable or failed[-1:], key=lambda error: getattr(error, "retry_after", None) or 0.0)
        now = self._timing.monotonic()
        wait = min(self._breaker(place).reopens(now, self._rest) for place in range(len(self._candidates)))
        return Overloaded(f"{self!r}: every model failed lately and rests for {wait:.1f} s more", retry_after=wait, sent=False)


def _checked(candidate: Any) -> Candidate:
    if isinstance(candidate, str) or hasattr(candidate, "complete"):
        return candidate  # type: ignore[no-any-return]
    if (
        isinstance(candidate, tuple)
        and len(candidate) == 2
        and isinstance(candidate[0], str)
        and isinstance(candidate[1], Mapping)
    ):
        return candidate[0], dict(candidate[1])
    raise ConfigurationError(
        f"{type(candidate).__name__} is not a model: give 'provider:name', ('provider:name', settings) or a model"
    )


def _spec(candidate: Candidate) -> str:
    if isinstance(candidate, str):
        return candidate
    return candidate[0] if isinstance(candidate, tuple) else ""


def _is_the_requests(error: Exception) -> bool:
    """Whether the request would fail anywhere."""
    if isinstance(error, ModelError):
        return not (error.retryable or isinstance(error, AuthenticationFailed))
    return not isinstance(error, TimeoutError | ConnectionError)
