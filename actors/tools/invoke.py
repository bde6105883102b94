"""One tool call, from the model's arguments to a result. It never fails the run (TOOL-25).

Ordinary exceptions, and ``SystemExit``, become error results, a question to a person becomes :class:`Asked`. Only a
cancellation of the awaiting task propagates.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from ...protocol.errors import InvalidArguments, ToolError, ToolTimeout, UmbelError
from ...protocol.messages import InterruptRequest, ToolCall, ToolResult, clean_text
from .context import ToolContext, enter, leave
from .decorator import Tool
from .interrupt import Interrupt, request_in
from .output import ToolOutput, error_text, text_of

Attempt = Callable[[Tool, ToolCall, ToolContext], Awaitable[ToolResult]]

REPORTED = "tool_reported"
INTERRUPTED = "interrupted"
QUOTED = 300
_RAISED = frozenset({ToolError.code})
_UNCERTAIN = frozenset({"tool_timeout", "tool_crashed"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LINGER = 1.0
_stragglers: set[asyncio.Task[Any]] = set()


class Asked(ToolResult):
    """Instead of a result: the body asked a person and ended. It never leaves the executor (see ``ToolReply.interrupt``)."""

    interrupt: InterruptRequest


async def invoke(tool: Tool, call: ToolCall, context: ToolContext, attempt: Attempt | None = None) -> ToolResult:
    """Run ``call``.

    Args:
        tool: what to run.
        call: the call with the arguments as the model gave them.
        context: what the body may know.
        attempt: where a body runs that is not simply awaited here (a thread, a process, another loop); by default
            sync bodies go to a thread.

    Returns:
        The result, or :class:`Asked`; failures are results with ``error`` and ``code``. An attempt that raised is repeated
        ``tool.retries`` times, one whose outcome is unknown (timeout, crash) only if the tool is idempotent.
    """
    if call.malformed_arguments is not None:
        return malformed(call)
    if tool.direct and attempt is None:
        return await run_async(tool, call, context)
    attempt = attempt or (on_loop if tool.is_async else in_thread)
    repeated = _RAISED | _UNCERTAIN if tool.idempotent else _RAISED
    for number in range(tool.retries):
        result = await attempt(tool, call, replace(context, asked=0))
        if result.code not in repeated:
            return result
        await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number) * random.uniform(0.5, 1.0))
    return await attempt(tool, call, context)


async def run_async(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    """Validate, await the body in this task, format. The hot path: no task, no timer."""
    started = perf_counter()
    token = enter(context)
    try:
        args, kwargs = arguments(tool, call, context)
        value = await tool.function(*args, **kwargs)  # type: ignore[misc]
        return succeeded(call, value, started)
    except asyncio.CancelledError as error:
        if _being_cancelled():
            raise
        return failed(call, error, started)
    except (Interrupt, BaseExceptionGroup) as error:
        return asked(call, error, started)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a body raises is that call's error result
        return failed(call, error, started)
    finally:
        leave(token)


def run_sync(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    """The same for a sync body, in the calling thread. A returned awaitable is run to its end."""
    started = perf_counter()
    token = enter(context)
    try:
        args, kwargs = arguments(tool, call, context)
        value = tool.function(*args, **kwargs)  # type: ignore[misc]
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
        return succeeded(call, value, started)
    except BaseException as error:  # noqa: BLE001 - as above, and never Ctrl-C, which only a main thread gets
        return asked(call, error, started)
    finally:
        leave(token)


async def on_loop(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    """An async body on this loop, under the tool's timeout. A body that ignores its cancellation is left behind."""
    if tool.timeout is None:
        return await run_async(tool, call, context)
    task = asyncio.ensure_future(run_async(tool, call, context))
    try:
        await asyncio.wait({task}, timeout=tool.timeout)
    finally:
        expired = not task.done()
        if expired:
            task.cancel()
            _stragglers.add(task)
            task.add_done_callback(_stragglers.discard)
    if not expired:
        return task.result()
    await asyncio.wait({task}, timeout=_LINGER)
    return timed_out(tool, call)


async def in_thread(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    """A sync body in the loop's default thread pool; executors bring threads of their own."""
    if tool.needs_process:
        return failed(call, ToolError(f"tool {tool.name!r} needs a worker process; run it through a tool executor"))
    return await asyncio.to_thread(run_sync, tool, call, context)


def arguments(tool: Tool, call: ToolCall, context: ToolContext) -> tuple[list[Any], dict[str, Any]]:
    """The body's arguments, validated, with the context where it is asked for.

    Raises:
        InvalidArguments: the model's arguments do not fit.
        ToolError: the tool has no body here.
    """
    if tool.function is None:
        raise ToolError(f"tool {tool.name!r} is an agent; its call belongs to the supervisor")
    signature = tool.signature
    args, kwargs = signature.bind(signature.validate(call.arguments))
    for name in signature.injected:
        kwargs[name] = context
    return args, kwargs


def succeeded(call: ToolCall, value: Any, started: float) -> ToolResult:
    """A body's return value as a result."""
    text = text_of(value)
    spent = (perf_counter() - started) * 1e3
    if not isinstance(value, ToolOutput):
        return ToolResult.trusted(tool_call_id=call.id, name=call.name, content=clean_text(text), duration_ms=spent)
    failure = {"error": text or "The tool reported an error.", "code": REPORTED} if value.is_error else {"content": text}
    return ToolResult(
        tool_call_id=call.id,
        name=call.name,
        duration_ms=spent,
        structured_content=value.structured_content,
        content_blocks=value.content_blocks,
        **failure,
    )


def failed(call: ToolCall, error: BaseException, started: float | None = None) -> ToolResult:
    """An exception as an error result: our own messages whole, foreign ones as ``Type: first line``, redacted."""
    ours = isinstance(error, InvalidArguments | ToolTimeout) or (isinstance(error, ToolError) and type(error) is not ToolError)
    text = str(error) if ours else error_text(error)
    code = error.code if ours and isinstance(error, UmbelError) else ToolError.code
    spent = 0.0 if started is None else (perf_counter() - started) * 1e3
    return ToolResult(tool_call_id=call.id, name=call.name, error=text, code=code, duration_ms=spent)


def asked(call: ToolCall, error: BaseException, started: float | None = None) -> ToolResult:
    """What an exception asks, as :class:`Asked`; an error result when it asks nothing."""
    request = request_in(error)
    if request is None:
        return failed(call, error, started)
    spent = 0.0 if started is None else (perf_counter() - started) * 1e3
    why = f"{call.name} has no result yet: it waits for an answer to its question"
    return Asked(tool_call_id=call.id, name=call.name, error=why, code=INTERRUPTED, duration_ms=spent, interrupt=request)


def malformed(call: ToolCall) -> ToolResult:
    """The result of a call whose arguments were not a JSON object. The body never runs."""
    quoted = (call.malformed_arguments or "")[:QUOTED]
    return failed(
        call,
        InvalidArguments(
            f"The arguments of this call to {call.name!r} are not a valid JSON object, so the tool was not run. "
            f"Received: {quoted!r}. Send the call again with valid JSON arguments."
        ),
    )


def timed_out(tool: Tool, call: ToolCall) -> ToolResult:
    """The result of a call that outlived its deadline."""
    result = failed(call, ToolTimeout(f"tool {tool.name!r} did not finish within {tool.timeout:g} s and was stopped"))
    return result.evolve(duration_ms=(tool.timeout or 0.0) * 1e3)


async def _await(value: Any) -> Any:
    return await value


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
