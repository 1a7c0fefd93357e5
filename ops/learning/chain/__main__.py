"""Run chains of cycles, and say what each cycle brought.

    python -m ops.learning.chain run --out DIR --seed 0 --cycles 8 --configuration demo
    python -m ops.learning.chain report --out DIR

`run` leaves OUT/cycle-N.json and goes on where it was stopped. Exit code 1 where a cycle breaks off
or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.chain.run import Chain, CycleRecord
from ops.learning.chain.settings import CONFIGURATIONS, SETTINGS


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _run(options: argparse.Namespace) -> int:
    try:
        settings = SETTINGS.model_copy(update={"tasks": options.held_out})
        chain = Chain(options.out, options.seed, options.configuration, settings)
        for record in chain.run(options.cycles):
            print(render([record]), end="", flush=True)
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _report(options: argparse.Namespace) -> int:
    paths = sorted(options.out.glob("cycle-*.json"), key=lambda path: int(path.stem[6:]))
    if not paths:
        print(f"{options.out} has no cycle; run one first", file=sys.stderr)
        return 1
    records = [CycleRecord.model_validate_json(path.read_bytes()) for path in paths]
    kinds = list(records[0].kinds)
    print(f"| cycle | outcome | all traffic | {' | '.join(kinds)} |")
    print("|---" * (3 + len(kinds)) + "|")
    print(render(records), end="")
    return 0


def render(records: Iterable[CycleRecord]) -> str:
    """A line of a table for each cycle."""
    return "".join(
        f"| {record.number} | {record.outcome} | {record.traffic:.3f} | "
        + " | ".join(f"{rate:.2f}" for rate in record.kinds.values())
        + " |\n"
        for record in records
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.chain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all cycles that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--cycles", type=int, default=8)
    run.add_argument("--configuration", choices=list(CONFIGURATIONS), default="demo")
    run.add_argument(
        "--held-out", type=int, default=SETTINGS.tasks, help="held-out tasks of each kind"
    )
    report = commands.add_parser("report", help="a table on stdout")
    report.set_defaults(command=_report)
    for command in (run, report):
        command.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
