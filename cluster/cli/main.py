"""The command ``umbel``: which subcommands there are. Ray and other heavy imports happen inside them."""

from __future__ import annotations

from typing import Annotated

import typer

from . import fleet, fleet_views, jobs, threads
from .attach import attach, cancel, runs
from .demo import demo
from .doctor import doctor
from .drain import drain
from .draw import draw
from .retry_failed import retry_failed
from .run import run
from .services import down, ps
from .submit import submit

app = typer.Typer(
    name="umbel",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for view in (fleet_views.status, fleet_views.report, fleet_views.diff, fleet_views.rm):
    fleet.app.command(view.__name__)(view)
fleet.app.command("retry-failed")(retry_failed)
app.add_typer(fleet.app, name="fleet")
app.add_typer(jobs.app, name="jobs")
app.add_typer(threads.app, name="threads")
app.command("run")(run)
app.command("submit")(submit)
app.command("draw")(draw)
app.command("doctor")(doctor)
app.command("demo")(demo)
app.command("runs")(runs)
app.command("attach")(attach)
app.command("cancel")(cancel)
app.command("ps")(ps)
app.command("down")(down)
app.command("drain")(drain)


def _version(wanted: bool) -> None:
    if wanted:
        from ... import __version__

        typer.echo(f"umbel {__version__}")
        raise typer.Exit


@app.callback()
def umbel(
    *, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False
) -> None:
    """Umbel: fleets of agents on Ray.

    \b
    Example:
      umbel demo
      umbel run "Refund order 4821" --agent my_agents:support
      umbel fleet run tasks.jsonl --agent my_agents:support --out results.jsonl
      umbel draw my_patterns:report
      umbel threads list --store sqlite:///umbel.db
    """  # noqa: D301 - typer needs the real \b


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="umbel")


if __name__ == "__main__":
    main()
