"""``umbel run``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, OK, ends_cleanly, set_up_logging
from .result_view import EventView, show_result
from .services import connected

if TYPE_CHECKING:
    from ..runtime import Runtime


@ends_cleanly
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    agent: options.AgentOption,
    *,
    values: Annotated[
        bool, typer.Option("--values", help="The prompt is a JSON object: the structured input of a pattern.")
    ] = False,
    thread: Annotated[str | None, typer.Option(help="Conversation to start or continue (with a checkpointer).")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer as it is written; with --json every event.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds that the run may take.")] = None,
    detach: Annotated[
        str | None,
        typer.Option(
            "--detach",
            metavar="NAMESPACE",
            help="Begin the run in the detached runtime of this name (made if need be) on the cluster, print its id and leave.",
        ),
    ] = None,
    runtime: options.RuntimeOption = options.Where.INLINE,
    address: options.AddressOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Ask an agent or a pattern once. Runs in this process unless --runtime or --address says otherwise.

    The answer goes to stdout; what the members of a pattern did goes to stderr, as a table, with --stream also as it happens.

    \b
    Example:
      umbel run "Refund order 4821" --agent my_agents:support --thread t-1
      umbel run '{"topic": "umbels"}' --values --agent my_patterns:report
      umbel run "Refund order 4821" --agent my_agents:support --stream --json | jq .event_type
      umbel attach $(umbel run "Refund order 4821" --agent my_agents:support --detach support)

    \b
    Exit codes: 0 the run succeeded, 1 it did not, 2 wrong usage, 130 Ctrl-C.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ..loading import load_agent

    runnable = load_agent(agent)
    text = sys.stdin.read() if prompt == "-" else prompt
    asked = read_values(text) if values else text
    if detach is not None:
        begin(runnable, asked, thread, timeout, detach, address, stream=stream, as_json=as_json)
        return
    where = options.Where.AUTO if address is not None and runtime is options.Where.INLINE else runtime
    with options.open_runtime(where, address) as place:
        ask = _stream if stream else _ask
        succeeded = place.run_sync(ask(runnable, asked, thread, timeout, place, as_json=as_json, quiet=quiet))
    raise typer.Exit(OK if succeeded else FAILED)


def read_values(text: str) -> dict[str, Any]:
    """The structured input that a prompt is.

    Raises:
        ConfigurationError: it is no JSON object.
    """
    from ...protocol.errors import ConfigurationError

    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"--values: the prompt is not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(values, dict):
        raise ConfigurationError('--values: the prompt must be a JSON object, for example \'{"topic": "umbels"}\'')
    return values


def begin(
    agent: Any,
    prompt: Any,
    thread: str | None,
    timeout: float | None,
    namespace: str,
    address: str | None,
    *,
    stream: bool,
    as_json: bool,
) -> None:
    """Begin a run that goes on without this process, and print its id."""
    from ..runtime import Runtime

    with connected(address), Runtime(namespace=namespace, detached=True) as place:
        handle = agent.start_sync(prompt, thread_id=thread, timeout=timeout, stream_tokens=stream, runtime=place)
    typer.echo(json.dumps({"run_id": handle.run_id, "namespace": namespace}) if as_json else handle.run_id)


async def _ask(
    agent: Any, prompt: Any, thread: str | None, timeout: float | None, place: Runtime, *, as_json: bool, quiet: bool
) -> bool:
    result = await agent.arun(prompt, thread_id=thread, timeout=timeout, full=False, runtime=place)
    show_result(result, as_json=as_json, quiet=quiet)
    return bool(result.success)


async def _stream(
    agent: Any, prompt: Any, thread: str | None, timeout: float | None, place: Runtime, *, as_json: bool, quiet: bool
) -> bool:
    from ...protocol.results import SUCCESSFUL, normalise_stop_reason

    reason, why = "interrupted", None
    view = EventView(as_json=as_json, quiet=quiet)
    async for event in agent.run(prompt, thread_id=thread, timeout=timeout, stream_tokens=True, runtime=place):
        view.show(event)
        if event.event_type == "terminate":
            reason, why = normalise_stop_reason(event.reason), event.error
            if event.final_message and not view.streamed and not as_json:
                typer.echo(event.final_message)
    if reason not in SUCCESSFUL:
        typer.echo(f"umbel: the run ended with {reason}{f': {why}' if why else ''}", err=True)
    return reason in SUCCESSFUL
