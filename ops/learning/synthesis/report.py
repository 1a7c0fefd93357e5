"""What the written tasks of several seeds show, in Markdown (pure).

Figures are means over seeds with 95 % intervals by Student's t over them: a seed has its own plans'
rates of faults, its own tries and tasks. Shares of planted faults count what the writer did plant;
what it meant to (`Arm.rate`) is more, because not every kind can be planted in every task.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from scipy.stats import t as student

from envs.statistics import LEVEL, Interval
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import check_settings, describe_provenance
from ops.learning.synthesis.run import WritingRun
from ops.learning.synthesis.settings import ARMS, MODES, PLANS, RATES, Arm, Settings
from ops.learning.synthesis.writing import SOUND, Figures


def write_report(results: Sequence[WritingRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    check_settings(results, settings.digest)
    modes = (f"`{mode}`: {title}." for mode, title in MODES.items())
    sections = [
        "\n".join((describe_provenance(results), *modes)),
        _tabulate_arms(results),
        _tabulate_rounds(results, settings),
        _tabulate_checks(results),
    ]
    return "\n\n".join(sections) + "\n"


def estimate_mean(values: Sequence[float]) -> Interval:
    """Return the mean with its interval by Student's t; of one value, the value alone."""
    value = fmean(values)
    if len(values) < 2:
        return Interval(value, value, value)
    reach = float(student.ppf((1 + LEVEL) / 2, len(values) - 1)) * stdev(values)
    reach /= len(values) ** 0.5
    return Interval(value, value - reach, value + reach)


def _tabulate_arms(results: Sequence[WritingRun]) -> str:
    rows = [["meant", "plans", "arm", "planted in tries", "accepted", "planted in accepted"]]
    for arm in ARMS:
        rows.append(
            [
                f"{arm.rate:.0%}",
                str(arm.plans),
                arm.mode,
                _format_mean(results, arm, lambda own: _share(_add_tries(own))),
                _format_mean(results, arm, _measure_acceptance),
                _format_mean(results, arm, lambda own: _share(_add_accepted(own))),
            ]
        )
    return "Shares of all tries, and of all accepted tasks\n\n" + format_table(rows)


def _tabulate_rounds(results: Sequence[WritingRun], settings: Settings) -> str:
    stages = ["before", *(f"round {number + 1}" for number in range(settings.rounds))]
    rows = [["meant", "plans", *stages, "less, of before", "revisions kept"]]
    for rate in RATES:
        for plans in PLANS:
            arm = Arm(rate=rate, plans=plans, mode="reflection")
            figures = [result.arms[arm.name] for result in results]
            shares = [_list_audits(own, settings.rounds) for own in figures]
            kept, tried = (
                fmean(sum(getattr(item, name) for item in own.rounds) for own in figures)
                for name in ("kept", "tried")
            )
            falls = [1 - own[-1] / own[0] for own in shares if own[0]]
            rows.append(
                [
                    f"{rate:.0%}",
                    str(plans),
                    *(
                        format_interval(estimate_mean(column))
                        for column in zip(*shares, strict=True)
                    ),
                    format_change(estimate_mean(falls)) if falls else "",
                    f"{kept:.1f} of {tried:.1f}",
                ]
            )
    head = "Planted faults in fresh tasks by the plans as they stand, reflection"
    return f"{head}\n\n{format_table(rows)}"


def _list_audits(figures: Figures, rounds: int) -> list[float]:
    """Return the share of planted faults before the first round and after each; where rounds ended
    early, plans stay as they are."""
    shares = [_share(audit) for audit in figures.audits]
    return shares + [shares[-1]] * (rounds + 1 - len(shares))


def _tabulate_checks(results: Sequence[WritingRun]) -> str:
    """Planted kinds by the check that met them, over all arms with verification but no
    reflection, whose tries are those of the plans as laid out."""
    counts: dict[str, Counter[str]] = {}
    arms = [arm for arm in ARMS if arm.mode == "verification"]
    for figures in (result.arms[arm.name] for result in results for arm in arms):
        for check, kinds in figures.checks.items():
            for kind, count in kinds.items():
                counts.setdefault(kind, Counter())[check] += count
        for kind, count in _add_accepted(figures).items():
            counts.setdefault(kind, Counter())["accepted"] += count
    checks = sorted({check for own in counts.values() for check in own} - {"accepted"})
    rows = [["planted", "tries", *(f"`{check}`" for check in checks), "accepted"]]
    for kind in sorted(counts, key=lambda kind: (kind == SOUND, kind)):
        own = counts[kind]
        shares = [f"{own[check] / own.total():.1%}" for check in (*checks, "accepted")]
        rows.append([f"`{kind}`", f"{own.total():,}", *shares])
    return f"Where tries ended, arms `verification`\n\n{format_table(rows)}"


def _format_mean(
    results: Sequence[WritingRun], arm: Arm, measure: Callable[[Figures], float]
) -> str:
    values = [measure(result.arms[arm.name]) for result in results]
    return format_interval(estimate_mean(values))


def _measure_acceptance(figures: Figures) -> float:
    tries = _add_tries(figures).total() + sum(part.empty for part in figures.parts)
    return _add_accepted(figures).total() / tries


def _add_tries(figures: Figures) -> Counter[str]:
    return sum((Counter(part.tries) for part in figures.parts), Counter())


def _add_accepted(figures: Figures) -> Counter[str]:
    return sum((Counter(part.accepted) for part in figures.parts), Counter())


def _share(counts: Mapping[str, int]) -> float:
    """Return the share of planted faults; 0 of nothing."""
    whole = sum(counts.values())
    return 1 - counts.get(SOUND, 0) / whole if whole else 0.0
