"""The verdict of a soak (samples -> figures, and growth).

Processes are judged by BOUNDS over their lives, other figures (a write-ahead log, the lag of the
folds, connections) over the run. Figures that grow with the data by design are reported only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from events.sqlite.file import WAL_BYTES
from ops.soak.growth import Growth, Life, Rule, growth
from ops.soak.sampling import MIB, Sample

BOUNDS: Final[Mapping[str, Rule]] = {
    "memory": Rule(bound=24.0),
    "handles": Rule(bound=6.0),
    "threads": Rule(bound=6.0),
}
"""Figure of a role's process -> allowed growth per hour, in MiB or as a number."""

FILLING: Final[Mapping[tuple[str, str], Rule]] = {("gateway", "memory"): Rule(bound=40.0)}
"""(role, figure) -> higher bound, because its caches are still filling during a soak."""

FLAT: Final[Mapping[str, Rule]] = {
    "database WAL": Rule(bound=16.0),
    "database connections": Rule(bound=6.0),
    "in flight": Rule(bound=6.0),
    "engine adapters": Rule(bound=6.0),
}

MOST: Final[Mapping[str, float]] = {"log WAL": 2 * WAL_BYTES / MIB}
"""Figure that fills by design -> its largest allowed value. Each writer keeps the log's bound, but
others may write meanwhile."""

LAGS: Final = ("fold lag", "spool lag")
LAG_SHARE: Final = 0.01
"""Largest allowed growth of a lag, as a share of the appended events."""

GROWING: Final = (
    "log events", "log disk", "database disk", "Kafka disk", "jobs disk", "trials disk",
    "adapters disk", "blobs disk", "acknowledged",
)  # fmt: skip
"""Figures that grow with the data by design, in MiB or as numbers."""

_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class SoakVerdict:
    """The verdict on a run."""

    roles: Mapping[str, Mapping[str, Growth]]
    """Role -> figure -> verdict."""
    whole: Mapping[str, Growth]
    filled: Mapping[str, float]
    """Figure that fills by design -> its largest value."""
    growing: Mapping[str, Mapping[str, float]]
    """Figure that grows by design -> last value, and growth per 1,000 events in the first and last
    third."""

    @property
    def grows(self) -> list[str]:
        """Return a sentence for each unexpected growth."""
        over = [
            f"{name} was {most:.3g}, more than {MOST[name]:.3g}"
            for name, most in self.filled.items()
            if most > MOST[name]
        ]
        return [
            *over,
            *(
                _describe_growth(name, figure)
                for name, figure in self._walk_figures()
                if figure.grows
            ),
        ]

    @property
    def unknown(self) -> list[str]:
        """Return the names of figures with too few readings for a verdict."""
        return [name for name, figure in self._walk_figures() if figure.verdict == "unknown"]

    def document(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
        return {
            "roles": {
                role: {what: asdict(figure) for what, figure in figures.items()}
                for role, figures in self.roles.items()
            },
            "whole": {name: asdict(figure) for name, figure in self.whole.items()},
            "filled": self.filled,
            "growing": self.growing,
        }

    def _walk_figures(self) -> Iterator[tuple[str, Growth]]:
        for role, figures in self.roles.items():
            yield from ((f"{role}: {what}", figure) for what, figure in figures.items())
        yield from self.whole.items()


def judge_samples(samples: Sequence[Sample], seconds: float) -> SoakVerdict:
    """Return the verdict on a run of `seconds`."""
    names = list(dict.fromkeys(name for sample in samples for name in sample.roles))
    rules = {**FLAT, **dict.fromkeys(LAGS, _lag_rule(samples))}
    return SoakVerdict(
        {role: _role(samples, role, seconds) for role in names},
        {
            name: growth([life], rule, seconds)
            for name, rule in rules.items()
            if (life := _figure(samples, name)).readings
        },
        {
            name: max(value for _, _, value in readings)
            for name in MOST
            if (readings := _figure(samples, name).readings)
        },
        {
            name: _measure_figure(samples, name, seconds)
            for name in GROWING
            if _figure(samples, name).readings
        },
    )


def _role(samples: Sequence[Sample], role: str, seconds: float) -> dict[str, Growth]:
    verdicts: dict[str, Growth] = {}
    for what, rule in BOUNDS.items():
        lives: dict[int, Life] = {}
        for sample in samples:
            if (process := sample.roles.get(role)) is not None:
                life = lives.setdefault(process.pid, Life())
                life.readings.append((sample.at, process.age, float(getattr(process, what))))
        chosen = FILLING.get((role, what), rule)
        verdicts[what] = growth(list(lives.values()), chosen, seconds)
    return verdicts


def _figure(samples: Sequence[Sample], name: str) -> Life:
    return Life(
        [
            (sample.at, sample.at, sample.figures[name])
            for sample in samples
            if name in sample.figures
        ]
    )


def _lag_rule(samples: Sequence[Sample]) -> Rule:
    appended = _figure(samples, "log events").readings
    if len(appended) < 2:
        return Rule(bound=0.0)
    (begin, _, first), (end, _, last) = appended[0], appended[-1]
    return Rule(bound=LAG_SHARE * (last - first) / (end - begin) * _HOUR)


def _measure_figure(samples: Sequence[Sample], name: str, seconds: float) -> dict[str, float]:
    third = seconds / 3
    return {
        "begin": round(_figure(samples, name).readings[0][2], 2),
        "end": round(_figure(samples, name).readings[-1][2], 2),
        **_per_thousand("first third", samples, name, 0.0, third),
        **_per_thousand("last third", samples, name, 2 * third, seconds),
    }


def _per_thousand(
    label: str, samples: Sequence[Sample], name: str, begin: float, end: float
) -> dict[str, float]:
    both = [
        (sample.figures["log events"], sample.figures[name])
        for sample in samples
        if begin <= sample.at < end and "log events" in sample.figures and name in sample.figures
    ]
    if len(both) < 2 or (events := both[-1][0] - both[0][0]) <= 0:
        return {}
    return {f"{label}, per 1,000 events": round(1000 * (both[-1][1] - both[0][1]) / events, 3)}


def _describe_growth(name: str, figure: Growth) -> str:
    by = (
        figure.by_age
        if figure.by_age is not None and figure.by_age.low > figure.bound
        else figure.by_data
    )
    assert by is not None, "it grows by one of them"
    how = "with its age" if by is figure.by_age else "from life to life"
    return (
        f"{name} grows {how} by {by.value:.3g} an hour ({by.low:.3g} to {by.high:.3g}), more than "
        f"{figure.bound:.3g}"
    )
