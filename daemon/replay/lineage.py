"""Render the graph of an explanation as a self-contained HTML page without a script. Pure. A thing
is a route, adapter, job, task and so on; it is drawn once, in the column of its kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from statistics import fmean
from typing import Any, Final

from consumers.reads.explanation import Node

KINDS: Final = (
    ("route", "#dbe9f6"), ("adapter", "#e3f1dd"), ("job", "#fdf0d5"), ("push", "#fdf0d5"),
    ("cycle", "#f3e3f3"), ("pattern", "#fbe0dd"), ("task", "#e6e6fa"), ("rollout", "#eeeeee"),
)  # fmt: skip
"""Kinds in the order of the columns, each with its colour."""

_OTHER_COLOUR: Final = "#d9efe9"

MOST: Final = 8
"""Most reasons of one kind that are drawn for one thing; the others are only counted."""

_BOX: Final = (200, 40)
_GAP: Final = (70, 12)
_TOP: Final = 28
_NAME: Final = 24
"""Most characters of a name in its box; `_SAID` is that number for the description."""
_SAID: Final = 29

Key = tuple[str, str]
"""Kind and name of a thing, by which it is drawn once."""


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a thing; `x` and `y` are its upper left corner, in pixels."""

    kind: str
    name: str
    said: str
    x: int
    y: int


@dataclass(slots=True)
class Layout:
    """A drawing: its boxes, the edges between them, and its columns."""

    boxes: dict[Key, Box] = field(default_factory=dict)
    edges: list[tuple[Key, Key]] = field(default_factory=list)
    columns: list[tuple[int, str]] = field(default_factory=list)
    """Left edge and kind of each column."""

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height of the drawing."""
        width = max(box.x for box in self.boxes.values()) + _BOX[0]
        return width + 2, max(box.y for box in self.boxes.values()) + _BOX[1] + 2


def node_of(document: Mapping[str, Any]) -> Node:
    """Return the explanation in a document of `kintsugi explain --json`."""
    below = tuple(node_of(child) for child in document["because"])
    return Node(document["node"], document["kind"], document["said"], below)


def compute_layout(root: Node) -> Layout:
    """Place `root` and all its direct and indirect reasons in the drawing."""
    things: dict[Key, str] = {}
    edges: dict[tuple[Key, Key], None] = {}
    layout, kinds = Layout(), _order_kinds(root)
    for above, below in _walk(root, None, kinds):
        key = (below.kind, below.node)
        # A thing on two paths may have its reasons on one of them only.
        if key not in things or below.because:
            things[key] = below.said
        if above is not None:
            edges[above, key] = None
    layout.edges = list(edges)
    rows: dict[Key, float] = {}
    x = 0
    for kind in kinds:
        column = [key for key in things if key[0] == kind]
        if not column:
            continue
        for place, key in enumerate(_sort_column(column, layout.edges, rows)):
            rows[key] = place
            y = _TOP + place * (_BOX[1] + _GAP[1])
            layout.boxes[key] = Box(*key, things[key], x, y)
        layout.columns.append((x, kind))
        x += _BOX[0] + _GAP[0]
    return layout


def _order_kinds(root: Node) -> list[str]:
    """Return all kinds in the order of their columns. A kind outside KINDS comes after the first
    kind that rests on it, or first if it is the kind of `root`."""
    kinds = [kind for kind, _ in KINDS]

    def add(node: Node, place: int) -> None:
        if node.kind not in kinds:
            kinds.insert(place, node.kind)
        for child in node.because:
            add(child, kinds.index(node.kind) + 1)

    add(root, 0)
    return kinds


def _walk(node: Node, above: Key | None, kinds: Sequence[str]) -> Iterator[tuple[Key | None, Node]]:
    yield above, node
    key = (node.kind, node.node)
    for kind, group in groupby(
        sorted(node.because, key=lambda child: kinds.index(child.kind)),
        key=lambda child: child.kind,
    ):
        below = list(group)
        for child in below[:MOST]:
            yield from _walk(child, key, kinds)
        if len(below) > MOST:
            more = f"and {len(below) - MOST:,} more"
            yield key, Node(f"{more} of {node.node}", kind, "not drawn; kintsugi explain --json")


def _sort_column(
    column: Sequence[Key], edges: Sequence[tuple[Key, Key]], rows: Mapping[Key, float]
) -> list[Key]:
    """Sort a column so that each thing is near the middle of the things that rest on it."""
    above: dict[Key, list[float]] = {key: [] for key in column}
    for parent, below in edges:
        if below in above and parent in rows:
            above[below].append(rows[parent])
    return sorted(column, key=lambda key: fmean(above[key] or [0.0]))


def svg(layout: Layout) -> str:
    """Return the drawing as SVG, to be put into a page."""
    width, height = layout.size
    edges = "".join(
        _curve(layout.boxes[parent], layout.boxes[child]) for parent, child in layout.edges
    )
    boxes = "".join(_draw_box(box) for box in layout.boxes.values())
    heads = "".join(
        f'<text x="{x}" y="14" font-size="13" fill="#555">{kind}</text>'
        for x, kind in layout.columns
    )
    return (
        f'<svg class="lineage" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="what rests on what" font-family="ui-monospace, monospace">'
        f'{heads}<g fill="none" stroke="#999">{edges}</g>{boxes}</svg>'
    )


def _curve(start: Box, other: Box) -> str:
    y, end = start.y + _BOX[1] // 2, other.y + _BOX[1] // 2
    x, there, bend = start.x + _BOX[0], other.x, _GAP[0] // 2
    if other.x < start.x:
        # The edge leads back to a column further left, as from a job to its parent adapter.
        x, there, bend = start.x, other.x + _BOX[0], -bend
    return f'<path d="M{x},{y} C{x + bend},{y} {there - bend},{end} {there},{end}"/>'


def _draw_box(box: Box) -> str:
    colour = dict(KINDS).get(box.kind, _OTHER_COLOUR)
    width, height = _BOX
    return (
        f'<g class="box"><title>{escape(f"{box.kind} {box.name}: {box.said}")}</title>'
        f'<rect x="{box.x}" y="{box.y}" width="{width}" height="{height}" rx="5" fill="{colour}" '
        f'stroke="#888"/><text x="{box.x + 8}" y="{box.y + 17}" font-size="12">'
        f"{escape(_short(box.name, _NAME))}</text>"
        f'<text x="{box.x + 8}" y="{box.y + 32}" font-size="10" fill="#444">'
        f"{escape(_short(box.said, _SAID))}</text></g>"
    )


def _short(text: str, letters: int) -> str:
    """Shorten a text in the middle to `letters` characters: ids differ at either end."""
    return text if len(text) <= letters else f"{text[: letters - 9]}…{text[-8:]}"


_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #1c1c1c; background: #fff; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin-top: 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0;
  border-bottom: 1px solid #ddd; } td { overflow-wrap: anywhere; }
dl { max-width: 60rem; } dt { font-weight: 600; } dd { margin: 0 0 .5rem 1.5rem; }
"""


_MANY: Final = ("task", "rollout")
"""Kinds with too many things for a sentence; only the drawing and the table list them."""


def _words(layout: Layout) -> str:
    items = "".join(
        f"<dt>{escape(f'{box.kind} {box.name}')}</dt><dd>{escape(box.said)}</dd>"
        for box in layout.boxes.values()
        if box.kind not in _MANY
    )
    return f"<dl>{items}</dl>" if items else ""


def page(root: Node) -> str:
    """Return the page as one HTML file: no script, no address, nothing to fetch."""
    layout = compute_layout(root)
    title = f"Why {root.kind} {root.node} is as it is"
    rows = "".join(
        f"<tr><td>{escape(box.kind)}</td><td>{escape(box.name)}</td><td>{escape(box.said)}</td></tr>"
        for box in layout.boxes.values()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{_words(layout)}\n"
        f'<div class="wide">{svg(layout)}</div>\n'
        "<table><thead><tr><th>kind</th><th>name</th><th>what is known</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></body></html>\n"
    )
