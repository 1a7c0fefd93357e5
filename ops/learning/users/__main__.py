"""Tune users on more and more dialogues, and say how often they err on others.

    python -m ops.learning.users run --out DIR [--seeds 1-5] [--sizes 0,32,128,512,8192]
    python -m ops.learning.users run --out DIR --manners [--seeds 1-5] [--sizes 8192]
    python -m ops.learning.users report --out DIR

With `--manners` each user trains on from the one of its size in the same folder, on twice as many
dialogues in all manners of plans, and is examined in them: the second step of docs/users.md, at the
defaults of the daemon.
`run` makes one seed after another in this process, and goes on where it was stopped. Exit code 1
where a run failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence

from ops.learning.command_line import Commands
from ops.learning.results import make_missing_runs
from ops.learning.users.settings import SEEDS, SETTINGS, SIZES


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    commands = Commands("users", __doc__, SEEDS, run=_run, report=_report)
    commands.run.add_argument("--sizes", type=_parse_sizes, help="such as 0,32")
    commands.run.add_argument(
        "--manners", action="store_true", help="train on in all manners (of 8192 by default)"
    )
    return commands.main(arguments)


def _run(options: argparse.Namespace) -> int:
    from ops.learning.users.run import name_run, run

    development, manners = options.development, options.manners
    sizes = options.sizes or (SIZES[-1:] if manners else SIZES)
    make_missing_runs(
        {s: name_run(s, development=development, manners=manners) for s in options.seeds},
        options.out,
        lambda seed: run(
            seed,
            SETTINGS,
            options.out,
            development=development,
            sizes=sizes,
            manners=manners,
        ),
    )
    return 0


def _report(options: argparse.Namespace) -> int:
    from ops.learning.users.report import write_report
    from ops.learning.users.run import UserRun

    files = sorted(options.out.glob("*.json"))
    results = [UserRun.model_validate_json(file.read_bytes()) for file in files]
    print(write_report(results, SETTINGS), end="")
    return 0


def _parse_sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
