"""Hours of mixed load, kills and restarts, and what grows meanwhile.

    python -m ops.soak [--minutes 120] [--seed 0] [--log sqlite|kafka] [--home FOLDER]

Customers play the shop's tasks through the gateway of `kintsugi up` while others stream, retry,
praise, hang up and ask wrongly (traffic.py); cycles fire one after the other; roles, `up` itself
and running jobs are killed, with Kafka the broker and the database as well (troubles.py). Every ten
seconds everything is measured (sampling.py) and kept in FOLDER/samples.jsonl. Prints one document
of JSON, and on stderr a table. Exit code 1 when something grows beyond its bound
(growth.py has the meaning, verdict.py the bounds). It is also 1 when an acknowledged event is not
in the log, or when the tables are not what the log makes of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ops.command_line import build_parser, open_folder
from ops.faults.loop_kill import LOGS
from ops.soak.run import soak


def main() -> int:
    """Run the command line."""
    parser = build_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", choices=LOGS, default="kafka")
    parser.add_argument("--home", type=Path, help="where to work, kept; else a temporary one")
    options = parser.parse_args()
    with open_folder(options.home) as folder:
        figures = soak(options.minutes, folder, options.seed, options.log)
    show(figures, Console(stderr=True))
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report's figures as a table for people."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "lives", "first third", "last third", "an hour, by age", "by data", "verdict"):
        table.add_column(name, justify="left" if name in ("", "verdict") else "right")
    for role, figures in report["roles"].items():
        for what, figure in figures.items():
            _row(table, f"{role}: {what}", figure)
    for name, figure in report["whole"].items():
        _row(table, name, figure)
    console.print(table)
    for name, most in report["filled"].items():
        console.print(f"{name}: {most:.1f} at most", markup=False, highlight=False)
    for name, figure in report["growing"].items():
        console.print(f"{name}: {figure}", markup=False, highlight=False)
    for sentence in (*report["grows"], *report["wrong"]):
        console.print(sentence, style="red", markup=False)


def _row(table: Table, name: str, figure: dict[str, Any]) -> None:
    verdict = f"{figure['verdict']} (bound {figure['bound']:.3g})"
    table.add_row(
        name, str(figure["lives"]), _number(figure["first"]), _number(figure["last"]),
        _slope(figure["by_age"]), _slope(figure["by_data"]), verdict,
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _slope(slope: dict[str, float] | None) -> str:
    if slope is None:
        return "-"
    return f"{slope['value']:+.1f} [{slope['low']:+.1f}, {slope['high']:+.1f}]"


if __name__ == "__main__":
    sys.exit(main())
