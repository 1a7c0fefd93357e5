"""Train with users that err, with attribution and without, or with users that an adapter plays;
evaluate with exact users.

    python -m ops.learning.user_faults run --out DIR --seeds 0 --development
    python -m ops.learning.user_faults run --out DIR --seeds 1-5 [--arms clean,silent_20,judged_20]
    python -m ops.learning.user_faults run --out DIR --seeds 1-5 --arms clean_short,judged_20_long
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
from ops.learning.command_line import Commands
from ops.learning.user_faults.settings import ARMS, BASE, BUDGETS, PLAYERS


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    commands = Commands("user_faults", __doc__, (0,), run=_run, report=_report)
    commands.run.add_argument("--arms", type=_names, default=tuple(ARMS))
    commands.run.add_argument("--users", type=Path, help="folder of ops.learning.users")
    return commands.main(arguments)


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

    print(report.describe(report.read(options.out)), end="")
    return 0


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in (*ARMS, *BUDGETS, *PLAYERS)]:
        there = ", ".join((*ARMS, *BUDGETS, *PLAYERS))
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no arm; there are {there}")
    return names


if __name__ == "__main__":
    sys.exit(main())
