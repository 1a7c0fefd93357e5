"""What the runs of a folder show: tables in Markdown, gains against rollouts as an image.

Every figure is a mean over seeds with its 95 % interval by the hierarchical bootstrap
(ops/learning/bootstrap.py); differences are taken task by task. A comparison uses the seeds that
have its three runs (start, general, targeted), and the tables say how many those are.

A ratio of gains whose denominator may be 0 has no useful interval. The claim "more than 1 time" is
therefore that the interval of the difference of the gains lies above 0; a ratio is printed beside
it only where the interval of the general arm's gain does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from envs.shop.kinds import PLAIN
from envs.statistics import LEVEL
from events.errors import KintsugiError
from ops.learning import bootstrap
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval, replicates
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import PolicyEvaluation
from ops.learning.sentinel.results import ComparisonRun
from ops.learning.sentinel.settings import ARMS, MIXES, PAIRS, SEEDS, SETTINGS, Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POWERS: Final = (1, 2, 3)
"""k of pass^k."""
_COLOURS: Final[Mapping[Arm, str]] = {
    "general": "C0", "targeted": "C3", "warm_general": "C2", "warm_targeted": "C1",
}  # fmt: skip


class NothingToReport(KintsugiError):
    """No start of a comparison with a trained arm on the same seed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs on one traffic with one digest of the settings."""

    mix: str
    development: bool
    settings: str
    runs: Mapping[Arm, Mapping[int, ComparisonRun]]
    """Arm -> seed -> run."""

    @property
    def any_run(self) -> ComparisonRun:
        """One of them."""
        return next(iter(next(iter(self.runs.values())).values()))

    @property
    def budgets(self) -> list[int]:
        """Those of the trained arms."""
        return sorted(
            {
                evaluation.budget
                for arm, runs in self.runs.items()
                if ARMS[arm].training != "none"
                for run in runs.values()
                for evaluation in run.evaluations
            }
        )

    @property
    def figures(self) -> dict[str, Mapping[str, float]]:
        """Figure -> the weights of the kinds in it."""
        weights = self.any_run.weights
        weak = dict.fromkeys((kind for kind in weights if kind not in PLAIN), 1.0)
        return {"all traffic": weights, "weak mean": weak}

    def find_seeds(self, *arms: Arm, budget: int | None = None) -> list[int]:
        """Return the seeds that all of these arms have, the trained ones after this budget."""
        return sorted(
            set.intersection(
                *(
                    {
                        seed
                        for seed, run in self.runs.get(arm, {}).items()
                        if _select_evaluation(run, budget) is not None
                    }
                    for arm in arms
                )
            )
        )

    def select_evaluations(
        self, arm: Arm, seeds: Sequence[int], budget: int | None
    ) -> list[PolicyEvaluation]:
        """Return an arm's evaluations on these seeds after a budget; None: the last ones."""
        chosen = [_select_evaluation(self.runs[arm][seed], budget) for seed in seeds]
        return [evaluation for evaluation in chosen if evaluation is not None]

    def compute_rates(
        self, arm: Arm, seeds: Sequence[int], budget: int | None, k: int
    ) -> TaskRates:
        """Return pass^k of an arm on these seeds after a budget."""
        evaluations = self.select_evaluations(arm, seeds, budget)
        return compute_task_rates([evaluation.outcomes for evaluation in evaluations], k)

    def compute_spent(self, arm: Arm, seeds: Sequence[int], budget: int | None) -> float:
        """Return the rollouts spent on these policies, as the mean over seeds."""
        return float(np.mean([e.spent for e in self.select_evaluations(arm, seeds, budget)]))


def _select_evaluation(run: ComparisonRun, budget: int | None) -> PolicyEvaluation | None:
    """Return the evaluation of a run after a budget, the only one of an arm that is not trained;
    None where the run has not come so far."""
    whole = budget is None or ARMS[run.key.arm].training == "none"
    chosen = [e for e in run.evaluations if whole or e.budget == budget]
    return chosen[-1] if chosen else None


def group_runs(runs: Sequence[ComparisonRun]) -> list[Comparison]:
    """The runs by traffic and settings, in the order of the settings. Raises NothingToReport."""
    groups: dict[tuple[str, bool, str], dict[Arm, dict[int, ComparisonRun]]] = {}
    for run in runs:
        group = groups.setdefault((run.key.mix, run.key.development, run.source.settings), {})
        group.setdefault(run.key.arm, {})[run.key.seed] = run
    order = list(MIXES)
    comparisons = [
        Comparison(*key, arms)
        for key, arms in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0]))
    ]
    useful = [
        comparison
        for comparison in comparisons
        if any(comparison.find_seeds(start, arm) for start, *trained in PAIRS for arm in trained)
    ]
    if not useful:
        raise NothingToReport(
            f"{len(runs)} results are there, and none of a trained arm has its start on the same "
            "seed; run them first"
        )
    return useful


def text(comparisons: Sequence[Comparison]) -> str:
    """Everything, as Markdown."""
    return "\n\n".join(part for c in comparisons for part in _sections(c)) + "\n"


def _sections(comparison: Comparison) -> Iterator[str]:
    yield f"### {comparison.mix}{' (development)' if comparison.development else ''}"
    yield _describe_source(comparison)
    yield _list_missing(comparison)
    yield "pass^k on held-out tasks:\n\n" + format_table(list(_scores(comparison)))
    for name in comparison.figures:
        rows = list(_compare_gains(comparison, name))
        if len(rows) > 1:
            yield f"Gains over the start, {name}:\n\n" + format_table(rows)
    yield "pass^1 of every kind after the largest budget:\n\n" + format_table(_kinds(comparison))
    yield "Where the budget went (means over seeds):\n\n" + format_table(list(_costs(comparison)))
    rows = list(_targets(comparison))
    if len(rows) > 1:
        yield "Targets of each round:\n\n" + format_table(rows)


def _describe_source(comparison: Comparison) -> str:
    runs = [run for arm in comparison.runs.values() for run in arm.values()]
    commits = ", ".join(sorted({run.source.commit[:12] for run in runs}))
    bases = ", ".join(sorted({run.source.base[:12] for run in runs}))
    tasks = len(next(iter(runs[0].evaluations[0].outcomes.values())))
    return (
        f"{len(runs)} runs at commit {commits} "
        f"({sum(not run.source.clean for run in runs)} of them with local changes), settings "
        f"{comparison.settings[:12]}, base {bases}. Held-out: {tasks} tasks per kind and seed. "
        f"Intervals: {LEVEL:.0%}, {bootstrap.RESAMPLES:,} draws of seeds and of tasks within "
        "seeds, not corrected for their number; of one seed, over its tasks alone."
    )


def _list_missing(comparison: Comparison) -> str:
    """Say which of the planned runs are there, and which are not."""
    last = max(SETTINGS.budgets)
    there = {arm: comparison.find_seeds(arm, budget=last) for arm in ARMS}
    whole = [seed for seed in SEEDS if all(seed in seeds for seeds in there.values())]
    missing = [
        f"{arm} of seed {', '.join(map(str, lacking))}"
        for arm in ARMS
        if (lacking := [seed for seed in SEEDS if seed not in there[arm]])
    ]
    counted = f"{len(whole)} of {len(SEEDS)} seeds have all arms."
    return f"{counted} Missing or unfinished: {'; '.join(missing)}." if missing else counted


def _scores(comparison: Comparison) -> Iterator[list[str]]:
    names = comparison.figures
    yield ["arm", "rollouts", "seeds", *(f"{name} pass^{k}" for name in names for k in _POWERS)]
    for arm in ARMS:
        budgets = comparison.budgets if ARMS[arm].training != "none" else [None]
        for budget in budgets:
            seeds = comparison.find_seeds(arm, budget=budget)
            if not seeds:
                continue
            cells = [
                format_interval(interval(comparison.compute_rates(arm, seeds, budget, k), weights))
                for weights in names.values()
                for k in _POWERS
            ]
            spent = f"{comparison.compute_spent(arm, seeds, budget):,.0f}"
            yield [ARMS[arm].title, spent, str(len(seeds)), *cells]


def _compare_gains(comparison: Comparison, figure: str) -> Iterator[list[str]]:
    """Yield a row per pair, budget and k: both gains, their difference, and what that claims."""
    weights = comparison.figures[figure]
    yield [
        "from", "rollouts", "k", "seeds", "general", "targeted", "targeted less general",
        "each seed", "times", "more than 1 time",
    ]  # fmt: skip
    for start, general, targeted in PAIRS:
        for budget in comparison.budgets:
            seeds = comparison.find_seeds(start, general, targeted, budget=budget)
            for k in _POWERS if seeds else ():
                begin = comparison.compute_rates(start, seeds, None, k)
                own = comparison.compute_rates(targeted, seeds, budget, k)
                other = comparison.compute_rates(general, seeds, budget, k)
                difference = interval(own - other, weights)
                yield [
                    start,
                    f"{budget:,}",
                    str(k),
                    str(len(seeds)),
                    format_change(interval(other - begin, weights)),
                    format_change(interval(own - begin, weights)),
                    format_change(difference),
                    " ".join(f"{value:+.3f}" for value in (own - other).by_seed(weights)),
                    describe_ratio(own - begin, other - begin, weights),
                    "yes" if difference.low > 0 else "no" if difference.high < 0 else "not shown",
                ]


def describe_ratio(own: TaskRates, other: TaskRates, weights: Mapping[str, float]) -> str:
    """Return how many times the gain `other` the gain `own` is, with its interval; or that there is
    no ratio, where the interval of `other` does not lie above 0."""
    if interval(other, weights).low <= 0:
        return "none: the general gain may be 0"
    tail = (1 - LEVEL) / 2
    times = replicates(own, weights) / replicates(other, weights)
    low, high = np.quantile(times, [tail, 1 - tail])
    value = np.mean(own.by_seed(weights)) / np.mean(other.by_seed(weights))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _kinds(comparison: Comparison) -> list[list[str]]:
    last = max(comparison.budgets, default=None)
    seeds = {arm: comparison.find_seeds(arm, budget=last) for arm in ARMS}
    arms = [arm for arm in ARMS if seeds[arm]]
    rows = [["kind", "share", *(ARMS[arm].title for arm in arms)]]
    rates = {arm: comparison.compute_rates(arm, seeds[arm], last, 1) for arm in arms}
    for kind, share in comparison.any_run.weights.items():
        cells = [format_interval(interval(rates[arm], {kind: 1.0})) for arm in arms]
        rows.append([kind, f"{share:.3f}", *cells])
    return rows


def _costs(comparison: Comparison) -> Iterator[list[str]]:
    yield [
        "arm", "seeds", "diagnosis", "references", "training", "updates", "informative groups",
        "processor",
    ]  # fmt: skip
    for arm in ARMS:
        runs = list(comparison.runs.get(arm, {}).values())
        if not runs:
            continue
        costs = [
            np.mean([sum(getattr(r.spent, name) for r in run.rounds) for run in runs])
            for name in ("diagnosis", "training")
        ]
        references = np.mean([run.warm_start.references for run in runs])
        updates = np.mean([sum(r.updates for r in run.rounds) for run in runs])
        steps = [step.informative for run in runs for r in run.rounds for step in r.steps]
        yield [
            ARMS[arm].title,
            str(len(runs)),
            f"{costs[0]:,.0f}",
            f"{references:,.0f}",
            f"{costs[1]:,.0f}",
            f"{updates:,.0f}",
            f"{np.mean(steps):.2f}" if steps else "",
            f"{np.mean([run.processor_seconds for run in runs]):,.0f} s",
        ]


def _targets(comparison: Comparison) -> Iterator[list[str]]:
    yield ["arm", "seed", *(f"round {number}" for number, _ in enumerate(comparison.budgets, 1))]
    for arm in ARMS:
        if ARMS[arm].training != "targeted":
            continue
        for seed, run in sorted(comparison.runs.get(arm, {}).items()):
            cells = [
                ", ".join(
                    f"{target.generator.rpartition('/')[2]} {target.failures}/{target.attempts}"
                    for target in finished.targets
                )
                or "none: traffic"
                for finished in run.rounds
            ]
            yield [ARMS[arm].title, str(seed), *cells]


def draw(comparisons: Sequence[Comparison], file: Path) -> None:
    """Gains over the base against rollouts as SVG: a row per traffic; bands are the intervals."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The same figures give the same bytes: no date, no random ids.
    with rc_context({"svg.hashsalt": "kintsugi", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 4 * len(comparisons)), layout="constrained")
        axes = figure.subplots(len(comparisons), 2, squeeze=False)
        for row, comparison in zip(axes, comparisons, strict=True):
            for axis, name in zip(row, comparison.figures, strict=True):
                _draw_gains(axis, comparison, name)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_gains(axis: "Axes", comparison: Comparison, name: str) -> None:
    weights, budgets = comparison.figures[name], comparison.budgets
    for start, *trained in PAIRS:
        for arm in trained:
            reached = [comparison.find_seeds("base", start, arm, budget=b) for b in budgets]
            # The seeds of the largest budget that any has come to, at every budget below it.
            seeds = next((own for own in reversed(reached) if own), [])
            if not seeds:
                continue
            places: list[tuple[Arm, int | None]] = [(start, None)]
            places += [(arm, b) for b, own in zip(budgets, reached, strict=True) if own]
            base = comparison.compute_rates("base", seeds, None, 1)
            gains = [
                interval(comparison.compute_rates(a, seeds, budget, 1) - base, weights)
                for a, budget in places
            ]
            x = [comparison.compute_spent(a, seeds, budget) for a, budget in places]
            label = f"{ARMS[arm].title} ({len(seeds)} of {len(SEEDS)} seeds)"
            axis.plot(x, [g.value for g in gains], marker="o", label=label, color=_COLOURS[arm])
            lows, highs = [g.low for g in gains], [g.high for g in gains]
            axis.fill_between(x, lows, highs, alpha=0.15, color=_COLOURS[arm], linewidth=0)
    axis.axhline(0, color="black", linewidth=0.5)
    axis.set(
        title=f"{comparison.mix}: {name}", xlabel="rollouts", ylabel="gain over the base, pass^1"
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
