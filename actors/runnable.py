"""What can be run: the calls that agents and patterns share, on top of whichever runtime is current."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeVar

from ..protocol.codec import to_json
from ..protocol.commands import InterruptsLoaded, LoadInterrupts, StartRun
from ..protocol.errors import CheckpointNotFound, NotPaused, PeerLost, RunLost
from ..protocol.events import Event, RunLostEvent
from ..protocol.results import SUCCESSFUL, AgentResult, RunOutcome, normalise_stop_reason
from ..protocol.storage import CheckpointInfo
from .definitions import Definition
from .event_stream import Callback, EventStream, Observer
from .run_handle import failed
from .runtime_port import RuntimePort, current_runtime
from .start_calls import OnBusy, StartCalls

T = TypeVar("T")
CUT_OFF = frozenset({"error", "cancelled", "suspended"})  # how a turn ends that can go on
CLOSING_SECONDS = 10.0  # for a run whose stream was closed to end in order; then it is abandoned


class Runnable(Definition, StartCalls):
    """Base of everything with ``run``, ``arun`` and ``run_sync``. One object may serve any number of concurrent runs."""

    callback_handler: Callable[[Any], Any] | None = None
    is_pattern = False

    def __init__(self) -> None:
        self._active: dict[str, tuple[RuntimePort, StartRun]] = {}
        self._streams: dict[str, EventStream] = {}
        self._paused: dict[str, RunOutcome] = {}
        self._children: set[Runnable] = set()
        self._armed = False
        self._packed = None

    def parts(self) -> list[Any]:
        """The objects whose code must travel with this definition."""
        return [type(self)]

    def inner(self) -> list[Any]:
        """What runs inside it: agents behind tools, members."""
        return []

    def stored_in(self, url: str) -> Runnable:
        """This, with that checkpointer where it has none of its own: what a pattern's durable run needs of its members."""
        return self

    def as_child_of(self, parent: Any) -> Any:
        """What is run when a tool of ``parent`` runs this."""
        return self

    async def arun(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        ephemeral: dict[str, Any] | None = None,
        model_kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        on_busy: OnBusy = "queue",
        full: bool = True,
        runtime: RuntimePort | None = None,
    ) -> AgentResult:
        """Run one turn to its end.

        Args:
            prompt: the user's message.
            thread_id: the conversation to continue; needs a checkpointer.
            metadata: JSON values for tools and hooks, kept with the thread.
            ephemeral: the same, but never stored, logged or returned.
            model_kwargs: settings for this run's model calls.
            timeout: seconds until the run is stopped with ``time_budget``.
            on_busy: when another run has the thread, in whatever process: wait for it (``queue``), raise ``ThreadBusy``
                (``reject``), or cancel it (``interrupt``).
            full: False leaves the conversation out of the result, which keeps large fleets light.
            runtime: where to run; default is the current runtime.

        Returns:
            The result. A run that stops for a limit or a cancel is a result too: see ``success`` and ``stop_reason``.

        Raises:
            UmbelError: what ended the run: a model error, ``RunFailed`` for an unexpected exception, ``RunLost`` when
                its supervisor died.
            Exception: what ``callback_handler`` raised; the run is cancelled.
        """
        runtime = runtime or current_runtime()
        request = self._request(runtime, prompt, thread_id, metadata, ephemeral, model_kwargs, timeout, on_busy)
        request, callback = self._observed(runtime, request if full else request.evolve(full=False))
        return self._concluded(await self._execute(runtime, request, callback), callback)

    async def run(
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
    ) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events; the arguments are those of :meth:`arun`.

        The last event is a ``TerminateEvent``; errors are raised after it. Closing the stream early stops the run. If
        the run's supervisor dies, a ``RunLostEvent`` says so and ``RunLost`` is raised.
        """
        runtime = runtime or current_runtime()
        request = self._request(runtime, prompt, thread_id, metadata, ephemeral, model_kwargs, timeout, on_busy)
        request = request.evolve(events=True, stream_tokens=stream_tokens, full=False)
        async with aclosing(self._events(runtime, request)) as events:
            async for event in events:
                yield event

    def run_sync(self, prompt: str, **options: Any) -> AgentResult:
        """:meth:`arun` for synchronous code; also works where an event loop is already running (notebooks, servers)."""
        runtime = options.pop("runtime", None) or current_runtime()
        return runtime.run_sync(self.arun(prompt, runtime=runtime, **options))

    def invoke(self, prompt: str, **options: Any) -> AgentResult:
        """Another name for :meth:`run_sync`."""
        return self.run_sync(prompt, **options)

    async def resume(self, answer: Any = None, *, stream_tokens: bool = False, **options: Any) -> AsyncGenerator[Event, None]:
        """Answer a paused run, and yield the events of what follows; the arguments are those of :meth:`aresume`."""
        runtime, request = self._resumption(answer, options)
        request = request.evolve(events=True, stream_tokens=stream_tokens, full=False)
        async with aclosing(self._events(runtime, request)) as events:
            async for event in events:
                yield event

    async def aresume(self, answer: Any = None, **options: Any) -> AgentResult:
        """Answer a paused run, from any process, and run on: to the end, or to the next pause.

        Args:
            answer: JSON value; it belongs to the only question there is, or to ``interrupt_id``.
            **options: ``thread_id`` of the paused conversation, or the ``result`` of a paused run without one (a run that
                this object saw pause needs neither); ``interrupt_id``; ``answers`` as a dict by interrupt id, to give
                several at once; ``perform_dangling=True`` performs waiting calls that got no answer; ``metadata``,
                ``ephemeral``, ``model_kwargs``, ``timeout``, ``on_busy`` and ``runtime`` as for :meth:`arun`.

        Raises:
            NotPaused: nothing waits there, the id is unknown, or several questions are open and none is named.
        """
        runtime, request = self._resumption(answer, options)
        request, callback = self._observed(runtime, request)
        return self._concluded(await self._execute(runtime, request, callback), callback)

    def resume_sync(self, answer: Any = None, **options: Any) -> AgentResult:
        """:meth:`aresume` for synchronous code."""
        runtime = options.setdefault("runtime", current_runtime())
        result: AgentResult = runtime.run_sync(self.aresume(answer, **options))
        return result

    async def continue_turn(self, thread_id: str, **options: Any) -> AgentResult:
        """Go on with a turn that was cut off (a crash, an error, a cancel) from its newest checkpoint. Counters go on.

        Raises:
            NotPaused: the thread is new, its turn is finished, or it waits for an answer.
        """
        runtime: RuntimePort = options.pop("runtime", None) or current_runtime()
        request = self._request(runtime, "", thread_id, **_rest(options))
        request, callback = self._observed(runtime, request.evolve(mode="continue"))
        return self._concluded(await self._execute(runtime, request, callback), callback)

    async def take_up(self, prompt: str, thread_id: str, **options: Any) -> AgentResult:
        """Go on with a thread's last turn if it was cut off; give its outcome, as it is stored, if it has come to an end.

        What a program does that was ended itself and does not know how far its runs had come: nothing is done twice, and
        nobody waits for the leases of runs that died with it. A new thread gets a turn for ``prompt``. One that waits for an
        answer gives ``interrupted``. The result has no conversation. ``options`` are those of :meth:`arun`.

        Raises:
            NotPaused: its last turn has come to an end without success; another one needs another thread.
            NoCheckpointer: there is no checkpointer.
            UmbelError: what ends the turn now, as for :meth:`continue_turn`.
        """
        runtime: RuntimePort = options.pop("runtime", None) or current_runtime()
        try:
            [newest] = await self.threads_in(runtime).history(thread_id, 1)
        except CheckpointNotFound:
            request = self._request(runtime, prompt, thread_id, **_rest(options))
        else:
            reason = newest.metadata.get("reason")
            if newest.metadata.get("finished") and normalise_stop_reason(reason) not in SUCCESSFUL:
                raise NotPaused(f"thread {thread_id!r}: its last turn is finished ({reason}); begin a new one elsewhere")
            request = self._request(runtime, "", thread_id, **_rest(options)).evolve(mode="continue", run_id=goes_on_as(newest))
        request, callback = self._observed(runtime, request.evolve(recover=True, full=False))
        return self._concluded(await self._execute(runtime, request, callback), callback)

    def pending_interrupts(self) -> list[dict[str, Any]]:
        """The questions of runs that this object saw pause: ``interrupt_id``, ``question``, ``tool_name``, ``thread_id``...

        Another process may have answered since: :meth:`pending_interrupts_of` asks the store.
        """
        return [
            {**asked, "thread_id": outcome.thread_id, "run_id": outcome.run_id}
            for outcome in self._paused.values()
            for asked in outcome.interrupts
        ]

    async def pending_interrupts_of(self, thread_id: str, *, runtime: RuntimePort | None = None) -> list[dict[str, Any]]:
        """The questions that a thread waits for, as its store has them, whoever saw it pause; empty when it is not paused.

        Raises:
            NoCheckpointer: there is no checkpointer (also a ``RuntimeError``).
            StoreUnavailable: the store cannot be reached.
        """
        message = LoadInterrupts(store=self.threads_in(runtime).store, thread_id=thread_id)
        loaded: InterruptsLoaded = await (runtime or current_runtime()).ask(message, thread_id)
        if not loaded.interrupts:
            self._paused.pop(thread_id, None)
        return [{**asked, "thread_id": thread_id, "run_id": loaded.run_id} for asked in loaded.interrupts]

    def cancel(self, thread_id: str | None = None) -> int:
        """Stop runs of this object: those of a thread, or all, with the subagents that it runs.

        Without a thread and with nothing running, the next run is cancelled as it starts.

        Returns:
            How many running runs were told to stop.
        """
        running = list(self._active.values())
        chosen = [(runtime, request) for runtime, request in running if thread_id in (None, request.thread_id)]
        for runtime, request in chosen:
            stream = self._streams.get(request.run_id)
            if stream is not None:
                stream.cut()
            runtime.cancel(request.run_id, request)
        children = list(self._children) if thread_id is None else []
        if thread_id is None and not chosen and not children:
            self._armed = True
        return len(chosen) + sum(child.cancel() for child in children)

    def cancel_run(self, run_id: str) -> bool:
        """Stop one run of this object; its caller gets a result with ``stop_reason`` ``cancelled``. False: it does not run."""
        runtime, request = self._active.get(run_id, (None, None))
        if runtime is None or request is None:
            return False
        runtime.cancel(run_id, request)
        return True

    def suspend(self, thread_ids: Collection[str] | None = None) -> int:
        """Ask durable runs of this object, those of some threads or all, to stop between two of their steps.

        Each ends with ``stop_reason="suspended"`` once the step that it is at is done: its state is saved, its thread is free,
        and :meth:`continue_turn`, in whatever process, goes on exactly there. Runs without a thread, or whose agent has no
        checkpointer, are not touched.

        Returns:
            How many running runs were asked.
        """
        chosen = [
            (runtime, request)
            for runtime, request in list(self._active.values())
            if request.thread_id is not None and (thread_ids is None or request.thread_id in thread_ids)
        ]
        for runtime, request in chosen if self.checkpointer is not None else ():
            runtime.cancel(request.run_id, request, suspend=True)
        return len(chosen) if self.checkpointer is not None else 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the next run will be cancelled as it starts."""
        return self._armed

    def _resumption(self, answer: Any, options: dict[str, Any]) -> tuple[RuntimePort, StartRun]:
        runtime: RuntimePort = options.pop("runtime", None) or current_runtime()
        thread_id, result = options.pop("thread_id", None), options.pop("result", None)
        answers = dict(options.pop("answers", None) or {})
        name, perform = options.pop("interrupt_id", None), options.pop("perform_dangling", False)
        if answer is not None or not (answers or perform):
            answers[name or ""] = answer
        state = None
        if thread_id is None:
            outcome = result.outcome if result is not None else self._only_paused()
            thread_id = outcome.thread_id
            if thread_id is None:
                state = outcome.state_json if outcome.state is None else to_json(outcome.state)
        request = self._request(runtime, "", thread_id, **_rest(options))
        return runtime, request.evolve(mode="resume", answers=answers, perform=perform, state=state)

    def _only_paused(self) -> RunOutcome:
        if len(self._paused) != 1:
            known = ", ".join(sorted(self._paused)) or "none"
            raise NotPaused(
                f"say what to resume, thread_id=... or result=...: this object saw {len(self._paused)} pause ({known})"
            )
        return next(iter(self._paused.values()))

    def _observed(self, runtime: RuntimePort, request: StartRun) -> tuple[StartRun, Callback | None]:
        """The request of a run whose events go to ``callback_handler``, if there is one."""
        if self.callback_handler is None:
            return request, None
        return request.evolve(events=True), Callback(self.callback_handler, lambda: runtime.cancel(request.run_id, request))

    def _concluded(self, outcome: RunOutcome, callback: Callback | None) -> AgentResult:
        """The result that an outcome means, or its error."""
        if callback is not None and callback.error is not None:
            raise callback.error
        if outcome.error is not None:
            raise failed(outcome)
        return self.result_of(outcome)

    def result_of(self, outcome: RunOutcome) -> AgentResult:
        """The caller's view of an outcome."""
        return AgentResult.from_outcome(outcome, self.output_schema)

    async def _events(self, runtime: RuntimePort, request: StartRun) -> AsyncGenerator[Event, None]:
        """Run a segment, event by event."""
        stream = EventStream()
        task = asyncio.ensure_future(self._execute(runtime, request, stream.push))
        task.add_done_callback(lambda _: stream.finish())
        self._streams[request.run_id] = stream
        try:
            async for event in stream:
                yield event
            try:
                outcome = await task
            except RunLost as error:
                yield RunLostEvent(run_id=request.run_id, seq=stream.seq + 1, timestamp=datetime.now(UTC), reason=error.message)
                raise
            if outcome.error is not None:
                raise failed(outcome)
        finally:
            if not task.done():
                stream.cut()
                runtime.cancel(request.run_id, request)
                await asyncio.wait({task}, timeout=CLOSING_SECONDS)  # the run saves its thread and tells its hooks (LOOP-14)
                task.cancel()
            del self._streams[request.run_id]
            await asyncio.gather(task, return_exceptions=True)

    async def _execute(self, runtime: RuntimePort, request: StartRun, on_event: Observer | None) -> RunOutcome:
        self._active[request.run_id] = (runtime, request)
        try:
            if self._armed:
                self._armed = False
                request = request.evolve(cancelled=True)
            outcome = await runtime.execute(self, request, on_event)
            if outcome.interrupts or self._paused:
                self._remember(outcome)
            return outcome
        except PeerLost as error:
            kept = (
                "Nothing durable was kept; run it again"
                if request.thread_id is None
                else f"What its thread {request.thread_id!r} holds is kept: continue_turn goes on with it"
            )
            message = f"run {request.run_id} of {self.title} was lost: {error.message}. {kept}"
            raise RunLost(message, run_id=request.run_id) from error
        finally:
            del self._active[request.run_id]

    def _remember(self, outcome: RunOutcome) -> None:
        if outcome.error is not None and outcome.error["code"] == NotPaused.code:
            return  # refused: nothing has happened, and what waits still waits
        key = outcome.thread_id or outcome.run_id
        if outcome.interrupts:
            self._paused[key] = outcome
        else:
            self._paused.pop(key, None)


def goes_on_as(newest: CheckpointInfo) -> str:
    """The id of the segment that goes on from a thread's newest checkpoint, the same for whoever asks.

    That of the segment that wrote it, which is recovered, unless it says that it was cut off. So a run is known again.
    """
    segment, ending = newest.metadata.get("segment"), newest.metadata.get("ending")
    if segment and (ending is None or ending["reason"] not in CUT_OFF):
        return str(segment)
    return blake2b(newest.checkpoint_id.encode(), digest_size=16).hexdigest()


def _rest(options: dict[str, Any]) -> dict[str, Any]:
    """What is left of the options of a resume or a continuation."""
    known = ("metadata", "ephemeral", "model_kwargs", "timeout", "on_busy")
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(f"unknown arguments: {', '.join(unknown)}")
    return {name: options.get(name) for name in known}


def in_own_thread(job: Callable[[], T]) -> T:
    """Run ``job`` in a thread of its own and wait: for synchronous calls made while an event loop runs in this thread."""
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="umbel-sync") as pool:
        return pool.submit(job).result()
