"""What the runs of a folder show: tables in Markdown, learning curves as an image.

Every figure is a mean over seeds with its 95 % interval by the hierarchical bootstrap
(bootstrap.py); a difference between arms is taken task by task. Only seeds that all compared arms
have finished enter, and how many those are is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from envs.shop.kinds import PLAIN
from envs.statistics import Interval
from events.errors import KintsugiError
from ops.learning import bootstrap
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval, replicates
from ops.learning.evaluation import Outcomes
from ops.learning.results import Run, Step
from ops.learning.settings import ARMS, WEAK, Arm, traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRAINED: Final[tuple[Arm, ...]] = ("a", "b", "c", "d")
_COLOURS: Final[Mapping[Arm, str]] = {"a": "C0", "b": "C1", "c": "C2", "d": "C3"}
_WINDOW: Final = 8
"""Steps whose informative groups are averaged in a curve."""


class NothingToReport(KintsugiError):
    """No base run, or no run of an arm on a seed that has one."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """All runs on one traffic."""

    capabilities: str
    share: float
    runs: Mapping[Arm, Mapping[int, Run]]
    """Arm -> seed -> run."""

    @property
    def title(self) -> str:
        """What traffic it is."""
        return f"{self.capabilities} capabilities, {self.share:.0%} of the traffic"

    @property
    def arms(self) -> list[Arm]:
        """The trained ones that have runs."""
        return [arm for arm in _TRAINED if self.runs.get(arm)]

    @property
    def seeds(self) -> list[int]:
        """Those that the base and every arm have."""
        present = [set(self.runs[arm]) for arm in ("base", *self.arms) if arm in self.runs]
        return sorted(set.intersection(*present))

    @property
    def budgets(self) -> list[int]:
        """The nominal ones that policies were evaluated at, the warm start's own left out."""
        runs = [run for arm in self.arms if arm != "c" for run in self.runs[arm].values()]
        return sorted({evaluation.budget for run in runs for evaluation in run.evaluations})

    def task_rates(self, arm: Arm, budget: int | None, k: int) -> TaskRates | None:
        """pass^k of an arm after a budget (None: the last); None where a seed has none there."""
        seed_outcomes = [self._outcomes(self.runs[arm][seed], budget) for seed in self.seeds]
        if any(outcomes is None for outcomes in seed_outcomes):
            return None
        return compute_task_rates(
            [outcomes for outcomes in seed_outcomes if outcomes is not None], k
        )

    def passive(self) -> TaskRates:
        """pass^1 of an agent that does nothing."""
        return compute_task_rates([self.runs["base"][seed].passive for seed in self.seeds], 1)

    @staticmethod
    def _outcomes(run: Run, budget: int | None) -> Outcomes | None:
        evaluations = [e for e in run.evaluations if budget in (None, e.budget)]
        return evaluations[-1].outcomes if evaluations else None

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """Figure -> weights of the capabilities in it."""
        weak = WEAK[self.capabilities]
        return {
            "overall": traffic(self.capabilities, self.share),
            "plain": dict.fromkeys(PLAIN, 1.0),
            "weak mean": dict.fromkeys(weak, 1.0),
            **{kind: {kind: 1.0} for kind in weak},
        }


def group_runs(runs: Sequence[Run]) -> list[Experiment]:
    """The runs by their traffic. Raises NothingToReport."""
    by_traffic: dict[tuple[str, float], dict[Arm, dict[int, Run]]] = {}
    for run in runs:
        arms = by_traffic.setdefault((run.key.capabilities, run.key.share), {})
        arms.setdefault(run.key.arm, {})[run.key.seed] = run
    candidates = [Experiment(*traffic_, arms) for traffic_, arms in sorted(by_traffic.items())]
    complete = [
        experiment
        for experiment in candidates
        if "base" in experiment.runs and experiment.arms and experiment.seeds
    ]
    if not complete:
        raise NothingToReport(
            "there is no traffic with a base run and a trained arm on one seed; run the base first"
        )
    return complete


def text(experiments: Sequence[Experiment]) -> str:
    """Everything, as Markdown."""
    return (
        "\n\n".join(
            [
                _sources(experiments),
                *("\n\n".join(_sections(experiment)) for experiment in experiments),
            ]
        )
        + "\n"
    )


def _sources(experiments: Sequence[Experiment]) -> str:
    runs = [
        run
        for experiment in experiments
        for arm in experiment.runs.values()
        for run in arm.values()
    ]
    commits = sorted({run.source.commit[:12] for run in runs})
    settings = sorted({run.source.settings[:12] for run in runs})
    bases = sorted({run.source.base[:12] for run in runs})
    changed = sum(not run.source.clean for run in runs)
    return (
        f"{len(runs)} runs at commit {', '.join(commits)} ({changed} of them with local changes), "
        f"settings {', '.join(settings)}, base {', '.join(bases)}. Held-out: "
        f"{_tasks(runs[0])} tasks per capability and seed. Intervals: 95 %, "
        f"{bootstrap.RESAMPLES:,} draws of seeds and of tasks within seeds."
    )


def _tasks(run: Run) -> int:
    return len(next(iter(run.evaluations[0].outcomes.values())))


def _sections(experiment: Experiment) -> Iterator[str]:
    yield f"### {experiment.title}; seeds {', '.join(map(str, experiment.seeds))}"
    yield scores(experiment)
    yield gains(experiment)
    yield plain(experiment)
    yield mechanism(experiment)


def scores(experiment: Experiment) -> str:
    """pass^1 (and pass^3 of the sums) of every arm at every budget."""
    names = list(experiment.weights)
    rows = [["arm", "rollouts", *names, "overall pass^3", "weak mean pass^3"]]
    rows.append(["doing nothing", "0", *_cells(experiment, experiment.passive()), "", ""])
    for arm in ("base", *experiment.arms):
        for budget in [None] if arm in ("base", "c") else experiment.budgets:
            first, third = (
                experiment.task_rates(arm, budget, 1),
                experiment.task_rates(arm, budget, 3),
            )
            if first is None or third is None:
                continue
            cubes = [_cell(third, experiment.weights[name]) for name in ("overall", "weak mean")]
            rows.append(
                [
                    _arm(arm),
                    _format_cost(experiment, arm, budget),
                    *_cells(experiment, first),
                    *cubes,
                ]
            )
    return format_table(rows)


def _cells(experiment: Experiment, rates: TaskRates) -> list[str]:
    return [_cell(rates, weights) for weights in experiment.weights.values()]


def _cell(rates: TaskRates, weights: Mapping[str, float]) -> str:
    return format_interval(interval(rates, weights))


def _format_cost(experiment: Experiment, arm: Arm, budget: int | None) -> str:
    """Format the rollouts spent of the budget, as the mean over seeds."""
    spent = []
    for seed in experiment.seeds:
        evaluations = [
            e for e in experiment.runs[arm][seed].evaluations if budget in (None, e.budget)
        ]
        spent.append(evaluations[-1].spent)
    return f"{np.mean(spent):,.0f}"


def gains(experiment: Experiment) -> str:
    """What each arm gained over the base, and over the general arm, task by task."""
    base = experiment.task_rates("base", None, 1)
    assert base is not None, "a base run has been evaluated"
    rows = [["arm", "rollouts", "overall", "weak mean", "overall, per seed", "gain against (a)"]]
    for arm in experiment.arms:
        for budget in [None] if arm == "c" else experiment.budgets:
            rates = experiment.task_rates(arm, budget, 1)
            if rates is None:
                continue
            gain, weights = rates - base, experiment.weights
            each = " ".join(f"{value:+.3f}" for value in gain.by_seed(weights["overall"]))
            rows.append(
                [
                    _arm(arm),
                    _format_cost(experiment, arm, budget),
                    format_change(interval(gain, weights["overall"])),
                    format_change(interval(gain, weights["weak mean"])),
                    each,
                    _against(experiment, rates, base, budget) if arm != "a" else "",
                ]
            )
    return "Gains over the base:\n\n" + format_table(rows)


def _against(experiment: Experiment, rates: TaskRates, base: TaskRates, budget: int | None) -> str:
    """The difference to the general arm at the same budget (of the warm start alone: at its whole
    one), and how many times its gain."""
    general = experiment.task_rates("a", budget, 1) if experiment.runs.get("a") else None
    if general is None:
        return ""
    weights = experiment.weights["overall"]
    own, other = replicates(rates - base, weights), replicates(general - base, weights)
    difference = format_change(interval(rates - general, weights))
    if np.quantile(other, 0.025) <= 0:
        return f"{difference}; no ratio: (a) may have gained nothing"
    low, high = np.quantile(own / other, [0.025, 0.975])
    return f"{difference}; {own.mean() / other.mean():.1f} times [{low:.1f}, {high:.1f}]"


def plain(experiment: Experiment) -> str:
    """Each plain kind's change from the base at the end of each arm."""
    base = experiment.task_rates("base", None, 1)
    assert base is not None, "a base run has been evaluated"
    rows = [["plain kind", "base", *map(_arm, experiment.arms)]]
    last = {arm: experiment.task_rates(arm, None, 1) for arm in experiment.arms}
    for kind in PLAIN:
        row = [kind, _cell(base, {kind: 1})]
        for rates in last.values():
            row.append(
                format_change(interval(rates - base, {kind: 1})) if rates is not None else ""
            )
        rows.append(row)
    return "Plain kinds at the end, change from the base:\n\n" + format_table(rows)


def mechanism(experiment: Experiment) -> str:
    """Where the budget went, and how much of it taught anything."""
    head = ["arm", "diagnosis", "references", "training", "unused", "informative groups", "ended"]
    rows = [[*head, "wall"]]
    for arm in experiment.arms:
        runs = [experiment.runs[arm][seed] for seed in experiment.seeds]
        spent = [
            np.mean([getattr(run.spent, name) for run in runs])
            for name in ("diagnosis", "references", "training")
        ]
        unused = np.mean([run.budget - run.spent.total for run in runs])
        ended = ", ".join(sorted({run.ended for run in runs}))
        rows.append(
            [
                _arm(arm),
                *(f"{part:,.0f}" for part in spent),
                f"{unused:,.0f}",
                _informative(runs),
                ended,
                f"{np.mean([run.seconds for run in runs]):,.0f} s",
            ]
        )
    return "Where the budget went (means over seeds):\n\n" + format_table(rows)


def _informative(runs: Sequence[Run]) -> str:
    shares = [np.mean([step.informative for step in run.steps]) for run in runs if run.steps]
    return f"{np.mean(shares):.2f}" if shares else ""


def _arm(arm: Arm) -> str:
    return ARMS[arm] if arm == "base" else f"({arm}) {ARMS[arm]}"


def format_interval(estimate: Interval) -> str:
    """Format a figure with its bounds."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def format_change(estimate: Interval) -> str:
    """Format a difference with its bounds, each with its sign."""
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table of Markdown; the first row is its head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def draw(experiments: Sequence[Experiment], file: Path) -> None:
    """Learning curves as SVG: a row per traffic; the bands are the intervals."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The same figures give the same bytes: no date, no random ids.
    with rc_context({"svg.hashsalt": "kintsugi", "svg.fonttype": "none"}):
        figure = Figure(figsize=(13, 4 * len(experiments)), layout="constrained")
        axes = figure.subplots(len(experiments), 3, squeeze=False)
        for row, experiment in zip(axes, experiments, strict=True):
            for axis, name in zip(row, ("overall", "weak mean"), strict=False):
                _curves(axis, experiment, name)
            _informative_curves(row[2], experiment)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _curves(axis: "Axes", experiment: Experiment, name: str) -> None:
    weights = experiment.weights[name]
    base = experiment.task_rates("base", None, 1)
    assert base is not None, "a base run has been evaluated"
    begin = interval(base, weights)
    for arm in experiment.arms:
        points = [(0.0, begin), *_points(experiment, arm, weights)]
        x = [spent for spent, _ in points]
        axis.plot(x, [p.value for _, p in points], marker="o", label=_arm(arm), color=_COLOURS[arm])
        lows, highs = [p.low for _, p in points], [p.high for _, p in points]
        axis.fill_between(x, lows, highs, alpha=0.15, color=_COLOURS[arm], linewidth=0)
    axis.set(title=f"{name}: {experiment.title}", xlabel="rollouts", ylabel="pass^1, held-out")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _points(
    experiment: Experiment, arm: Arm, weights: Mapping[str, float]
) -> Iterator[tuple[float, Interval]]:
    for budget in [None] if arm == "c" else experiment.budgets:
        rates = experiment.task_rates(arm, budget, 1)
        if rates is not None:
            yield (
                float(_format_cost(experiment, arm, budget).replace(",", "")),
                interval(rates, weights),
            )


def _informative_curves(axis: "Axes", experiment: Experiment) -> None:
    for arm in experiment.arms:
        runs = [experiment.runs[arm][seed].steps for seed in experiment.seeds]
        if not all(runs):
            continue
        x, y = _average_steps(runs)
        axis.plot(x, y, label=_arm(arm), color=_COLOURS[arm])
    axis.set(title="share of informative groups", xlabel="rollouts", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _average_steps(runs: Sequence[Sequence[Step]]) -> tuple[list[float], list[float]]:
    """Means over seeds and `_WINDOW` steps."""
    count = min(map(len, runs))
    starts = range(0, count - count % _WINDOW, _WINDOW)
    windows = [[step for run in runs for step in run[s : s + _WINDOW]] for s in starts]
    x = [float(np.mean([step.spent for step in steps])) for steps in windows]
    return x, [float(np.mean([step.informative for step in steps])) for steps in windows]
