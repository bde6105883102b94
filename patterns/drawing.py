"""Drawings of agents and patterns: Mermaid, ASCII, DOT, and through Graphviz SVG and PNG. Source: PAT-63.

Every function takes what is to be drawn, or its structure (``structure.py``). A node that is a pattern itself is drawn as a
box with what is inside.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from ..protocol.errors import ConfigurationError, MissingExtra
from .structure import Edge, Node, Structure, structure_of

Format = Literal["mermaid", "ascii", "dot", "svg", "png"]
FORMATS: tuple[Format, ...] = ("mermaid", "ascii", "dot", "svg", "png")
ANYWHERE = "(wherever the code says)"
IMAGE_SECONDS = 60.0
_MERMAID_NODES = {
    "start": ("([", "])"),
    "end": ("([", "])"),
    "agent": ("(", ")"),
    "auxiliary": ("{{", "}}"),
    "function": ("[[", "]]"),
}
_MERMAID_EDGES = {"plain": "-->", "barrier": "==>"}
_DOT_SHAPES = {"start": "oval", "end": "oval", "agent": "box", "auxiliary": "hexagon", "function": "component"}
_DOT_STYLES = {"plain": "solid", "barrier": "bold"}
_MERMAID_ESCAPES = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;", "\\": "#92;", "\n": "<br/>", "\r": None}
)


def draw(what: Any, format: Format = "mermaid") -> str | bytes:  # noqa: A002 - the usual word
    """A drawing: text, or the bytes of a PNG.

    Raises:
        ConfigurationError: there is no such format.
        MissingExtra: an image needs the program ``dot`` of Graphviz.
    """
    if format == "mermaid":
        return draw_mermaid(what)
    if format == "ascii":
        return draw_ascii(what)
    if format == "dot":
        return draw_dot(what)
    if format not in FORMATS:
        raise ConfigurationError(f"format={format!r} is not known: use {', '.join(FORMATS)}")
    image = draw_image(what, format)
    return image if format == "png" else image.decode()


def draw_mermaid(what: Any) -> str:
    """A Mermaid flowchart. Dashed edges may be taken, thick ones wait for each other."""
    return "\n".join(["flowchart TD", *_mermaid(_seen(what), "n", 1)]) + "\n"


def _mermaid(structure: Structure, prefix: str, depth: int) -> Iterator[str]:
    indent = "    " * depth
    ids = {node.name: f"{prefix}{number}" for number, node in enumerate(structure.nodes)}
    for node in structure.nodes:
        key = ids[node.name]
        if node.inner is not None:
            yield f'{indent}subgraph {key}["{_title(node).translate(_MERMAID_ESCAPES)}"]'
            yield from _mermaid(node.inner, f"{key}_", depth + 1)
            yield f"{indent}end"
            continue
        left, right = _MERMAID_NODES.get(node.kind, ("[", "]"))
        yield f'{indent}{key}{left}"{_title(node).translate(_MERMAID_ESCAPES)}"{right}'
    ends = _ends(structure, ids)
    for edge in structure.edges:
        arrow = _MERMAID_EDGES.get(edge.kind, "-.->")
        label = f'|"{_label(edge).translate(_MERMAID_ESCAPES)}"|' if _label(edge) else ""
        yield f"{indent}{ends[edge.source][1]} {arrow}{label} {ends[edge.target][0]}"


def draw_dot(what: Any) -> str:
    """A directed graph in Graphviz's language; boxes are clusters."""
    body = _dot(_seen(what), "n", 1)
    head = ["digraph {", "    compound=true", '    node [fontname="sans-serif"]', '    edge [fontname="sans-serif"]']
    return "\n".join([*head, *body, "}"]) + "\n"


def _dot(structure: Structure, prefix: str, depth: int) -> Iterator[str]:
    indent = "    " * depth
    ids = {node.name: f"{prefix}{number}" for number, node in enumerate(structure.nodes)}
    for node in structure.nodes:
        key, label = ids[node.name], _quoted(_title(node))
        if node.inner is not None:
            yield f"{indent}subgraph cluster_{key} {{"
            yield f"{indent}    label={label}"
            yield from _dot(node.inner, f"{key}_", depth + 1)
            yield f"{indent}}}"
            continue
        rounded = ", style=rounded" if node.kind == "agent" else ""
        yield f"{indent}{key} [label={label}, shape={_DOT_SHAPES.get(node.kind, 'box')}{rounded}]"
    ends = _ends(structure, ids)
    inside = {node.name for node in structure.nodes if node.inner is not None}
    for edge in structure.edges:
        facts = [f"style={_DOT_STYLES.get(edge.kind, 'dashed')}"]
        facts += [f"label={_quoted(_label(edge))}"] if _label(edge) else []
        facts += [f"ltail=cluster_{ids[edge.source]}"] if edge.source in inside else []
        facts += [f"lhead=cluster_{ids[edge.target]}"] if edge.target in inside else []
        yield f"{indent}{ends[edge.source][1]} -> {ends[edge.target][0]} [{', '.join(facts)}]"


def draw_ascii(what: Any) -> str:
    """A tree of text: each node with where it leads, ``->`` always and ``~>`` perhaps; what is inside a node is below it."""
    structure = _seen(what)
    head = f"{structure.name}: {structure.type}" if structure.type else structure.name
    return "\n".join([_plain(head), *_ascii(structure, "")]) + "\n"


def _ascii(structure: Structure, indent: str) -> Iterator[str]:
    leaving: dict[str, dict[tuple[str, str], list[str]]] = {}
    shown = {node.name: _name(node) for node in structure.nodes}
    for edge in structure.edges:
        arrow = "->" if edge.kind in {"plain", "barrier"} else "~>"
        leaving.setdefault(edge.source, {}).setdefault((arrow, _label(edge)), []).append(shown[edge.target])
    nodes = [node for node in structure.nodes if node.kind not in {"end", "anywhere"}]
    for node in nodes:
        last = node is nodes[-1]
        leads = [
            f"{arrow} {', '.join(targets)}{f' [{label}]' if label else ''}"
            for (arrow, label), targets in leaving.get(node.name, {}).items()
        ]
        kind = "" if node.kind == "start" else f": {_kind(node)}"
        yield _plain(f"{indent}{'`' if last else '|'}-- {_name(node)}{kind} {'; '.join(leads)}".rstrip())
        if node.inner is not None:
            yield from _ascii(node.inner, f"{indent}{' ' if last else '|'}   ")


def draw_image(what: Any, format: Literal["svg", "png"] = "svg") -> bytes:  # noqa: A002 - the usual word
    """An image, made by the program ``dot`` of Graphviz.

    Raises:
        MissingExtra: it is not installed.
        ConfigurationError: it failed; the error has its own words.
    """
    program = shutil.which("dot")
    if program is None:
        raise MissingExtra(
            f"{format} needs the program 'dot' of Graphviz: apt-get install graphviz, brew install graphviz, or "
            "https://graphviz.org/download; the formats mermaid, ascii and dot need nothing"
        )
    command = [program, f"-T{format}"]
    made = subprocess.run(command, input=draw_dot(what).encode(), capture_output=True, timeout=IMAGE_SECONDS, check=False)
    if made.returncode:
        raise ConfigurationError(f"dot ended with {made.returncode}: {made.stderr.decode(errors='replace').strip()}")
    return made.stdout


def _seen(what: Any) -> Structure:
    return _completed(what if isinstance(what, Structure) else structure_of(what))


def _completed(structure: Structure) -> Structure:
    """With a node for wherever else a graph may go that does not say where."""
    nodes = [replace(node, inner=_completed(node.inner)) if node.inner is not None else node for node in structure.nodes]
    edges = list(structure.edges)
    sources: tuple[str, ...] = getattr(structure, "open_ended", ())
    if sources:
        nodes.insert(-1, Node(ANYWHERE, "anywhere"))
        edges += [Edge(source, ANYWHERE, "conditional") for source in sources]
    return Structure(structure.name, tuple(nodes), tuple(edges), structure.type)


def _ends(structure: Structure, ids: dict[str, str]) -> dict[str, tuple[str, str]]:
    """For each node the ids that edges to it and from it are drawn at: of a box its start and its end."""
    found = {}
    for node in structure.nodes:
        key, inner = ids[node.name], node.inner
        found[node.name] = (key, key) if inner is None else (f"{key}_0", f"{key}_{len(inner.nodes) - 1}")
    return found


def _name(node: Node) -> str:
    return {"start": "START", "end": "END"}.get(node.kind, node.name)


def _kind(node: Node) -> str:
    return (node.inner.type if node.inner is not None else "") or node.kind


def _title(node: Node) -> str:
    """A node's text: its name, and what it is where that is not seen from its shape."""
    return f"{node.name}: {_kind(node)}" if node.inner is not None else _name(node)


def _label(edge: Edge) -> str:
    return edge.label or ("each" if edge.kind == "send" else "")


def _plain(line: str) -> str:
    return line.replace("\n", " ").replace("\r", " ")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")
    return f'"{escaped}"'


__all__ = ["FORMATS", "Format", "draw", "draw_ascii", "draw_dot", "draw_image", "draw_mermaid"]
