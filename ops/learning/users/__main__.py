"""Tune users on more and more dialogues, and say how often they err on others.

    python -m ops.learning.users run --out DIR [--seeds 1-5] [--sizes 0,32,128,512,8192]
    python -m ops.learning.users report --out DIR

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
    commands.run.add_argument("--sizes", type=_parse_sizes, default=SIZES, help="such as 0,32")
    return commands.main(arguments)


def _run(options: argparse.Namespace) -> int:
    from ops.learning.users.run import name_run, run

    development = options.development
    make_missing_runs(
        {seed: name_run(seed, development=development) for seed in options.seeds},
        options.out,
        lambda seed: run(seed, SETTINGS, options.out, development=development, sizes=options.sizes),
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
