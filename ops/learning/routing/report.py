"""What a folder of results shows, in Markdown (pure): panels beside the base and perfect routing,
and where their routers sent each kind of task.

`routed` is no policy of its own: each member on its kind and the base on the taught ones. Figures
are means over seeds with 95 % intervals by the hierarchical bootstrap (ops/learning/bootstrap.py);
all policies of a seed meet the same tasks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.merging.settings import KINDS, TAUGHT
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import check_settings, describe_provenance
from ops.learning.routing.run import RoutingRun
from ops.learning.routing.settings import TRAINED, UNTRAINED, Settings

BASE: Final = "base"
ROUTED: Final = "routed"
_POLICIES: Final = {
    BASE: "the base, untrained",
    UNTRAINED: "the panel, its router untrained",
    TRAINED: "the panel, its router trained",
    ROUTED: "each member on its kind, the base on the others",
}
_WEAK: Final = dict.fromkeys(KINDS, 1.0)


def write_report(results: Sequence[RoutingRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    check_settings(results, settings.digest)
    routers = (f"Router of seed {r.seed}: {r.router.figures.summary}." for r in results)
    provenance = "\n".join((describe_provenance(results), *routers))
    sections = [provenance, _tabulate_kinds(results)]
    sections += [_tabulate_choices(results, panel) for panel in (TRAINED, UNTRAINED)]
    return "\n\n".join(sections) + "\n"


def _tabulate_kinds(results: Sequence[RoutingRun]) -> str:
    rows = [
        ["policy", *(f"`{kind}`" for kind in KINDS), "weak kinds", "taught kinds", "less `routed`"]
    ]
    routed = _rates(results, ROUTED)
    for policy, title in _POLICIES.items():
        rates = _rates(results, policy)
        rows.append(
            [
                f"`{policy}`: {title}",
                *(f"{interval(rates, {kind: 1.0}).value:.3f}" for kind in KINDS),
                format_interval(interval(rates, _WEAK)),
                format_interval(interval(rates, TAUGHT)),
                "" if policy == ROUTED else format_change(interval(rates - routed, _WEAK)),
            ]
        )
    return "pass^1; the last column on the weak kinds\n\n" + format_table(rows)


def _tabulate_choices(results: Sequence[RoutingRun], panel: str) -> str:
    """Kinds by what the router of a panel chose, in shares of their episodes."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for kind, own in result.choices[panel].items():
            counts.setdefault(kind, Counter()).update(own)
    chosen = sorted({name for own in counts.values() for name in own})
    rows = [["kind", *(f"`{name}`" for name in chosen)]]
    for kind, own in counts.items():
        rows.append([f"`{kind}`", *(f"{own[name] / own.total():.2f}" for name in chosen)])
    return f"Choices of `{panel}`\n\n" + format_table(rows)


def _rates(results: Sequence[RoutingRun], policy: str) -> TaskRates:
    return compute_task_rates([_outcomes(result, policy) for result in results], 1)


def _outcomes(result: RoutingRun, policy: str) -> Mapping[str, Mapping[str, Sequence[bool]]]:
    if policy in result.outcomes:
        return result.outcomes[policy]
    alone = result.members.outcomes
    own = {kind: alone[kind][kind] for kind in KINDS} if policy == ROUTED else {}
    return {**alone[BASE], **own}
