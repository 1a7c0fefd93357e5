"""What a folder of results shows: held-out pass^1 before and after, of target and all traffic.

Differences are taken task by task against the base's run of the same seed, or another
configuration's. Intervals of one seed are over its tasks (ops/demo/heldout.py); of several, seeds
are drawn first, then tasks (ops/learning/bootstrap.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from envs.statistics import Interval
from events.errors import KintsugiError
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.screen.run import Screened
from ops.learning.screen.settings import BASE, CONFIGURATIONS, Settings


class NothingToReport(KintsugiError):
    """A folder without a pair of base and configuration."""


def read(folder: Path) -> list[Screened]:
    """All results of a folder, by name."""
    return [
        Screened.model_validate_json(file.read_bytes()) for file in sorted(folder.glob("*.json"))
    ]


def text(results: Sequence[Screened], settings: Settings, against: str = BASE) -> str:
    """The table, one row per configuration, compared with `against`. Raises NothingToReport."""
    rows = [row for name in CONFIGURATIONS if (row := _row(results, settings, name, against))]
    if not rows:
        raise NothingToReport(
            f"no result of a configuration has one of {against} beside it; run them first"
        )
    head = (
        f"| configuration | seeds | `{settings.target}` | gain, 95 % | all traffic | gain, 95 % |"
        " least kind | updates | informative groups | minutes |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"{row}\n" for row in rows)


def kinds_text(results: Sequence[Screened], settings: Settings, against: str = BASE) -> str:
    """A table of the gain on every kind, one column per configuration. Raises NothingToReport."""
    gains: dict[str, TaskRates] = {}
    for name in CONFIGURATIONS:
        if pairs := list(_pairs(results, name, against)):
            before = compute_task_rates([base.outcomes for base, _ in pairs], 1)
            gains[name] = compute_task_rates([own.outcomes for _, own in pairs], 1) - before
    if not gains:
        raise NothingToReport(
            f"no result of a configuration has one of {against} beside it; run them first"
        )
    head = f"| kind | {' | '.join(gains)} |\n|---|{'---|' * len(gains)}\n"
    lines = [
        f"| `{kind}` | {' | '.join(_cell(interval(own, {kind: 1.0})) for own in gains.values())} |"
        for kind in settings.traffic
    ]
    return head + "".join(f"{line}\n" for line in lines)


def _row(results: Sequence[Screened], settings: Settings, name: str, against: str) -> str | None:
    pairs = list(_pairs(results, name, against))
    if not pairs:
        return None
    before = compute_task_rates([base.outcomes for base, _ in pairs], 1)
    after = compute_task_rates([own.outcomes for _, own in pairs], 1)
    gains = after - before
    target, traffic = {settings.target: 1.0}, settings.traffic
    kinds = {kind: fmean(gains.by_seed({kind: 1.0})) for kind in traffic}
    least = min(kinds, key=lambda kind: kinds[kind])
    updates = [update for _, own in pairs for update in own.training.updates]
    cells = (
        name,
        ", ".join(str(own.seed) for _, own in pairs),
        f"{fmean(before.by_seed(target)):.3f} -> {fmean(after.by_seed(target)):.3f}",
        _cell(interval(gains, target)),
        f"{fmean(before.by_seed(traffic)):.3f} -> {fmean(after.by_seed(traffic)):.3f}",
        _cell(interval(gains, traffic)),
        f"{least} {kinds[least]:+.3f}",
        f"{sum(update.updated for update in updates) / len(pairs):.0f}",
        f"{fmean(update.informative for update in updates) if updates else 0:.0%}",
        f"{fmean(own.training.seconds for _, own in pairs) / 60:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _pairs(
    results: Sequence[Screened], name: str, against: str
) -> Iterator[tuple[Screened, Screened]]:
    """The run of `against` and the configuration's, of every seed that has both; none of the same
    one."""
    if name == against:
        return
    bases = {(r.seed, r.development): r for r in results if r.configuration == against}
    for own in results:
        base = bases.get((own.seed, own.development))
        if own.configuration == name and base is not None:
            yield base, own


def _cell(gain: Interval) -> str:
    return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
