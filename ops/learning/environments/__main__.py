"""Train in three environments at once, mixed or apart, and in each alone.

    python -m ops.learning.environments run --out DIR --seeds 0 --development
    python -m ops.learning.environments run --out DIR [--seeds 1-5]
    python -m ops.learning.environments report --out DIR

`run` makes one seed after another in this process, and goes on where it was stopped. Several may
work in one folder, each with seeds of its own. Exit code 1 where a run failed or there is nothing
to report.
"""

import argparse
import sys
from collections.abc import Sequence

from ops.learning.command_line import Commands
from ops.learning.environments.settings import SEEDS, SETTINGS
from ops.learning.results import make_missing_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return Commands("environments", __doc__, SEEDS, run=_run, report=_report).main(arguments)


def _run(options: argparse.Namespace) -> int:
    from ops.learning.environments.run import name_run, run

    development = options.development
    make_missing_runs(
        {seed: name_run(seed, development=development) for seed in options.seeds},
        options.out,
        lambda seed: run(seed, SETTINGS, options.out, development=development),
    )
    return 0


def _report(options: argparse.Namespace) -> int:
    from ops.learning.environments.report import write_report
    from ops.learning.environments.run import SeedRun

    files = sorted(options.out.glob("*.json"))
    results = [SeedRun.model_validate_json(file.read_bytes()) for file in files]
    print(write_report(results, SETTINGS), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
