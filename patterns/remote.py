"""``RemoteMember``: a member that lives outside the runtime. Source: OURS-24.

class Weather(RemoteMember):
    async def ask(self, prompt, *, metadata):
        async with httpx.AsyncClient() as client:
            answer = await client.post(self.url, json={"question": prompt}, timeout=None)
        return answer.raise_for_status().json()["answer"]

report = sequential(Weather("https://weather.example", timeout=20, retries=2), writer)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..actors.tools.context import ToolContext
from ..actors.tools.decorator import Tool
from ..protocol.codec import plain
from ..protocol.errors import ConfigurationError, NotStorable, from_wire
from ..protocol.patterns import Ending
from .function import answer_of
from .pattern import Pattern

if TYPE_CHECKING:
    from ..actors.supervisor.stage import Stage

ASK = "ask"
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


class RemoteMember(Pattern):
    """Something at a URL that answers prompts: a member of patterns, and runnable by itself.

    A subclass says how it is asked (:meth:`ask`); that runs in a tool executor, in whatever process, and opens its
    connections there. So the definition holds the URL and settings, never a client.

    Args:
        url: where it is.
        options: JSON values for :meth:`ask`.
        name: in events, results and errors; default is the host.
        timeout: seconds per attempt; None is no limit.
        retries: further attempts, with back-off, after an exception of :meth:`ask`; after a timeout or the death of the
            executor only if it is ``idempotent``.
        idempotent: to ask twice is to ask once. If not, a durable run that a crash cut off while it was asked fails with
            ``outcome_unknown`` instead of asking again.
        placement: which executors ask.
        max_asking: prompts at once from one executor process; None is no limit.
        **settings: of :class:`Pattern`.

    Raises:
        ConfigurationError: the URL has no scheme or host, an option is not JSON, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
        timeout: float | None = None,
        retries: int = 0,
        idempotent: bool = False,
        placement: Any = None,
        max_asking: int | None = None,
        **settings: Any,
    ) -> None:
        parts = urlsplit(url)
        if not parts.scheme or not parts.hostname:
            raise ConfigurationError(f"{type(self).__name__}: {url!r} is no URL; write https://host/path")
        self.url = url
        try:
            self.options: dict[str, Any] = plain(dict(options or {}), f"options of {type(self).__name__}")
        except NotStorable as error:
            raise ConfigurationError(f"{error}; give it settings, and open connections in ask()") from None
        self.idempotent = idempotent
        asking = Tool(
            name=ASK,
            description=f"Asks {parts.hostname}.",
            function=_Asking(self),
            timeout=timeout,
            retries=retries,
            idempotent=idempotent,
            placement=placement,
            max_concurrency=max_asking,
        )
        super().__init__(functions=[asking], name=name or _ODD.sub("_", parts.hostname), **settings)

    async def ask(self, prompt: str, *, metadata: Mapping[str, Any]) -> Any:
        """Ask it once.

        Args:
            prompt: the task.
            metadata: of the run.

        Returns:
            Its answer: a text, a JSON value, or the result of a run (an object with ``success`` and ``message`` or ``text``),
            whose failure is the member's.

        Raises:
            Exception: what keeps it from answering; it is tried again as ``retries`` says.
        """
        raise NotImplementedError

    async def conduct(self, stage: Stage) -> Ending:
        result = await stage.function(ASK, {"prompt": stage.prompt}, key=ASK, member=self.title, idempotent=self.idempotent)
        if result.error is not None:
            return Ending.failed(from_wire(result.error), result.stop_reason)
        if not result.success:
            return Ending(stop_reason=result.stop_reason)
        value = None if isinstance(result.value, str) else result.value
        return Ending(outputs=(result.value,), final_output=result.text, value=value)


class _Asking:
    """The body of the function that asks."""

    def __init__(self, member: RemoteMember) -> None:
        self.__module__ = type(member).__module__  # whose code must travel
        self._member = member

    async def __call__(self, prompt: str, ctx: ToolContext) -> Any:
        """Ask.

        Args:
            prompt: the task.
            ctx: of the call.
        """
        return answer_of(await self._member.ask(prompt, metadata=dict(ctx.metadata)))


__all__ = ["RemoteMember"]
