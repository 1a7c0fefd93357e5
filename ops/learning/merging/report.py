"""What a folder of results shows, in Markdown (pure): each policy on the weak kinds, on the taught
ones, and less the members that answer their own kinds.

`routed` is no policy of its own: each member on its kind and the base on the taught ones, which is
what a router without errors would give. Figures are means over seeds with 95 % intervals by the
hierarchical bootstrap (ops/learning/bootstrap.py); all policies of a seed meet the same tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.merging.run import SeedRun
from ops.learning.merging.settings import KINDS, MERGES, TAUGHT, Settings
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import check_settings, describe_provenance

ROUTED: Final = "routed"
_WEAK: Final = dict.fromkeys(KINDS, 1.0)


def write_report(results: Sequence[SeedRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    check_settings(results, settings.digest)
    sections = [
        describe_provenance(results),
        _tabulate_kinds(results),
        _tabulate_differences(results),
    ]
    return "\n\n".join(sections) + "\n"


def _tabulate_kinds(results: Sequence[SeedRun]) -> str:
    rows = [["policy", "rank", *(f"`{kind}`" for kind in KINDS), "weak kinds", "taught kinds"]]
    for policy, title in _list_policies().items():
        rates = _rates(results, policy)
        rank = results[0].ranks.get(policy)
        rows.append(
            [
                f"`{policy}`: {title}",
                "" if rank is None else str(rank),
                *(f"{interval(rates, {kind: 1.0}).value:.3f}" for kind in KINDS),
                format_interval(interval(rates, _WEAK)),
                format_interval(interval(rates, TAUGHT)),
            ]
        )
    return "pass^1\n\n" + format_table(rows)


def _tabulate_differences(results: Sequence[SeedRun]) -> str:
    rows = [["policy", "weak kinds less `routed`", "taught kinds less the base"]]
    routed, base = _rates(results, ROUTED), _rates(results, "base")
    for policy in ("joint", *MERGES):
        rates = _rates(results, policy)
        rows.append(
            [
                f"`{policy}`",
                format_change(interval(rates - routed, _WEAK)),
                format_change(interval(rates - base, TAUGHT)),
            ]
        )
    return "Differences, task by task\n\n" + format_table(rows)


def _list_policies() -> dict[str, str]:
    return {
        "base": "the base, untrained",
        **{kind: f"the member for {kind}" for kind in KINDS},
        ROUTED: "each member on its kind, the base on the others",
        "joint": "one adapter trained on all three kinds",
        **{name: item.title for name, item in MERGES.items()},
    }


def _rates(results: Sequence[SeedRun], policy: str) -> TaskRates:
    return compute_task_rates([_outcomes(result, policy) for result in results], 1)


def _outcomes(result: SeedRun, policy: str) -> Mapping[str, Mapping[str, Sequence[bool]]]:
    if policy != ROUTED:
        return result.outcomes[policy]
    own = {kind: result.outcomes[kind][kind] for kind in KINDS}
    return {**result.outcomes["base"], **own}
