"""``umbel draw``."""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .ending import USAGE, ends_cleanly, fail, set_up_logging


class Format(StrEnum):
    """How to draw."""

    ASCII = "ascii"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"
    PNG = "png"


SUFFIXES = {
    ".txt": Format.ASCII,
    ".mmd": Format.MERMAID,
    ".mermaid": Format.MERMAID,
    ".dot": Format.DOT,
    ".gv": Format.DOT,
    ".svg": Format.SVG,
    ".png": Format.PNG,
}


@ends_cleanly
def draw(
    pattern: Annotated[str, typer.Argument(help="What to draw, as module:name; the working directory is searched.")],
    *,
    how: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="Default: what the ending of the file says, or ascii. svg and png need Graphviz."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default is standard output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print nodes and edges as JSON instead of a drawing.")] = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Draw a pattern, or an agent with the agents and tools that it calls. Nothing is run.

    \b
    Example:
      umbel draw my_patterns:report
      umbel draw my_patterns:report -o report.svg
      umbel draw my_patterns:report --format mermaid >> README.md
      umbel draw my_patterns:report --json | jq -r '.nodes[].name'

    \b
    Exit codes: 0 drawn, 2 there is nothing to draw, or Graphviz is missing.
    """  # noqa: D301 - typer needs the real \b
    set_up_logging(verbose)
    from ...patterns import drawing
    from ...patterns.structure import structure_of
    from ..loading import load_agent

    structure = _structure(load_agent(pattern, "draw"), structure_of, pattern)
    if as_json:
        made: str | bytes = json.dumps(dataclasses.asdict(structure), ensure_ascii=False) + "\n"
    else:
        chosen = how or (SUFFIXES.get(out.suffix.lower()) if out is not None else None) or Format.ASCII
        if chosen is Format.PNG and out is None and sys.stdout.isatty():
            raise fail("a PNG is not for a terminal; give a file: -o drawing.png", USAGE)
        made = drawing.draw(structure, chosen.value)
    if out is not None:
        _write(out, made)
    else:
        typer.echo(made, nl=False)


def _structure(loaded: Any, structure_of: Any, spec: str) -> Any:
    from ...protocol.errors import ConfigurationError

    try:
        return structure_of(loaded)
    except TypeError as error:
        raise ConfigurationError(f"draw {spec!r}: {error}") from None


def _write(out: Path, made: str | bytes) -> None:
    from ...protocol.errors import ConfigurationError

    try:
        out.write_bytes(made if isinstance(made, bytes) else made.encode())
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror or error}") from None
