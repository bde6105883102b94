"""``umbel threads``: the conversations of a store, listed, shown, forked, moved, deleted and tidied up.

An administration tool: it opens the store itself, without Ray and without an agent. Leases keep it out of running turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .ending import FAILED, ends_cleanly, set_up_logging

if TYPE_CHECKING:
    from ...actors.threads import Threads

app = typer.Typer(
    help="Look into the conversations of a store, and manage them. The store is opened directly, without Ray.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
StoreOption = Annotated[
    str | None,
    typer.Option("--store", "-s", help="URL of the store; default is $UMBEL_HOME/checkpoints.sqlite (~/.umbel)."),
]
PrefixOption = Annotated[str, typer.Option(help="Only threads whose id begins with it.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(help="Only threads with this metadata, as key=value (JSON or text); may be given several times."),
]


@app.callback()
def threads() -> None:
    """Look into the conversations of a store, and manage them. The store is opened directly, without Ray."""


@app.command("list")
@ends_cleanly
def list_threads(
    *,
    store: StoreOption = None,
    prefix: PrefixOption = "",
    where: WhereOption = None,
    after: Annotated[str, typer.Option(help="Only ids behind this one: the next page.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    members: Annotated[bool, typer.Option("--members", help="Those of patterns' members, too.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """List threads in the order of their ids.

    \b
    Example:
      umbel threads list --store sqlite:///umbel.db --prefix support/
      umbel threads list --where customer=7 --where finished=false --json | jq -r '.threads[].thread_id'

    \b
    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ...actors.checkpoints.url import shown
    from .thread_store import opened, read_where, store_url
    from .thread_views import show_json, thread_table

    url, facts = store_url(store), read_where(where or [])

    async def job() -> list[Any]:
        async with opened(url) as threads:
            return await threads.page(prefix, where=facts, after=after, limit=limit, members=members)

    found = asyncio.run(job())
    following = found[-1].thread_id if len(found) == limit else None
    if as_json:
        show_json({"threads": [thread.model_dump(mode="json") for thread in found], "next": following})
    elif found:
        typer.echo(thread_table(found))
        if following is not None:
            typer.echo(f"umbel: there may be more: --after {following!r}", err=True)
    else:
        typer.echo(f"umbel: no threads in {shown(url)} fit", err=True)


@app.command()
@ends_cleanly
def show(
    thread: Annotated[str, typer.Argument(help="The thread.")],
    *,
    store: StoreOption = None,
    checkpoint: Annotated[str | None, typer.Option(help="An earlier checkpoint instead of the newest.")] = None,
    history: Annotated[int, typer.Option(min=1, help="Checkpoints to list.")] = 10,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Show one thread: messages, counters, history, what it waits for, and calls whose outcome is not known.

    \b
    Example:
      umbel threads show t-1 --store sqlite:///umbel.db
      umbel threads show t-1 --json | jq -r '.messages[] | "\\(.role): \\(.content)"'

    \b
    Exit codes: 0 shown, 1 there is no such thread, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ...actors.checkpoints import restore
    from .thread_store import opened, store_url
    from .thread_views import show_json, thread_facts, thread_text

    url = store_url(store)

    async def job() -> tuple[Any, Any]:
        async with opened(url) as threads:
            return await threads.load(thread, checkpoint), await threads.history(thread, history)

    loaded, checkpoints = asyncio.run(job())
    baseline = restore(loaded)
    assert baseline is not None  # load raises
    facts = thread_facts(thread, loaded, baseline.state, checkpoints)
    if as_json:
        show_json(facts)
    else:
        typer.echo(thread_text(facts, baseline.state.messages))


@app.command()
@ends_cleanly
def fork(
    thread: Annotated[str, typer.Argument(help="The thread to copy.")],
    name: Annotated[str | None, typer.Argument(help="Of the new thread; default is THREAD-fork-<8 hex digits>.")] = None,
    *,
    store: StoreOption = None,
    checkpoint: Annotated[str | None, typer.Option(help="Copy this checkpoint instead of the newest.")] = None,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Copy one checkpoint into a thread of its own, to run on from there.

    \b
    Example:
      umbel threads fork t-1 t-1-again --checkpoint 5f0c...

    \b
    Exit codes: 0 forked, 1 no such thread or the name is taken, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from .thread_store import opened, store_url
    from .thread_views import show_json

    url = store_url(store)

    async def job() -> str:
        async with opened(url) as threads:
            return await threads.fork(thread, name, checkpoint_id=checkpoint)

    new = asyncio.run(job())
    if as_json:
        show_json({"thread_id": new, "forked_from": thread})
    else:
        typer.echo(new)


@app.command("export")
@ends_cleanly
def export(
    ids: Annotated[list[str] | None, typer.Argument(help="Threads; default is all that fit the options.")] = None,
    *,
    store: StoreOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; default is standard output.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    prefix: PrefixOption = "",
    where: WhereOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Write threads as JSON lines: each one's newest state, whole, with metadata and versions.

    \b
    Example:
      umbel threads export --prefix support/ --out support.jsonl
      umbel threads export t-1 t-2 | umbel threads import - --store sqlite:///other.db

    \b
    Exit codes: 0 written, 1 a thread is not there or the store cannot be read, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from ...protocol.errors import ConfigurationError
    from .thread_files import chosen, export_threads, written_whole
    from .thread_store import opened, read_where, store_url
    from .thread_views import show_json

    if as_json and out is None:
        raise ConfigurationError("--json says what was written to a file: give it with --out; the lines are JSON anyway")
    if ids and (prefix or where):
        raise ConfigurationError("give threads by name, or --prefix and --where, not both")
    url, facts = store_url(store), read_where(where or [])

    async def job() -> int:
        with written_whole(out, overwrite=overwrite) as file:
            async with opened(url) as threads:
                return await export_threads(threads, chosen(threads, ids or [], prefix, facts), file, listed=not ids)

    count = asyncio.run(job())
    if as_json:
        show_json({"exported": count, "out": str(out)})
    elif not quiet:
        typer.echo(f"umbel: {count:,} threads exported", err=True)


@app.command("import")
@ends_cleanly
def import_(
    file: Annotated[str, typer.Argument(help='What "umbel threads export" wrote, or - for standard input.')],
    *,
    store: StoreOption = None,
    force: Annotated[bool, typer.Option("--force", help="Threads that exist get the file's state as newest one.")] = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Store the threads of a file. It is checked whole before anything is written.

    \b
    Example:
      umbel threads import support.jsonl --store sqlite:///other.db

    \b
    Exit codes: 0 stored, 1 a thread exists or is in use, 2 wrong usage or a wrong file.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose, quiet=quiet)
    from .thread_files import import_threads, read_twice
    from .thread_store import opened, store_url
    from .thread_views import show_json

    url = store_url(store, may_be_new=True)

    async def job() -> dict[str, Any]:
        with read_twice(file) as (lines, source):
            async with opened(url) as threads:
                return await import_threads(threads, lines, source, force=force)

    done = asyncio.run(job())
    if as_json:
        show_json(done)
    elif not quiet:
        typer.echo(f"umbel: {done['imported']:,} threads imported, {done['replaced']:,} replaced", err=True)


@app.command("rm")
@ends_cleanly
def remove(
    ids: Annotated[list[str], typer.Argument(help="The threads.")],
    *,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Delete threads, with everything that their history holds. A run that is writing to one is refused from then on.

    \b
    Example:
      umbel threads rm t-1 t-2 --store sqlite:///umbel.db

    \b
    Exit codes: 0 all deleted, 1 some were not there, or the answer was no, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ...actors.checkpoints.url import shown
    from .thread_store import opened, store_url
    from .thread_views import show_json

    url = store_url(store)
    confirm(f"Delete {len(ids)} {'thread' if len(ids) == 1 else 'threads'} for good?", yes=yes)

    async def job() -> list[str]:
        async with opened(url) as threads:
            return [thread for thread in dict.fromkeys(ids) if await threads.delete(thread)]

    deleted = asyncio.run(job())
    missing = [thread for thread in dict.fromkeys(ids) if thread not in deleted]
    if as_json:
        show_json({"deleted": deleted, "missing": missing})
    for thread in missing:
        typer.echo(f"umbel: there is no thread {thread!r} in {shown(url)}", err=True)
    if missing:
        raise typer.Exit(FAILED)


@app.command("gc")
@ends_cleanly
def collect(
    *,
    store: StoreOption = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Checkpoints to keep of each thread; older ones go.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Delete threads not written for so long: 45s, 12h, 30d.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before threads are deleted.")] = False,
    as_json: options.JsonOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Free space: fold old checkpoints away, delete old threads, and what nothing refers to any more.

    Threads in use are left alone.

    \b
    Example:
      umbel threads gc --keep 20 --older-than 90d --dry-run

    \b
    Exit codes: 0 done, 1 the store cannot be read or the answer was no, 2 wrong usage.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from .thread_store import opened, read_duration, store_url
    from .thread_views import show_json

    url, seconds = store_url(store), read_duration(older_than, "--older-than")
    if seconds is not None and not dry_run:
        confirm(f"Delete the threads that were not written for {older_than}?", yes=yes)

    async def job() -> dict[str, Any]:
        async with opened(url) as threads:
            if dry_run:
                return await would_go(threads, keep, seconds)
            return (await threads.collect(keep=keep, older_than=seconds)).model_dump(mode="json")

    freed = asyncio.run(job())
    if as_json:
        show_json({**freed, "dry_run": dry_run})
    else:
        named = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in freed.items() if count)
        typer.echo(f"{'would free' if dry_run else 'freed'}: {named or 'nothing'}")


async def would_go(threads: Threads, keep: int | None, older_than: float | None) -> dict[str, Any]:
    """What a collection would free, as far as the list of threads tells: unused texts and old tombstones are not counted."""
    now = time.time()
    gone = folded = freed = 0
    spared = set() if older_than is None else {one async for one in threads.needed_members(now - older_than)}
    async for thread in threads.every():
        if thread.owner is not None:
            continue
        if older_than is not None and thread.updated_at < now - older_than and thread.thread_id not in spared:
            gone += 1
            folded += thread.checkpoints
            freed += thread.bytes
        elif keep is not None:
            folded += max(0, thread.checkpoints - keep)
    return {"threads": gone, "checkpoints": folded, "bytes": freed}


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere only ``--yes`` is a yes.

    Raises:
        ConfigurationError: nobody can be asked.
        Exit: the answer is no.
    """
    from ...protocol.errors import ConfigurationError

    if yes:
        return
    if not is_terminal():
        raise ConfigurationError("this deletes, and there is no terminal to ask on: say so with --yes")
    if not typer.confirm(question, err=True):
        raise typer.Exit(FAILED)


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()
