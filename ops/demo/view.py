"""The terminal picture of the demo: seven stops, a curve, policies, earlier cycles (pure)."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from consumers.reads.explanation import describe_target
from events.lifecycle import State
from ops.demo.watch import DemoState, PastCycle, Point

STOPS: Final = ("rollout", "event", "pattern", "tasks", "training", "gate", "route")
WIDTH: Final = 100
_BAR: Final = 24
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_WINDOW: Final = 4
_SHOWN: Final = 3
_UNGATED: Final = (State.PRODUCED, State.STAGED, State.EVALUATED, State.GATED)
"""States of an adapter before it has passed the gate and got a share of sessions."""


def picture(seen: DemoState, seconds: float) -> RenderableType:
    """Return the picture for a terminal."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=9, style="bold")
    table.add_column(ratio=1)
    now = stop(seen)
    for number, (name, words) in enumerate(zip(STOPS, describe_stops(seen), strict=True)):
        mark = "●" if number < now or seen.over else "▶" if number == now else "·"
        style = "green" if mark == "●" else "yellow" if mark == "▶" else "dim"
        table.add_row(Text(mark, style), Text(name, "" if number <= now else "dim"), Text(words))
    parts: list[RenderableType] = [table]
    if seen.curve:
        parts += [Text(), *_curves(seen)]
    if seen.live:
        parts += [Text(), _policies(seen)]
    if seen.past:
        parts += [Text(), Text(f"before: {describe_past(seen.past)}", "dim")]
    several = f"cycle {number_of(seen)} of {seen.cycles}, " if seen.cycles > 1 else ""
    title = f"kintsugi, {several}{int(seconds) // 60}:{int(seconds) % 60:02d}"
    return Panel(Group(*parts), title=title, width=WIDTH, title_align="left")


def number_of(seen: DemoState) -> int:
    """Return the number of the running cycle, or of the next one."""
    return min(len(seen.past) + 1, seen.cycles)


def describe_past(past: Sequence[PastCycle]) -> str:
    """Return a text of the number, capability and outcome of each cycle."""
    return ", ".join(
        " ".join(filter(None, (str(cycle.number), cycle.capability, _readable(cycle.outcome))))
        for cycle in past
    )


def _readable(outcome: str) -> str:
    return outcome.replace("_", " ")


def stop(seen: DemoState) -> int:
    """Return the index (0 to 6) of the loop's stop that is at work."""
    if seen.cycle is None:
        return 0
    if seen.cycle.directive is None:
        return 2
    if seen.job is None:
        return 3
    if seen.job.outcome is None or seen.adapter is None:
        return 4
    return 5 if seen.adapter.state in _UNGATED else 6


def describe_stops(seen: DemoState) -> list[str]:
    """Return a text for every stop of the loop, in order."""
    return [
        _rollouts(seen),
        f"{seen.events:,} in the log",
        _patterns(seen),
        _tasks(seen),
        _training(seen),
        _gate(seen),
        _route(seen),
    ]


def steps(seen: DemoState) -> Iterator[tuple[str, str]]:
    """Yield (key, line) for output without a terminal; the caller prints a key's first line."""
    if seen.cycles == 1:
        yield from _steps(seen)
        return
    for cycle in seen.past:
        yield f"{cycle.number} end", f"ended     {describe_past([cycle])}"
    number = number_of(seen)
    for name, words in _steps(seen):
        yield f"{number} {name}", f"{number}/{seen.cycles}  {words}"


def _steps(seen: DemoState) -> Iterator[tuple[str, str]]:
    if seen.cycle is None:
        yield f"waiting {seen.rollouts // 60}", f"rollout   {_rollouts(seen)}"
        return
    yield "cycle", f"cycle     {seen.cycle.trigger}: {seen.cycle.reason}"
    if seen.cycle.directive is not None:
        yield "pattern", f"pattern   {_patterns(seen)}"
    if seen.job is not None:
        yield "tasks", f"tasks     {_tasks(seen)}"
        if seen.curve:
            yield f"training {len(seen.curve) // 8}", f"training  {_training(seen)}"
    if seen.trial is not None:
        part = 4 * seen.trial.played // max(1, seen.trial.planned)
        yield f"gate {seen.trial.number} {part}", f"gate      {_gate(seen)}"
    if seen.routes:
        yield f"route {seen.turned}", f"route     {_route(seen)}"
    if seen.over:
        yield "over", f"cycle     {seen.cycle.outcome}: {seen.cycle.ended_because}"


def _rollouts(seen: DemoState) -> str:
    passed = sum(tally.passed for tally in seen.live)
    rate = f", {passed / seen.rollouts:.0%} of them well" if seen.rollouts else ""
    # Only the nearest trigger; kintsugi status shows all.
    nearest = seen.missing[-1].partition(", or ")[0] if seen.missing else ""
    missing = f"; a cycle needs {nearest}" if nearest else ""
    return f"{seen.rollouts:,} customers served{rate}{missing}"


def _patterns(seen: DemoState) -> str:
    if not seen.patterns:
        return "no round was closed yet"
    first, more = seen.patterns[:_SHOWN], len(seen.patterns) - _SHOWN
    words = ", ".join(f"{line.pattern} {line.priority:.2f}" for line in first)
    return f"{words}{f' and {more} more' if more > 0 else ''}"


def _tasks(seen: DemoState) -> str:
    cycle = seen.cycle
    if cycle is None or cycle.directive is None:
        return ""
    return f"{cycle.accepted} written and verified, {cycle.rejected} rejected"


def _training(seen: DemoState) -> str:
    if seen.job is None:
        return ""
    if seen.job.outcome is not None:
        return f"{seen.job.outcome}: {seen.job.rollouts:,} rollouts, {seen.job.steps} steps"
    budget, done = seen.job.spec.sampler.rollouts, seen.curve[-1].rollouts if seen.curve else 0
    informative = f", {seen.curve[-1].informative:.0%} of groups informative" if seen.curve else ""
    return f"{bar(done, budget)} {done:,} of {budget:,} rollouts{informative}"


def _gate(seen: DemoState) -> str:
    adapter = seen.adapter
    if adapter is None:
        return ""
    if adapter.gate is not None and adapter.gate.decision != "EXTEND":
        report = adapter.gate
        p_value = "" if report.p_value is None else f", p = {report.p_value:.2g}"
        power = "" if report.plan is None else f", power {report.plan.power:.0%}"
        targets = "".join(f"; {describe_target(target.model_dump())}" for target in report.targets)
        return f"{report.decision} over {report.tasks} tasks of the target{p_value}{power}{targets}"
    if adapter.state is State.REJECTED:
        return f"rejected: {adapter.reason}"
    if seen.trial is None:
        return f"{adapter.adapter} is {adapter.state}"
    what = "pilot" if seen.trial.number == 0 else f"look {seen.trial.number}"
    done, whole = seen.trial.played, seen.trial.planned
    return f"{bar(done, whole)} {done:,} of {whole:,} rollouts, {what}"


def _route(seen: DemoState) -> str:
    if seen.adapter is not None and seen.adapter.state is State.REJECTED:
        return "unchanged: the incumbent stays"
    shares = ", ".join(f"{route.adapter or route.base} {route.share:.0%}" for route in seen.routes)
    return f"{shares} ({seen.turned})" if shares else ""


def _curves(seen: DemoState) -> Iterator[Text]:
    for name, values in (
        ("written tasks", smooth([point.aimed for point in seen.curve])),
        ("traffic", smooth([point.traffic for point in seen.curve])),
    ):
        if values:
            line = spark(values, WIDTH - 40)
            yield Text(f"{name:>14} {line} {values[0]:.0%} → {values[-1]:.0%} pass")


def _policies(seen: DemoState) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("who answers", "customers", "served well", ""):
        table.add_column(name, justify="left" if name in ("who answers", "") else "right")
    for tally in seen.live:
        table.add_row(
            tally.policy, f"{tally.judged:,}", f"{tally.rate:.1%}", bar(tally.passed, tally.judged)
        )
    return table


def bar(done: int, whole: int) -> str:
    """Return a progress bar."""
    filled = round(_BAR * min(1.0, done / max(1, whole)))
    return "━" * filled + "╌" * (_BAR - filled)


def smooth(values: Sequence[float | None]) -> list[float]:
    """Return moving means over the last few values; None values are left out."""
    known = [value for value in values if value is not None]
    return [
        sum(known[max(0, end - _WINDOW) : end]) / min(_WINDOW, end)
        for end in range(1, len(known) + 1)
    ]


def spark(values: Sequence[float], width: int) -> str:
    """Return a small chart of values between 0 and 1: at most `width` block characters."""
    step = max(1.0, len(values) / width)
    shown = [values[int(place * step)] for place in range(int(len(values) / step))]
    return "".join(_BLOCKS[min(7, int(value * 8))] for value in shown)


def curve_points(points: Sequence[Point]) -> list[tuple[int, float]]:
    """Return (rollouts, smoothed pass rate on written tasks) of each batch."""
    known = [point for point in points if point.aimed is not None]
    rates = smooth([point.aimed for point in known])
    return [(point.rollouts, rate) for point, rate in zip(known, rates, strict=True)]
