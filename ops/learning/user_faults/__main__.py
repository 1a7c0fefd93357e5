"""Train with users that err, with attribution and without, or with users that an adapter plays;
evaluate with exact users.

    python -m ops.learning.user_faults run --out DIR --seeds 0 --development
    python -m ops.learning.user_faults run --out DIR --seeds 1-5 [--arms clean,silent_20,judged_20]
    python -m ops.learning.user_faults run --out DIR --seeds 1-5 --arms clean,tuned --users USERS
    python -m ops.learning.user_faults report --out DIR

`run` makes one result after another in this process and goes on where it was stopped; the base is
always among the arms. USERS is the folder of ops.learning.users that has adapters of these seeds.
Exit code 1 where a run failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.user_faults.settings import ARMS, BASE, PLAYERS


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _run(options: argparse.Namespace) -> int:
    from ops.learning.results import write_document
    from ops.learning.user_faults.run import path_of, run

    if options.users is None and (played := [arm for arm in options.arms if arm in PLAYERS]):
        print(
            f"{played[0]}: an adapter plays its users; name the folder with --users",
            file=sys.stderr,
        )
        return 1
    failed = 0
    for seed, arm in [(seed, arm) for seed in options.seeds for arm in (BASE, *options.arms)]:
        path = path_of(options.out, arm, seed, development=options.development)
        if path.exists():
            continue
        try:
            result = run(
                arm, seed, options.out, development=options.development, users=options.users
            )
        except KintsugiError as error:
            print(f"{path.stem}: {error}", file=sys.stderr, flush=True)
            failed += 1
            continue
        write_document(path, result)
        print(f"{path.stem}: {result.seconds:.0f} s", flush=True)
    return 1 if failed else 0


def _report(options: argparse.Namespace) -> int:
    from ops.learning.user_faults import report

    try:
        print(report.describe(report.read(options.out)), end="")
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.user_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--arms", type=_names, default=tuple(ARMS))
    run.add_argument("--seeds", type=parse_seeds, default=[0], help="such as 1-5 or 2,4")
    run.add_argument("--users", type=Path, help="folder of ops.learning.users")
    run.add_argument("--development", action="store_true", help="task seeds for tuning")
    summary = commands.add_parser("report", help="a table on stdout")
    summary.set_defaults(command=_report)
    for command in (run, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in (*ARMS, *PLAYERS)]:
        there = ", ".join((*ARMS, *PLAYERS))
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no arm; there are {there}")
    return names


if __name__ == "__main__":
    sys.exit(main())
