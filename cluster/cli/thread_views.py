"""What ``umbel threads`` shows: plain values for ``--json``, and text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ...protocol.commands import CheckpointLoaded
    from ...protocol.messages import Message
    from ...protocol.state import AgentState
    from ...protocol.storage import CheckpointInfo, JournalEntry, ThreadInfo

COUNTERS = (
    "run_id", "agent_id", "iteration", "max_iterations", "total_tokens_used", "prompt_tokens_used", "completion_tokens_used",
    "cost_usd_used", "confidence", "completion_mode",
)  # fmt: skip
PREVIEW = 600


def show_json(value: Any) -> None:
    """``value`` on stdout, as one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def thread_facts(
    thread_id: str, loaded: CheckpointLoaded, state: AgentState, history: Sequence[CheckpointInfo]
) -> dict[str, Any]:
    """Everything ``umbel threads show`` knows, as JSON values; the keys are stable."""
    from ...actors.supervisor.pause import listed

    counters = {name: getattr(state, name) for name in COUNTERS}
    return {
        "thread_id": thread_id,
        "checkpoint_id": loaded.checkpoint_id,
        "created_at": loaded.created_at,
        "metadata": loaded.metadata,
        "state": {**counters, "stop_reason": state.turn.stop_reason, "metadata": state.metadata, "errors": list(state.errors)},
        "messages": [message.model_dump(mode="json") for message in state.messages],
        "history": [checkpoint.model_dump(mode="json") for checkpoint in history],
        "interrupts": list(listed(state.interrupts)),
        "open_calls": [entry.model_dump(mode="json", exclude={"result", "phase"}) for entry in open_calls(loaded.journal)],
    }


def open_calls(journal: Iterable[JournalEntry]) -> list[JournalEntry]:
    """The calls that were begun and of which no end is known."""
    entries = list(journal)
    done = {(entry.run_id, entry.call_id) for entry in entries if entry.phase == "done"}
    return [entry for entry in entries if entry.phase == "begun" and (entry.run_id, entry.call_id) not in done]


def thread_table(threads: Sequence[ThreadInfo]) -> str:
    """A list of threads, for people."""
    rows = [
        (
            printable(thread.thread_id),
            str(thread.checkpoints),
            size(thread.bytes),
            moment(thread.updated_at),
            printable(str(thread.metadata.get("reason") or ("" if thread.metadata.get("finished") else "open"))),
            printable(thread.owner or ""),
        )
        for thread in threads
    ]
    return table(("thread", "checkpoints", "size", "written", "ended", "in use by"), rows)


def thread_text(facts: dict[str, Any], messages: Sequence[Message]) -> str:
    """One thread, for people: what was said, where it stands, what it waits for."""
    state = facts["state"]
    head = [
        f"thread {printable(facts['thread_id'])}",
        f"  checkpoint {facts['checkpoint_id']}, written {moment(facts['created_at'])}",
        f"  run {state['run_id']}: {standing(facts)}",
        f"  iteration {state['iteration']}, {state['total_tokens_used']:,} tokens, ${state['cost_usd_used']:.4f}",
    ]
    head += [f"  {printable(key)} = {printable(str(value))}" for key, value in state["metadata"].items()]
    said = [f"  {_speaker(message)}: {_said(message)}" for message in messages]
    parts = ["\n".join(head), "\n".join([f"messages ({len(messages)})", *said])]
    if facts["interrupts"]:
        asked = [f"  {printable(each['interrupt_id'])}: {printable(str(each['question']))}" for each in facts["interrupts"]]
        parts.append("\n".join(["waits for answers (agent.aresume)", *asked]))
    if facts["open_calls"]:
        calls = [f"  {printable(each['call_id'])}, begun {moment(each['at'])}" for each in facts["open_calls"]]
        parts.append("\n".join(["calls whose outcome is not known", *calls]))
    rows = [(each["checkpoint_id"], moment(each["created_at"]), _facts(each["metadata"])) for each in facts["history"]]
    parts.append(f"history, newest first\n{table(('checkpoint', 'written', 'metadata'), rows)}")
    return "\n\n".join(parts)


def standing(facts: dict[str, Any]) -> str:
    """Where the newest turn stands."""
    if facts["interrupts"]:
        return "paused"
    reason = facts["state"]["stop_reason"]
    return printable(reason) if reason else "not finished"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns, cut to the terminal's width if there is one."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, color_system=None, highlight=False, markup=False)
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for head in heads:
        shown.add_column(head, no_wrap=True, overflow="ellipsis")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def printable(text: str) -> str:
    """``text`` without what a terminal would obey: control characters are written as escapes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def moment(seconds: float) -> str:
    """Seconds since the epoch as a date and time, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def size(count: int) -> str:
    """Bytes in a unit that people read."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _speaker(message: Message) -> str:
    """Whose message it is; in a pattern's thread which step it is the result of."""
    from ...protocol.markers import STEP

    step = message.metadata.get(STEP)
    if step is None:
        return message.role
    kind = step.get("kind")
    if kind == "result":
        return printable(f"step {step['key']} {step.get('status', 'completed')}")
    return "end" if kind == "end" else printable(f"{kind} of {step['key']}")


def _said(message: Message) -> str:
    from ...protocol.markers import STEP

    error = message.metadata.get(STEP, {}).get("error") or {}
    text = message.content or str(error.get("message", ""))
    calls = ", ".join(f"{call.name}({printable(str(call.arguments))})" for call in message.tool_calls)
    cut = f"{text[:PREVIEW]}... ({len(text):,} characters)" if len(text) > PREVIEW else text
    lines = "\n    ".join(map(printable, cut.splitlines()))
    return " ".join(part for part in (lines, f"[calls {calls}]" if calls else "") if part)


def _facts(metadata: dict[str, Any]) -> str:
    """Metadata in a line; what has parts is left to ``--json``."""
    return printable(" ".join(f"{key}={value}" for key, value in metadata.items() if not isinstance(value, dict | list)))
