"""Train a router for members that are there, and say what a panel of them passes.

    python -m ops.learning.routing run --members DIR --out DIR [--seeds 1-5]
    python -m ops.learning.routing report --out DIR
    python -m ops.learning.routing heads --out DIR [--seeds 1-5]

`--members` is the folder of `python -m ops.learning.merging run`. `run` makes one seed after
another in this process, and goes on where it was stopped. `heads` needs no members: it fits a
head and trains a router of labels with the same tasks, asks both about others, and prints a table.
Exit code 1 where a run failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.merging.settings import SEEDS
from ops.learning.results import make_missing_runs
from ops.learning.routing.settings import SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    from ops.learning.merging.run import name_run
    from ops.learning.routing.run import run

    development = options.development
    make_missing_runs(
        {seed: name_run(seed, development=development) for seed in options.seeds},
        options.out,
        lambda seed: run(seed, SETTINGS, options.members, options.out, development=development),
    )
    return 0


def _report(options: argparse.Namespace) -> int:
    from ops.learning.routing.report import write_report
    from ops.learning.routing.run import RoutingRun

    files = sorted(options.out.glob("*.json"))
    results = [RoutingRun.model_validate_json(file.read_bytes()) for file in files]
    print(write_report(results, SETTINGS), end="")
    return 0


def _compare_heads(options: argparse.Namespace) -> int:
    from ops.learning.routing.heads import HEADS, HeadRun, run_forms, tabulate_forms

    development = options.development
    names = {s: f"{'development' if development else 'seed'}{s}" for s in options.seeds}
    make_missing_runs(
        names,
        options.out,
        lambda seed: run_forms(seed, HEADS, options.out / "jobs", development=development),
    )
    files = [options.out / f"{name}.json" for name in names.values()]
    results = [HeadRun.model_validate_json(file.read_bytes()) for file in files]
    print(tabulate_forms(results, HEADS), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--members", type=Path, required=True, help="folder of ops.learning.merging")
    heads = commands.add_parser("heads", help="compare heads with routers of labels")
    heads.set_defaults(command=_compare_heads)
    for command in (run, heads):
        command.add_argument("--seeds", type=parse_seeds, default=SEEDS, help="such as 1-5 or 2,4")
        command.add_argument(
            "--development", action="store_true", help="task seeds for tuning, not for figures"
        )
    summary = commands.add_parser("report", help="tables on stdout")
    summary.set_defaults(command=_report)
    for command in (run, heads, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
