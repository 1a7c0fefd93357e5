"""Held-out pass rates over a home's cycles: an inline image and tables in HTML (pure)."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

TRAFFIC: Final = "all traffic"
_SIZE: Final = (860, 460)
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 190, 46, 40
_BOLD: Final = ' font-weight="bold"'
_LINE_HEIGHT: Final = 15.0
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#7b3294", "#666666",
)  # fmt: skip
_DASHES: Final = ("", "7 3", "2 3")
_MOST_TICKS: Final = 20

Entries = Sequence[Mapping[str, Any]]


def section(entries: Entries) -> str:
    """Return the section about several cycles for the page; "" for one cycle."""
    if len(entries) < 3:
        return ""
    return "\n".join(
        ("<h2>Cycle after cycle</h2>", f"<p>{escape(summary(entries))}</p>", draw(entries),
         _outcomes_table(entries), _figures_table(entries))
    )  # fmt: skip


def summary(entries: Entries) -> str:
    """Return a sentence on the number of promotions and the pass rate of all traffic."""
    promoted = sum(entry["outcome"] == "promoted" for entry in entries)
    first, last = entries[0]["traffic"], entries[-1]["traffic"]
    return (
        f"{promoted} of {len(entries) - 1} cycles promoted an adapter; held-out pass^1 of all "
        f"traffic went from {first:.1%} to {last:.1%}."
    )


def draw(entries: Entries) -> str:
    """Return an SVG with one line per kind, one for all traffic, and marks of promotions."""
    width, height = _SIZE
    lines = _lines(entries)
    parts = [*_axes(entries), *_marks(entries)]
    labels = _spread([_y(values[-1]) for *_, values in lines])
    end = _x(len(entries) - 1, len(entries))
    for (name, colour, style, values), label in zip(lines, labels, strict=True):
        points = " ".join(
            f"{_x(number, len(entries)):.1f},{_y(value):.1f}" for number, value in enumerate(values)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" {style} points="{points}"/>')
        parts.append(
            f'<line x1="{end + 3:.1f}" y1="{_y(values[-1]):.1f}" x2="{end + 22:.1f}" '
            f'y2="{label:.1f}" stroke="{colour}" stroke-width="0.7"/>'
            f'<text x="{end + 26:.1f}" y="{label + 4:.1f}" font-size="12" fill="{colour}"'
            f"{_BOLD if name == TRAFFIC else ''}>{escape(name)} {values[0]:.2f} → "
            f"{values[-1]:.2f}</text>"
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" font-family="sans-serif">'
        f"<title>{escape(summary(entries))}</title>{''.join(parts)}</svg>"
    )


def _lines(entries: Entries) -> list[tuple[str, str, str, list[float]]]:
    """Return (name, colour, style, one value per entry) of each line; all traffic comes last."""
    lines = []
    for number, kind in enumerate(entries[0]["kinds"]):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        values = [entry["kinds"][kind] for entry in entries]
        lines.append((kind, colour, f'stroke-width="1.8"{dashed}', values))
    traffic = [entry["traffic"] for entry in entries]
    return [*lines, (TRAFFIC, "#000000", 'stroke-width="4"', traffic)]


def _axes(entries: Entries) -> list[str]:
    left, right = _x(0, len(entries)), _x(len(entries) - 1, len(entries))
    parts = []
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        parts.append(
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" font-size="11" text-anchor="end">'
            f"{tenth * 10}%</text>"
        )
    for number in range(0, len(entries), 1 + len(entries) // _MOST_TICKS):
        parts.append(
            f'<text x="{_x(number, len(entries)):.1f}" y="{_SIZE[1] - _BOTTOM + 18}" '
            f'font-size="11" text-anchor="middle">{number or "base"}</text>'
        )
    parts.append(
        f'<text x="{(left + right) / 2:.1f}" y="{_SIZE[1] - 6}" font-size="11" '
        'text-anchor="middle">after cycle</text>'
    )
    return parts


def _marks(entries: Entries) -> list[str]:
    parts = []
    for entry in entries[1:]:
        x = _x(entry["number"], len(entries))
        if entry["outcome"] == "promoted":
            parts.append(
                f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{_SIZE[1] - _BOTTOM}" '
                'stroke="#888" stroke-dasharray="3 3"/>'
                f'<path d="M {x - 6:.1f} {_TOP - 8} h 12 l -6 -10 z" fill="#137333"/>'
            )
        else:
            parts.append(
                f'<path d="M {x - 4:.1f} {_TOP - 17} l 8 8 m 0 -8 l -8 8" stroke="#999" '
                'stroke-width="1.6" fill="none"/>'
            )
    parts.append(
        f'<text x="{_LEFT}" y="14" font-size="11" fill="#137333">▲ promoted</text>'
        f'<text x="{_LEFT + 80}" y="14" font-size="11" fill="#777">× ended otherwise</text>'
    )
    return parts


def _x(number: int, count: int) -> float:
    return _LEFT + (_SIZE[0] - _LEFT - _RIGHT) * number / max(1, count - 1)


def _y(value: float) -> float:
    return _SIZE[1] - _BOTTOM - (_SIZE[1] - _TOP - _BOTTOM) * value


def _spread(wanted: Sequence[float]) -> list[float]:
    """Return label heights near the `wanted` ones, but far enough apart for the labels."""
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    heights = [wanted[place] for place in order]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + _LINE_HEIGHT)
    lowest = _SIZE[1] - _LINE_HEIGHT / 2
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], lowest)
        lowest = heights[place] - _LINE_HEIGHT
    spread = dict(zip(order, heights, strict=True))
    return [spread[place] for place in range(len(wanted))]


def build_table(names: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; every column but the first is numeric."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place else ''}>{escape(str(value))}</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><tr>{cells('th', names)}</tr>{body}</table>"


def _outcomes_table(entries: Entries) -> str:
    rows = [
        (entry["number"], entry["capability"] or "", entry["outcome"], entry["adapter"] or "base",
         entry["why"] or "")
        for entry in entries[1:]
    ]  # fmt: skip
    return build_table(("cycle", "job for", "outcome", "who answers then", "why"), rows)


def _figures_table(entries: Entries) -> str:
    names = ["pass^1", *("base" if not entry["number"] else entry["number"] for entry in entries)]
    rows = [(TRAFFIC, *(f"{entry['traffic']:.3f}" for entry in entries))]
    rows += [
        (kind, *(f"{entry['kinds'][kind]:.3f}" for entry in entries))
        for kind in entries[0]["kinds"]
    ]
    return f'<div class="wide">{build_table(names, rows)}</div>'
