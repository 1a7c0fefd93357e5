"""The demo's report: a document for programs and one self-contained page (pure).

The document's names are stable for scripts; fields may be added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Final

from consumers.reads.explanation import Node, describe_evidence, describe_target
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.rollouts import PatternLine
from consumers.reads.serving import AdapterRow
from daemon.replay import lineage
from daemon.serving.lift import Lift
from daemon.status.stages import describe_lift
from envs.statistics import Interval
from ops.demo import heldout, progress_chart
from ops.demo.heldout import Outcomes
from ops.demo.progress_chart import build_table
from ops.demo.view import curve_points
from ops.demo.watch import Point, Tally

_PLOT: Final = (640, 240)
_EDGE: Final = 36


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """A trained and measured policy."""

    curve: Sequence[Point]
    outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that the report needs."""

    cycle: CycleRow
    patterns: Sequence[PatternLine]
    live: Sequence[Tally]
    job: JobRow
    adapter: AdapterRow
    before: Outcomes
    after: PolicyResult
    general: PolicyResult | None
    explained: Node
    rebuild_equal: bool
    mix: Mapping[str, float]
    cycles: Sequence[Mapping[str, Any]]
    """The document's `cycles` (ops/demo/progress.py)."""
    lift: Lift | None = None


def build_report(story: Story, seconds: float) -> dict[str, Any]:
    """Return the report's document for a demo that took `seconds`."""
    before, after, mix = story.before, story.after.outcomes, story.mix
    target = story.adapter.capability or ""
    gain = heldout.gain(before, after, target)
    return {
        "seconds": round(seconds, 1),
        "outcome": story.cycle.outcome,
        "reason": story.cycle.ended_because,
        "traffic": _both(before, after, mix)
        | dict(
            zip(("low", "high"), _bounds(heldout.overall_gain(before, after, mix)), strict=True)
        ),
        "target": {
            "capability": target,
            "traffic_share": mix.get(target, 0.0),
            "tasks": len(before[target]),
            "before": heldout.pass_interval(before, target).value,
            "after": heldout.pass_interval(after, target).value,
            "low": gain.low,
            "high": gain.high,
            "before_interval": _bounds(heldout.pass_interval(before, target)),
            "after_interval": _bounds(heldout.pass_interval(after, target)),
        },
        "others": {
            kind: {
                "before": heldout.pass_rate(before, kind),
                "after": heldout.pass_rate(after, kind),
                "gain_interval": _bounds(heldout.gain(before, after, kind)),
            }
            for kind in mix
            if kind != target
        },
        "patterns": [asdict(line) for line in story.patterns],
        "tasks_written": story.cycle.accepted,
        "tasks_rejected": story.cycle.rejected,
        "adapter": story.adapter.adapter,
        "gate": _gate(story.adapter),
        "rebuild_equal": story.rebuild_equal,
        "lift": None if story.lift is None else asdict(story.lift),
        "live": [{**asdict(line), "rate": line.rate} for line in story.live],
        "training": {
            "rollouts": story.job.rollouts,
            "steps": story.job.steps,
            "seconds": story.job.seconds,
            "informative": story.after.curve[-1].informative if story.after.curve else None,
            "curve": curve_points(story.after.curve),
        },
        "general": None if story.general is None else _general(story, story.general, target),
        "explained": asdict(story.explained),
        "cycles": list(story.cycles),
    }


def _both(before: Outcomes, after: Outcomes, mix: Mapping[str, float]) -> dict[str, Any]:
    return {"before": heldout.overall(before, mix), "after": heldout.overall(after, mix)}


def _bounds(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _gate(adapter: AdapterRow) -> dict[str, Any]:
    if adapter.gate is None:
        return {"decision": "NONE", "p_value": None, "tasks": 0}
    return adapter.gate.model_dump(mode="json")


def _general(story: Story, general: PolicyResult, target: str) -> dict[str, Any]:
    before, after, mix = story.before, general.outcomes, story.mix
    return {
        "traffic": _both(before, after, mix),
        "target": {"before": heldout.pass_interval(before, target).value,
                   "after": heldout.pass_interval(after, target).value},
        "others": {kind: heldout.pass_rate(after, kind) for kind in mix if kind != target},
        "curve": [(point.rollouts,
        point.traffic) for point in general.curve if point.traffic is not None],
    }  # fmt: skip


_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1c1c; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } ul { padding-left: 1.2rem; } small { color: #555; }
svg.lineage { width: auto; } .wide { overflow-x: auto; }
details > summary { cursor: pointer; }
"""


def page(report: Mapping[str, Any]) -> str:
    """Return the document as one self-contained page of HTML without script."""
    target = report["target"]
    headline = (
        f"{target['capability']}: {target['before']:.0%} → {target['after']:.0%} of tasks passed"
    )
    graph = lineage.svg(lineage.compute_layout(lineage.node_of(report["explained"])))
    parts = [
        f"<h1>{escape(headline)}</h1>",
        f"<p>{escape(_summary(report))}</p>",
        progress_chart.section(report["cycles"]),
        "<h2>Held-out tasks</h2>",
        _holdout_table(report),
        "<h2>Training</h2>",
        plot(_lines(report)),
        "<h2>What failed before</h2>",
        build_table(
            ("pattern", "failures", "attempts", "priority"),
            [(p["pattern"], p["failures"], p["attempts"], f"{p['priority']:.3f}")
             for p in report["patterns"]],
        ),
        "<h2>The gate</h2>",
        f"<p>{escape(gate_words(report['gate']))}</p>",
        _checks(report["gate"]),
        "<h2>Who answered customers</h2>",
        build_table(
            ("policy", "customers", "served well"),
            [(tally["policy"], tally["judged"],
            f"{tally['rate']:.1%}") for tally in report["live"]],
        ),
        lift_section(report),
        "<h2>Why this adapter</h2>",
        f'<div class="wide">{graph}</div>',
        f"<ul>{_node(report['explained'], open_=True)}</ul>",
    ]  # fmt: skip
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head>\n<body>{body}</body>"
        "</html>\n"
    )


def _summary(report: Mapping[str, Any]) -> str:
    target, traffic = report["target"], report["traffic"]
    return (
        f"{report['adapter']}, {report['outcome']}: {report['reason']} "
        f"The gain on the target is between {target['low']:+.1%} and {target['high']:+.1%} (95 %); "
        f"all traffic went from {traffic['before']:.1%} to {traffic['after']:.1%}. "
        f"{report['tasks_written']} tasks were written, {report['tasks_rejected']} rejected. "
        f"{report['seconds']:.0f} s in all. Tables rebuilt from the log are "
        f"{'equal' if report['rebuild_equal'] else 'NOT equal'}."
    )


def _holdout_table(report: Mapping[str, Any]) -> str:
    target, general = report["target"], report["general"]
    rows = [(f"{target['capability']} (target)", target["before"], target["after"],
             general and general["target"]["after"])]  # fmt: skip
    rows += [
        (kind, item["before"], item["after"], general and general["others"][kind])
        for kind, item in report["others"].items()
    ]
    traffic = report["traffic"]
    rows.append(("all traffic", traffic["before"], traffic["after"],
                 general and general["traffic"]["after"]))  # fmt: skip
    names: tuple[str, ...] = ("kind", "before", "after")
    names = (*names, "general RL, same budget") if general else names
    return build_table(
        names,
        [(name, *(f"{item:.1%}" for item in rest if item is not None)) for name, *rest in rows],
    )


def lift_section(report: Mapping[str, Any]) -> str:
    """Return the page's section on the cumulative lift; "" without a holdout."""
    if report["lift"] is None:
        return ""
    lift = report["lift"]
    sentence = (
        f"{describe_lift(lift)}. {lift['share']:.0%} of the sessions stay with the base; the "
        "bounds hold with 95 % however often they are read."
    )
    return f"<h2>Won live since the first promotion</h2>\n<p>{escape(sentence)}</p>"


def gate_words(gate: Mapping[str, Any]) -> str:
    """Return the gate's decision as one sentence."""
    words = f"{gate['decision']} over {gate['tasks']} tasks of the target"
    if gate["p_value"] is not None:
        words += f", p = {gate['p_value']:.2g}"
    if plan := gate.get("plan"):
        words += (
            f"; {plan['planned']} tasks and {plan['trials']} trials each were planned, to find a "
            f"gain of {plan['gain']:g} with a chance of {plan['power']:.0%}"
        )
    words += "".join(f"; {describe_target(target)}" for target in gate.get("targets", ()))
    if gate.get("evidence"):
        words += f"; {describe_evidence(gate['evidence'])}"
    return f"{words}."


def _checks(gate: Mapping[str, Any]) -> str:
    return build_table(
        ("check", "verdict", "value", "lower bound", "limit", "tasks"),
        [(check["name"], check["verdict"], f"{check['value']:+.3f}",
          "" if check["low"] is None else f"{check['low']:+.3f}", f"{check['limit']:+.3f}",
          check["tasks"])
         for check in gate.get("checks", ())],
    )  # fmt: skip


def _node(node: Mapping[str, Any], *, open_: bool = False) -> str:
    words = f"{escape(node['kind'])} <b>{escape(node['node'])}</b> {escape(node['said'])}"
    if not node["because"]:
        return f"<li>{words}</li>"
    below = "".join(_node(child, open_=child["kind"] != "pattern") for child in node["because"])
    state = " open" if open_ else ""
    return f"<li><details{state}><summary>{words}</summary><ul>{below}</ul></details></li>"


def _lines(report: Mapping[str, Any]) -> list[tuple[str, str, Sequence[Sequence[float]]]]:
    lines = [("written tasks, while it trained", "#b8860b", report["training"]["curve"])]
    if report["general"] is not None:
        lines.append(("general RL, on its own tasks", "#4a6fa5", report["general"]["curve"]))
    return lines


def plot(lines: Sequence[tuple[str, str, Sequence[Sequence[float]]]]) -> str:
    """Return an inline SVG of pass rates over rollouts; `lines` are (name, colour, points)."""
    width, height = _PLOT
    most = max((point[0] for _, _, points in lines for point in points), default=1)

    def at(rollouts: float, rate: float) -> str:
        x = _EDGE + (width - 2 * _EDGE) * rollouts / most
        return f"{x:.1f},{height - _EDGE - (height - 2 * _EDGE) * rate:.1f}"

    drawn = []
    for share in (0.0, 0.5, 1.0):
        x, _, y = at(0, share).partition(",")
        drawn.append(
            f'<line x1="{x}" y1="{y}" x2="{width - _EDGE}" y2="{y}" stroke="#ddd"/>'
            f'<text x="2" y="{y}" font-size="11">{share:.0%}</text>'
        )
    for number, (name, colour, points) in enumerate(lines):
        path = " ".join(at(point[0], point[1]) for point in points)
        drawn.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
            f'<text x="{_EDGE}" y="{14 + 14 * number}" font-size="12" fill="{colour}">'
            f"{escape(name)}</text>"
        )
    drawn.append(
        f'<text x="{width - _EDGE}" y="{height - 8}" font-size="11" text-anchor="end">'
        f"{most:,.0f} rollouts</text>"
    )
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(drawn)}</svg>'
