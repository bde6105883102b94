"""The calls that begin a run without waiting for it: what everything runnable has for runs that outlive their caller."""

from __future__ import annotations

from typing import Any, Literal, get_args

from ..protocol.commands import StartRun
from ..protocol.errors import ConfigurationError
from .charter import take_charter
from .run_handle import RunHandle, attach
from .runtime_port import RuntimePort, current_runtime
from .sharing import current_share
from .thread_calls import ThreadCalls

OnBusy = Literal["queue", "reject", "interrupt"]
BUSY = get_args(OnBusy)


class StartCalls(ThreadCalls):
    """Begin runs and come back to them."""

    output_schema: Any = None
    _armed = False

    async def start(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        ephemeral: dict[str, Any] | None = None,
        model_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        on_busy: OnBusy = "queue",
        stream_tokens: bool = False,
        runtime: RuntimePort | None = None,
    ) -> RunHandle:
        """Begin a turn that goes on whether or not this program stays; the arguments are those of :meth:`Runnable.arun`.

        On a detached runtime the run outlives its driver: ``umbel attach RUN`` and :func:`umbel.attach` read on.
        :class:`RunHandle` says what else it survives. ``callback_handler`` is not called, ``agent.cancel()`` does not reach it.

        Raises:
            ThreadBusy: ``on_busy="reject"``, and a run that this runtime knows has the thread.
        """
        runtime = runtime or current_runtime()
        request = self._request(runtime, prompt, thread_id, metadata, ephemeral, model_kwargs, timeout, on_busy)
        cancelled, self._armed = self._armed, False
        request = request.evolve(events=True, stream_tokens=stream_tokens, cancelled=cancelled)
        return RunHandle(await runtime.begin(self, request), runtime, runnable=self)

    def start_sync(self, prompt: str, **options: Any) -> RunHandle:
        """:meth:`start` for synchronous code."""
        runtime = options.pop("runtime", None) or current_runtime()
        return runtime.run_sync(self.start(prompt, runtime=runtime, **options))

    async def attach(
        self,
        run_id: str,
        *,
        after_seq: int | None = -1,
        thread_id: str | None = None,
        runtime: RuntimePort | None = None,
    ) -> RunHandle:
        """A handle on a run of this agent; durable ones that only the store knows are found, too: :func:`umbel.attach`."""
        return await attach(run_id, after_seq=after_seq, agent=self, thread_id=thread_id, runtime=runtime)

    def attach_sync(self, run_id: str, *, runtime: RuntimePort | None = None, **options: Any) -> RunHandle:
        """:meth:`attach` for synchronous code."""
        runtime = runtime or current_runtime()
        return runtime.run_sync(self.attach(run_id, runtime=runtime, **options))

    def _request(
        self,
        runtime: RuntimePort,
        prompt: str,
        thread_id: str | None,
        metadata: dict[str, Any] | None,
        ephemeral: dict[str, Any] | None,
        model_kwargs: dict[str, Any] | None,
        timeout: float | None,
        on_busy: OnBusy | None = None,
    ) -> StartRun:
        prompt, values = self.input_of(prompt)
        if on_busy not in (None, *BUSY):
            raise ConfigurationError(f"on_busy={on_busy!r} is not known: use {', '.join(map(repr, BUSY))}")
        charter = take_charter()
        return StartRun(
            run_id=charter.run_id,
            definition=runtime.register(self),
            prompt=prompt,
            thread_id=thread_id,
            metadata=metadata or {},
            ephemeral=ephemeral or {},
            model_kwargs=model_kwargs or {},
            timeout=timeout,
            on_busy=on_busy or "queue",
            values=values,
            lease_tokens=charter.lease_tokens,
            lease_cost_usd=charter.lease_cost_usd,
            share=current_share(),
        )

    def input_of(self, prompt: Any) -> tuple[str, dict[str, Any] | None]:
        """What a caller gives, as (text, structured input)."""
        return prompt, None
