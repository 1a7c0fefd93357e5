"""Measure how often the interval of the cumulative lift is wrong, on simulated traffic.

    python -m ops.bench.lift [--runs N] [--rows TEXT]

Method. Sessions begin as a Poisson process, ten a minute, until `Traffic.sessions` have begun. Each
is held out with a probability of `share`, and succeeds with its arm's probability at that moment:
the holdout with `success`, drifting as `drift` says, the loop with `lift` more (at most .999). Its
verdict comes after exponential minutes with the mean of its outcome, some verdicts hours later, and
some never. At `LOOKS` moments, spread evenly over the logarithm of the number of sessions, the
product's own functions (`daemon.serving.lift`) say the interval from the verdicts that are there.

    {"benchmark": "lift", "rows": [{"row", "runs", "miscovered", "false_claim", "found",
      "width", "alarms", ...}], "passed"}

`miscovered`: share of the runs in which some look's interval does not hold the difference of the
arms' mean success probabilities over the sessions that it counts. `false_claim`: share in which
some look's interval leaves out 0 where both policies are equal. `found`: share in which the last
interval lies above 0. `width`: mean width of the last interval. `alarms`: share of the runs in
which the shares, or the judged shares, were said to be off. A row is met if the 95 % interval
(Wilson) of `miscovered` and that of `false_claim` reach down to 5 %, and that of `alarms` to 2 %
where nothing is off; and if `found` and `alarms` are not below the row's bounds. Exit code 1 where
a row is not met. Runs are seeded by their number.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Final

from daemon.serving.lift import ERROR
from ops.bench.guard import print_rows, wilson
from ops.bench.lift.traffic import Traffic, decline, drop, look_repeatedly, wave
from ops.command_line import build_parser

_ALARMS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a kind of traffic, and bounds on what the interval must show."""

    name: str
    traffic: Traffic
    found: float | None = None
    """Least share of runs whose last interval must lie above 0."""
    alarm: float | None = None
    """Least share of runs that must give an alarm; None for traffic without a fault."""

    def document(self, runs: int) -> dict[str, Any]:
        """Measure the row in `runs` simulations and return its figures."""
        results = [look_repeatedly(self.traffic, seed) for seed in range(runs)]
        rates = {
            "miscovered": mean(run.miscovered for run in results),
            "false_claim": mean(run.false_claim for run in results),
            "found": mean(run.last.low > 0 for run in results),
            "alarms": mean(run.alarm for run in results),
        }
        bounds = {"miscovered": ERROR, "false_claim": ERROR}
        if self.alarm is None:
            bounds["alarms"] = _ALARMS
        met = all(
            wilson(round(rates[name] * runs), runs)[0] <= most for name, most in bounds.items()
        )
        met = met and rates["found"] >= (self.found or 0) and rates["alarms"] >= (self.alarm or 0)
        width = mean(run.last.high - run.last.low for run in results)
        rounded = {name: round(rate, 4) for name, rate in rates.items()}
        return {"row": self.name, "runs": runs, **rounded, "width": round(width, 4), "met": met}


def _rows() -> Iterator[Row]:
    weathers: dict[str, dict[str, Any]] = {
        "steady": {},
        "declining": {"drift": decline},
        "harder at once, slow failures": {"drift": drop, "minutes_fail": 60.0},
        "waves, slow successes": {"drift": wave, "minutes_pass": 60.0},
    }
    for share in (0.02, 0.1):
        for name, changes in weathers.items():
            traffic = Traffic(share=share, **changes)
            yield Row(f"equal at .8, share {share:g}, {name}", traffic)
            yield Row(f".8 to .95, share {share:g}, {name}", replace(traffic, lift=0.15))
    tenth = Traffic(share=0.1)
    yield Row("equal at .5, share .1", replace(tenth, success=0.5))
    yield Row("equal at .95, share .1", replace(tenth, success=0.95))
    yield Row("equal at .99, share .1", replace(tenth, success=0.99))
    yield Row("equal at .99, share .02", Traffic(success=0.99))
    yield Row(".5 to .8, share .02", Traffic(success=0.5, lift=0.3), found=0.95)
    yield Row(".8 to .9, share .1", replace(tenth, lift=0.1), found=0.9)
    yield Row(".8 to .7, share .1", replace(tenth, lift=-0.1))
    yield Row("a third judged, a third of it late, slow failures",
              replace(tenth, judged=(0.3, 0.3), late=0.3, minutes_fail=60.0))  # fmt: skip
    yield Row("held out .015 where it should be .02, 50,000 sessions",
              Traffic(drawn=0.015, sessions=50_000), alarm=0.5)  # fmt: skip
    yield Row("held out .05 where it should be .1", replace(tenth, drawn=0.05), alarm=0.99)
    yield Row("half of the holdout's judged, all of the loop's",
              replace(tenth, judged=(0.5, 1.0)), alarm=0.99)  # fmt: skip


ROWS: Final = tuple(_rows())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = build_parser(__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--rows", default="", help="only those whose name has this text")
    options = parser.parse_args(arguments)
    return print_rows("lift", ROWS, options.rows, options.runs)


if __name__ == "__main__":
    sys.exit(main())
