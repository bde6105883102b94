"""``umbel threads``: what it shows, moves, deletes and tidies up, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from umbel import Agent, AgentState, Message, Runtime, ToolContext, ToolResult, tool
from umbel.actors.checkpoints import CheckpointerActor, MemoryStore, registry
from umbel.actors.threads import Threads
from umbel.cluster.cli import threads as commands
from umbel.cluster.cli.thread_files import export_threads
from umbel.cluster.cli.thread_store import read_duration
from umbel.cluster.cli.thread_views import printable, size
from umbel.errors import CheckpointNotFound, ConfigurationError
from umbel.protocol.storage import JournalEntry, TakeLease
from umbel.testing import ScriptedModel, text, tool_call

Umbel = Callable[..., Result]
CONVERSATION = ["Add.", "1 + 2?", None, "3", "It is 3."]


@tool(idempotent=True)
async def add(a: int, b: int, ctx: ToolContext) -> int:
    """Add two integers."""
    if a > 100:
        ctx.interrupt("So much?")
    return a + b


def talk(url: str, *threads: str, a: int = 1, **options: Any) -> None:
    """A turn on each of these threads."""
    with Runtime(inline=True):
        for thread in threads:
            model = ScriptedModel([tool_call("add", a=a, b=2), text("It is 3.")])
            agent = Agent(model, [add], system_prompt="Add.", checkpointer=url, keep_iteration_checkpoints=True)
            agent.run_sync("1 + 2?", thread_id=thread, **options)


def with_threads(url: str, job: Callable[[Threads], Any]) -> Any:
    """Do something with the store itself."""

    async def run() -> Any:
        checkpointer = CheckpointerActor()
        try:
            return await job(Threads(url, checkpointer.answer))
        finally:
            await checkpointer.close()

    return asyncio.run(run())


@pytest.fixture
def url(workplace: Path) -> str:
    return f"sqlite:///{workplace}/umbel.db"


@pytest.fixture
def threads(umbel: Umbel, url: str) -> Umbel:
    """``umbel threads ... --store URL``."""

    def call(command: str, *arguments: object) -> Result:
        return umbel("threads", command, *arguments, "--store", url)

    return call


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def ids(result: Result) -> list[str]:
    return [thread["thread_id"] for thread in told(result)["threads"]]


# list


def test_threads_are_listed_in_pages(threads: Umbel, url: str) -> None:
    talk(url, "a/1", "a/2", "a/3", "b")
    first = told(threads("list", "--json", "--prefix", "a/", "--limit", "2"))
    assert ([thread["thread_id"] for thread in first["threads"]], first["next"]) == (["a/1", "a/2"], "a/2")
    last = told(threads("list", "--json", "--prefix", "a/", "--limit", "2", "--after", first["next"]))
    assert ([thread["thread_id"] for thread in last["threads"]], last["next"]) == (["a/3"], None)
    keys = {"thread_id", "checkpoint_id", "checkpoints", "bytes", "created_at", "updated_at", "metadata", "owner"}
    assert {*first["threads"][0]} == keys and first["threads"][0]["metadata"]["reason"] == "complete"
    shown = threads("list", "--limit", "3")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["thread", "checkpoints", "size", "written", "ended", "in", "use", "by"]
    assert [line.split()[0] for line in lines[1:]] == ["a/1", "a/2", "a/3"] and "complete" in lines[1]
    assert "--after 'a/3'" in shown.stderr
    assert "no threads" in threads("list", "--prefix", "z").stderr


def test_threads_are_searched_by_metadata(threads: Umbel, url: str) -> None:
    talk(url, "a", "b", "c")

    async def mark(store: Threads) -> None:
        await store.update("a", metadata={"customer": 7, "colour": "red"})
        await store.update("b", metadata={"customer": "7", "colour": "red"})

    with_threads(url, mark)
    assert ids(threads("list", "--json", "--where", "customer=7")) == ["a"]
    assert ids(threads("list", "--json", "--where", 'customer="7"')) == ["b"]
    assert ids(threads("list", "--json", "--where", "colour=red", "--where", "finished=true")) == ["a", "b"]
    wrong = threads("list", "--where", "customer")
    assert wrong.exit_code == 2 and "expected key=value" in wrong.stderr


# show


def test_a_thread_is_shown_whole(threads: Umbel, url: str) -> None:
    talk(url, "t", metadata={"user": "ann"})
    facts = told(threads("show", "t", "--json"))
    assert [message["content"] for message in facts["messages"]] == CONVERSATION
    assert facts["state"]["stop_reason"] == "complete" and facts["state"]["metadata"] == {"user": "ann"}
    assert facts["state"]["iteration"] == 2 and facts["interrupts"] == facts["open_calls"] == []
    assert facts["history"][0]["checkpoint_id"] == facts["checkpoint_id"] and len(facts["history"]) == 2
    earlier = told(threads("show", "t", "--json", "--checkpoint", facts["history"][1]["checkpoint_id"], "--history", "1"))
    assert [message["content"] for message in earlier["messages"]] == CONVERSATION[:4] and len(earlier["history"]) == 1
    shown = threads("show", "t").stdout
    assert all(part in shown for part in ("user: 1 + 2?", "tool: 3", "[calls add(", "user = ann", facts["checkpoint_id"]))


def test_what_a_thread_waits_for_is_shown(threads: Umbel, url: str) -> None:
    talk(url, "t", a=101)
    [asked] = told(threads("show", "t", "--json"))["interrupts"]
    assert (asked["question"], asked["tool_name"]) == ("So much?", "add")
    shown = threads("show", "t").stdout
    assert "paused" in shown and f"{asked['interrupt_id']}: So much?" in shown


def test_calls_whose_outcome_is_not_known_are_shown(threads: Umbel, url: str) -> None:
    journal = (
        JournalEntry(run_id="r", call_id="c1", phase="begun", at=1_700_000_000.0),
        JournalEntry(run_id="r", call_id="c2", phase="begun"),
        JournalEntry(run_id="r", call_id="c2", phase="done", result=ToolResult(tool_call_id="c2", name="add", content="3")),
    )
    with_threads(url, lambda store: store.write("t", AgentState(run_id="r"), journal=journal))
    assert told(threads("show", "t", "--json"))["open_calls"] == [{"run_id": "r", "call_id": "c1", "at": 1_700_000_000.0}]
    assert "c1, begun 2023-11-14 22:13:20" in threads("show", "t").stdout


def test_nothing_in_a_thread_reaches_the_terminal_as_a_command(threads: Umbel, url: str) -> None:
    state = AgentState(messages=(Message.user("\x1b[2Jgone\nnext [red]line[/red]\u202e"),), metadata={"\x07": "\x9b"})
    with_threads(url, lambda store: store.write("t\x1b[31m", state))
    for shown in (threads("show", "t\x1b[31m").stdout, threads("list").stdout):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown) and "\\x1b[31m" in shown
    assert "next [red]line[/red]" in threads("show", "t\x1b[31m").stdout


@pytest.mark.parametrize("command", [("show", "x"), ("fork", "x"), ("export", "x"), ("show", "t", "--checkpoint", "c9")])
def test_what_is_not_there_is_named(threads: Umbel, url: str, command: tuple[str, ...]) -> None:
    talk(url, "t")
    missing = threads(*command)
    assert missing.exit_code == 1 and missing.stderr.startswith("umbel: checkpoint_not_found: ")
    assert ("no checkpoint 'c9'" if "c9" in command else "no thread 'x'") in missing.stderr


# fork


def test_a_fork_can_be_run_on(threads: Umbel, url: str) -> None:
    talk(url, "t")
    [_, earlier] = told(threads("show", "t", "--json"))["history"]
    assert told(threads("fork", "t", "u", "--json", "--checkpoint", earlier["checkpoint_id"]))["thread_id"] == "u"
    talk(url, "u")
    assert [message["content"] for message in told(threads("show", "u", "--json"))["messages"]][3:5] == ["3", "1 + 2?"]
    named = threads("fork", "t").stdout.strip()
    assert named.startswith("t-fork-") and ids(threads("list", "--json")) == ["t", named, "u"]
    assert threads("fork", "t", "t").exit_code == 2
    taken = threads("fork", "t", "u")
    assert taken.exit_code == 1 and "'u' exists" in taken.stderr


# export and import


@pytest.mark.spec("OURS-22")
def test_what_was_exported_comes_back_exactly(threads: Umbel, umbel: Umbel, url: str, workplace: Path) -> None:
    talk(url, "t", "paused", a=101)
    talk(url, "done", metadata={"text": "ä\ud7ff\u2028\n", "number": 0.1})
    entry = JournalEntry(run_id="r", call_id="c", phase="begun", at=0.1)
    with_threads(url, lambda store: store.write("open", AgentState(run_id="r"), journal=(entry,), metadata={"kept": 1}))
    other = f"file:///{workplace}/other"
    assert told(threads("export", "--out", "all.jsonl", "--json")) == {"exported": 4, "out": "all.jsonl"}
    imported = umbel("threads", "import", "all.jsonl", "--store", other, "--json")
    assert told(imported) == {"imported": 4, "replaced": 0}
    assert umbel("threads", "export", "--store", other).stdout == Path("all.jsonl").read_text()
    for thread in ("t", "done", "open"):
        mine, theirs = (with_threads(place, lambda store: store.load(thread)) for place in (url, other))  # noqa: B023 - used at once
        assert (mine.checkpoint_id, mine.metadata, mine.created_at, mine.journal) == (
            theirs.checkpoint_id, theirs.metadata, theirs.created_at, theirs.journal
        )  # fmt: skip
        assert with_threads(url, lambda store: store.get_state(thread)) == with_threads(  # noqa: B023 - used at once
            other,
            lambda store: store.get_state(thread),  # noqa: B023 - used at once
        )
    line = json.loads(Path("all.jsonl").read_text().splitlines()[0])
    assert (line["format"], line["version"], line["state_version"]) == ("umbel-thread", 1, AgentState.schema_version)
    with Runtime(inline=True):  # a paused one can be answered there
        agent = Agent(ScriptedModel([text("not asked"), text("Fine.")]), [add], checkpointer=other)
        answered = asyncio.run(agent.aresume("yes", thread_id="paused"))
    assert answered.success


def test_what_is_exported_can_be_chosen(threads: Umbel, url: str) -> None:
    talk(url, "a/1", "a/2", "b")
    lines = threads("export", "--prefix", "a/").stdout.splitlines()
    assert [json.loads(line)["thread_id"] for line in lines] == ["a/1", "a/2"]
    lines = threads("export", "b", "a/1", "-q").stdout.splitlines()
    assert [json.loads(line)["thread_id"] for line in lines] == ["b", "a/1"]
    for wrong in (("b", "--prefix", "a"), ("--json",)):
        assert threads("export", *wrong).exit_code == 2


async def test_a_thread_that_is_deleted_while_others_are_exported_is_passed_over() -> None:
    checkpointer = CheckpointerActor()
    store = Threads("memory://", checkpointer.answer)
    for name in "ab":
        await store.write(name, AgentState())

    async def named() -> AsyncIterator[str]:
        for name in "ab":
            yield name
            await store.delete("b")

    out = io.StringIO()
    assert await export_threads(store, named(), out, listed=True) == 1
    with pytest.raises(CheckpointNotFound, match="'b'"):
        await export_threads(store, named(), out)
    assert [json.loads(line)["thread_id"] for line in out.getvalue().splitlines()] == ["a", "a"]
    await checkpointer.close()


def test_threads_are_imported_from_a_named_pipe(threads: Umbel, url: str, umbel: Umbel, workplace: Path) -> None:
    """As the shell makes one of ``umbel threads import <(zcat support.jsonl.gz)``."""
    talk(url, "t")
    lines = threads("export", "t").stdout
    pipe = workplace / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(lines,), daemon=True)
    writer.start()
    other = f"sqlite:///{workplace}/other.db"
    done = umbel("threads", "import", pipe, "--store", other, "--json")
    writer.join(10)
    assert told(done) == {"imported": 1, "replaced": 0}
    assert umbel("threads", "export", "t", "--store", other).stdout == lines


def test_credentials_of_a_store_are_not_shown(umbel: Umbel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(MemoryStore):
        @classmethod
        def from_url(cls, url: str) -> MemoryStore:
            return cls()

    monkeypatch.setattr(registry, "_FACTORIES", {**registry._FACTORIES, "far": Empty.from_url})
    for command in (("list",), ("show", "t"), ("rm", "t", "--yes")):
        shown = umbel("threads", *command, "--store", "far://ann:s3cret@host:1/db")
        assert "s3cret" not in shown.output and "far://***@host:1/db" in shown.output, shown.output


def test_a_file_is_there_once_it_is_complete(threads: Umbel, url: str, workplace: Path) -> None:
    talk(url, "a")
    assert threads("export", "a", "missing", "--out", "out.jsonl").exit_code == 1
    assert not list(workplace.glob("out.jsonl*"))
    assert threads("export", "--out", "out.jsonl").exit_code == 0
    before = Path("out.jsonl").read_text()
    refused = threads("export", "--out", "out.jsonl")
    assert refused.exit_code == 2 and "--overwrite" in refused.stderr
    assert threads("export", "a", "missing", "--out", "out.jsonl", "--overwrite").exit_code == 1
    assert Path("out.jsonl").read_text() == before
    assert "no folder" in threads("export", "--out", "no/where.jsonl").stderr


def test_what_exists_is_not_imported_over(threads: Umbel, url: str) -> None:
    talk(url, "a", "b")
    threads("export", "--out", "all.jsonl")
    threads("rm", "b", "--yes")
    with_threads(url, lambda store: store.update("a", messages="newer"))
    refused = threads("import", "all.jsonl")
    assert refused.exit_code == 1 and "1 of the threads exist already ('a')" in refused.stderr and "--force" in refused.stderr
    assert ids(threads("list", "--json")) == ["a"], "nothing was imported"
    assert told(threads("import", "all.jsonl", "--force", "--json")) == {"imported": 1, "replaced": 1}
    facts = told(threads("show", "a", "--json"))
    assert [message["content"] for message in facts["messages"]] == CONVERSATION
    assert len(facts["history"]) == 4, "the newer one is still in its history"


LINE: dict[str, Any] = {
    "format": "umbel-thread", "version": 1, "thread_id": "t", "checkpoint_id": "c", "created_at": 1.0,
    "state_version": AgentState.schema_version, "state": {"messages": [{"role": "user", "content": "hi"}]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("no json", "all.jsonl:2: not JSON"),
        ([1], "all.jsonl:2: format: expected"),
        ({"format": "other"}, "all.jsonl:2: format: expected"),
        ({"version": 2}, "all.jsonl:2: version: this Umbel reads version 1, not 2"),
        ({"state_version": 99}, "all.jsonl:2: state_version: this Umbel reads"),
        ({"thread_id": 3}, "all.jsonl:2: thread_id: "),
        ({"surplus": 1}, "all.jsonl:2: surplus: "),
        ({"state": {"messages": [{"role": "robot"}]}}, "all.jsonl:2: state.messages.0.role: "),
        ({"thread_id": "first"}, "all.jsonl:2: thread_id: 'first' stands in line 1 already"),
        ({"journal": [{"run_id": "r"}]}, "all.jsonl:2: journal.0.call_id: "),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_field(threads: Umbel, url: str, change: Any, complaint: str) -> None:
    second = json.dumps({**LINE, **change} if isinstance(change, dict) else change) if change != "no json" else "{"
    Path("all.jsonl").write_text(json.dumps({**LINE, "thread_id": "first"}) + "\n" + second + "\n")
    refused = threads("import", "all.jsonl")
    assert refused.exit_code == 2 and complaint in refused.stderr, refused.stderr
    assert told(threads("list", "--json"))["threads"] == [], "nothing of it was stored"


def test_threads_go_through_a_pipe(threads: Umbel, url: str, start: Any, workplace: Path) -> None:
    talk(url, "a", "b")
    lines = threads("export").stdout
    code, out, err = start("threads", "import", "-", "--store", f"sqlite:///{workplace}/other.db", "--json").finish(lines)
    assert (code, json.loads(out)) == (0, {"imported": 2, "replaced": 0}), err
    code, _, err = start("threads", "import", "-", "--store", url).finish(lines.replace("umbel-thread", "x"))
    assert code == 2 and "standard input:1: format" in err
    assert threads("import", "nowhere.jsonl").exit_code == 2


# rm and gc


@pytest.mark.spec("OURS-23")
def test_deleted_threads_are_gone(threads: Umbel, url: str) -> None:
    talk(url, "a", "b", "c")
    done = threads("rm", "a", "b", "x", "a", "--yes", "--json")
    assert done.exit_code == 1 and json.loads(done.stdout) == {"deleted": ["a", "b"], "missing": ["x"]}
    assert "no thread 'x'" in done.stderr and ids(threads("list", "--json")) == ["c"]
    assert threads("rm", "c", "--yes").exit_code == 0


def test_nothing_is_deleted_without_a_yes(threads: Umbel, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(url, "a")
    for command in (("rm", "a"), ("gc", "--older-than", "1s")):
        refused = threads(*command)
        assert refused.exit_code == 2 and "--yes" in refused.stderr
    monkeypatch.setattr(commands, "is_terminal", lambda: True)
    asked: list[str] = []
    answers = iter([False, True])

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("typer.confirm", confirm)
    for code, left in ((1, ["a"]), (0, [])):
        assert threads("rm", "a").exit_code == code
        assert ids(threads("list", "--json")) == left
    assert asked == ["Delete 1 thread for good?"] * 2


def test_old_checkpoints_and_threads_are_collected(threads: Umbel, url: str) -> None:
    talk(url, "old", "new", "used")
    month = time.time() - 30 * 86_400

    async def age(store: Threads) -> None:
        await store.delete("old")
        await store.write("old", AgentState(), created_at=month)
        await store.delete("used")
        await store.write("used", AgentState(), created_at=month)
        await store._ask(TakeLease(store=url, thread_id="used", owner="a run", seconds=600))
        for number in range(3):
            await store.update("new", messages=f"note {number}")

    with_threads(url, age)
    state = with_threads(url, lambda store: store.get_state("new"))
    command = ("gc", "--keep", "2", "--older-than", "20d", "--json")
    planned = told(threads(*command, "--dry-run"))
    assert (planned["threads"], planned["checkpoints"], planned["dry_run"]) == (1, 4, True)
    assert ids(threads("list", "--json")) == ["new", "old", "used"]
    freed = told(threads(*command, "--yes"))
    assert (freed["threads"], freed["dry_run"]) == (1, False)
    assert ids(threads("list", "--json")) == ["new", "used"]
    assert len(told(threads("show", "new", "--json"))["history"]) == 2
    assert with_threads(url, lambda store: store.get_state("new")) == state
    assert threads("gc", "--keep", "2").stdout == "freed: nothing\n"


def test_durations_are_read() -> None:
    for written, seconds in (("45s", 45.0), ("1.5h", 5_400.0), ("30d", 2_592_000.0), ("2w", 1_209_600.0), ("3m", 180.0)):
        assert read_duration(written, "--older-than") == seconds
    assert read_duration(None, "--older-than") is None
    for wrong in ("30", "d", "-1d", "1y", ""):
        with pytest.raises(ConfigurationError, match="expected a number and s, m, h, d or w"):
            read_duration(wrong, "--older-than")


def test_sizes_and_texts_are_for_people() -> None:
    assert [size(count) for count in (0, 1_023, 1_536, 3 * 2**20, 5 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert printable("ä\t\x00\u202e") == "ä\\t\\x00\\u202e"


# stores


def test_a_store_that_is_not_there_is_no_empty_list(umbel: Umbel, workplace: Path) -> None:
    missing = umbel("threads", "list")
    assert missing.exit_code == 2 and "no store at" in missing.stderr and "--store" in missing.stderr
    assert not (workplace / "home").exists(), "looking makes none"
    for store, complaint in (
        ("sqlite:///no.db", "no store at"),
        ("memory://", "only that process"),
        ("nonsense", "not the URL of a store"),
        ("ftp://x", "known are"),
    ):
        refused = umbel("threads", "list", "--store", store)
        assert refused.exit_code == 2 and complaint in refused.stderr


def test_the_default_store_is_the_projects(umbel: Umbel, workplace: Path) -> None:
    from umbel.actors.checkpoints import default_url

    talk(default_url(), "t")
    assert ids(umbel("threads", "list", "--json")) == ["t"]


@pytest.mark.parametrize("command", ["list", "show", "fork", "export", "import", "rm", "gc"])
def test_every_command_explains_itself(umbel: Umbel, command: str) -> None:
    shown = umbel("threads", command, "--help")
    assert shown.exit_code == 0 and "Example:" in shown.stdout and "Exit codes:" in shown.stdout and "--store" in shown.stdout
