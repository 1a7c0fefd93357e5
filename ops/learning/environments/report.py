"""What a folder of results shows, in Markdown (pure): each policy in each environment and on the
kinds that none has, and the joint ones less those of single environments.

`three` is no policy of its own: each environment's own adapter there, and the base on the kinds
that no environment has. An environment counts as its traffic does, and each of them the same.
Figures are means over seeds with 95 % intervals by the hierarchical bootstrap
(ops/learning/bootstrap.py); all policies of a seed meet the same tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.environments.run import SampleFigures, SeedRun
from ops.learning.environments.settings import BASE, ENVIRONMENTS, JOINT, UNTAUGHT, Settings
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import check_settings, describe_provenance

THREE: Final = "three"
_TITLES: Final[Mapping[str, str]] = {
    BASE: "the base, untrained",
    **{name: f"trained in `{name}` alone, a third of the budget" for name in ENVIRONMENTS},
    THREE: "of these the one of each environment, elsewhere the base",
    "mixed": "trained in all, each batch of all",
    "apart": "trained in all, each batch of one",
}
_COMPARED: Final = (
    (THREE, BASE), ("mixed", BASE), ("apart", BASE),
    ("mixed", THREE), ("apart", THREE), ("mixed", "apart"),
)  # fmt: skip
_ALL: Final = {kind: share for own in ENVIRONMENTS.values() for kind, share in own.traffic.items()}
_WEAK: Final = dict.fromkeys((kind for own in ENVIRONMENTS.values() for kind in own.weak), 1.0)
_UNTAUGHT: Final = dict.fromkeys(UNTAUGHT, 1.0)


def write_report(results: Sequence[SeedRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    check_settings(results, settings.digest)
    sections = [
        describe_provenance(results),
        _tabulate_policies(results),
        _tabulate_weak_kinds(results),
        _tabulate_differences(results),
        _tabulate_jobs(results),
    ]
    return "\n\n".join(sections) + "\n"


def _tabulate_policies(results: Sequence[SeedRun]) -> str:
    names = (f"`{name}`" for name in ENVIRONMENTS)
    rows = [["policy", *names, "all three", "weak kinds", "kinds of no environment"]]
    for policy, title in _TITLES.items():
        rates = _rates(results, policy)
        own = (interval(rates, kinds.traffic).value for kinds in ENVIRONMENTS.values())
        rows.append(
            [
                f"`{policy}`: {title}",
                *(f"{value:.3f}" for value in own),
                *(format_interval(interval(rates, w)) for w in (_ALL, _WEAK, _UNTAUGHT)),
            ]
        )
    return "pass^1\n\n" + format_table(rows)


def _tabulate_weak_kinds(results: Sequence[SeedRun]) -> str:
    rows = [["policy", *(f"`{kind}`" for kind in (*_WEAK, *UNTAUGHT))]]
    for policy in _TITLES:
        rates = _rates(results, policy)
        values = (interval(rates, {kind: 1.0}).value for kind in (*_WEAK, *UNTAUGHT))
        rows.append([f"`{policy}`", *(f"{value:.3f}" for value in values)])
    return "pass^1 of weak kinds, and of those of no environment\n\n" + format_table(rows)


def _tabulate_differences(results: Sequence[SeedRun]) -> str:
    rows = [["difference", "all three", "each seed", "weak kinds", "kinds of no environment"]]
    for policy, other in _COMPARED:
        change = _rates(results, policy) - _rates(results, other)
        rows.append(
            [
                f"`{policy}` less `{other}`",
                format_change(interval(change, _ALL)),
                ", ".join(f"{value:+.3f}" for value in change.by_seed(_ALL)),
                *(format_change(interval(change, w)) for w in (_WEAK, _UNTAUGHT)),
            ]
        )
    for name, kinds in ENVIRONMENTS.items():
        change = _rates(results, name) - _rates(results, BASE)
        others = {kind: share for kind, share in _ALL.items() if kind not in kinds.traffic}
        rows.append(
            [
                f"`{name}` less `{BASE}`, in the other two",
                format_change(interval(change, others)),
                ", ".join(f"{value:+.3f}" for value in change.by_seed(others)),
                "",
                format_change(interval(change, _UNTAUGHT)),
            ]
        )
    return "Differences, task by task\n\n" + format_table(rows)


def _tabulate_jobs(results: Sequence[SeedRun]) -> str:
    rows = [["job", "environment", "rollouts", "batches", "informative groups", "passed", "tokens"]]
    for arm in (*ENVIRONMENTS, *JOINT):
        for name in ENVIRONMENTS:
            own = list(_select_samples(results, arm, name))
            if own:
                rows.append(
                    [
                        f"`{arm}`",
                        f"`{name}`",
                        f"{fmean(sampled.rollouts for sampled in own):.0f}",
                        f"{fmean(sampled.batches for sampled in own):.1f}",
                        f"{fmean(sampled.informative for sampled in own):.0%}",
                        f"{fmean(sampled.passed for sampled in own):.0%}",
                        f"{fmean(sampled.tokens for sampled in own):.0f}",
                    ]
                )
    return "What the jobs sampled, per seed\n\n" + format_table(rows)


def _select_samples(results: Sequence[SeedRun], arm: str, name: str) -> Iterator[SampleFigures]:
    for result in results:
        sampled = result.jobs[arm].environments.get(name)
        if sampled is not None:
            yield sampled


def _rates(results: Sequence[SeedRun], policy: str) -> TaskRates:
    return compute_task_rates([_select_outcomes(result, policy) for result in results], 1)


def _select_outcomes(result: SeedRun, policy: str) -> Mapping[str, Mapping[str, Sequence[bool]]]:
    if policy != THREE:
        return result.outcomes[policy]
    own = {
        kind: result.outcomes[name][kind]
        for name, kinds in ENVIRONMENTS.items()
        for kind in kinds.every
    }
    return {**result.outcomes[BASE], **own}
