"""The agent actor: makes model calls for any number of runs, over pooled connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, finalize

from ...protocol.commands import ForgetRuns, ThinkReply, ThinkRequest
from ...protocol.errors import MalformedResponse, ModelError
from ...protocol.events import ModelRetryEvent
from ...protocol.messages import Message, ModelResponse
from ..definitions import Definitions
from ..frames import Caller
from ..sharing import sharing
from .conversation.manager import manage
from .models.base import Capabilities, FormatOptional, ModelProtocol, aclose, collect
from .models.registry import resolve_model
from .models.retry import RetryingModel, RetryNotice, RetryPolicy


class AgentActor:
    """Answers :class:`ThinkRequest`. Belongs to the event loop that first uses it.

    It keeps each run's conversation, so that only new messages travel; one it does not hold (any more) is asked for.

    Args:
        definitions: the agents known here.
        conversations: how many to keep.
    """

    def __init__(self, definitions: Definitions, conversations: int = 20_000) -> None:
        self._definitions = definitions
        self._limit = conversations
        self._conversations: OrderedDict[str, list[Message]] = OrderedDict()
        self._policies: WeakKeyDictionary[Any, RetryPolicy] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # models that were given as text

    async def think(self, request: ThinkRequest, caller: Caller) -> ThinkReply:
        """One model call, retried by the agent's policy.

        Raises:
            ModelError: the provider refused, failed for good, or answered nonsense.
            ConfigurationError: the model's name or key is wrong.
        """
        agent = self._definitions.get(request.definition)
        if request.exact:
            messages = list(request.messages)
        else:
            conversation = self._conversation(request, agent.system_message)
            if conversation is None:
                return ThinkReply.trusted(need_conversation=True)
            whole = len(conversation) <= agent.sent_whole
            messages = list(conversation) if whole else await manage(agent.manager, conversation)
        model, policy = self._model(agent, request.role)
        settings = {**agent.model_settings, **request.model_kwargs}
        tools = agent.schemas(request.activated) if request.use_tools else None
        retrying: ModelProtocol = RetryingModel(model, policy, on_retry=partial(_tell, caller))
        if "response_format" in settings:
            if request.exact or Capabilities.of(model).supports_response_format:
                retrying = FormatOptional(retrying)
            else:
                del settings["response_format"]  # an ordinary step can do without; a repair asks for it anyway
        if request.stream:
            called: Coroutine[Any, Any, ModelResponse] = collect(
                _forward(retrying.stream(messages, tools or None, **settings), caller)
            )
        else:
            called = retrying.complete(messages, tools or None, **settings)
        share = request.share
        del request, settings, messages  # thousands of calls wait here
        if share is None:
            response = await called
        else:
            with sharing(share):
                response = await called
        if not isinstance(response, ModelResponse):
            raise MalformedResponse(f"{type(model).__name__}.complete returned {type(response).__name__}, not a ModelResponse")
        return ThinkReply.trusted(response=response)

    async def forget(self, message: ForgetRuns, caller: Caller) -> None:
        """Drop the conversations of runs that are over."""
        for run_id in message.run_ids:
            self._conversations.pop(run_id, None)

    async def close(self) -> None:
        """Close every model's connections."""
        given = [model for agent in self._policies for model in agent.models()]
        for model in (*given, *(model for models in self._opened.values() for model in models.values())):
            await aclose(model)
        self._policies.clear()
        self._opened.clear()

    def _conversation(self, request: ThinkRequest, system: Message | None) -> list[Message] | None:
        known = self._conversations.get(request.run_id) if request.base else None
        if request.base and (known is None or len(known) != request.base):
            return None
        if known is None:
            self._conversations[request.run_id] = known = list(request.messages)
            if system is not None and known[:1] == [system]:
                known[0] = system  # one for all conversations
            if len(self._conversations) > self._limit:
                self._conversations.popitem(last=False)
        else:
            known.extend(request.messages)
        return known

    def _model(self, agent: Any, role: str) -> tuple[Any, RetryPolicy]:
        config, model = agent.config, agent.model_of(role)
        if isinstance(model, str):
            model = self._open(agent, model)
        if not hasattr(model, "complete"):
            raise ModelError(f"{type(model).__name__} is not a model: it has no complete()")
        policy = self._policies.get(agent)
        if policy is None:
            policy = self._policies[agent] = RetryPolicy.of(config.model_retry)
        return model, policy

    def _open(self, agent: Any, name: str) -> Any:
        opened = self._opened.setdefault(agent, {})
        if name not in opened:
            settings = agent.config.model_kwargs if name == agent.config.model else {}
            opened[name] = model = resolve_model(name, agent.providers, **settings)
            finalize(agent, _close_soon, asyncio.get_running_loop(), model).atexit = False
        return opened[name]


def _close_soon(loop: asyncio.AbstractEventLoop, model: Any) -> None:
    """Close the connections of a model whose agent nobody has any more."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, and they with it
        loop.call_soon_threadsafe(lambda: asyncio.ensure_future(aclose(model), loop=loop))


async def _forward(chunks: Any, caller: Caller) -> Any:
    async for chunk in chunks:
        caller.send(chunk)
        await caller.flow()
        yield chunk


def _tell(caller: Caller, notice: RetryNotice) -> None:
    caller.send(ModelRetryEvent(**notice._asdict()))
