"""Have tasks written by a writer with planted faults, and say what the data engine makes of them.

    python -m ops.learning.synthesis run --out DIR [--seeds 1-5]
    python -m ops.learning.synthesis train --out DIR [--seeds 1-5]
    python -m ops.learning.synthesis report --out DIR

`run` writes the tasks of all arms. `train` trains a job on the accepted tasks of the most telling
arms, for each seed the base and one arm after another, and evaluates it. Both run in this process,
and go on where they were stopped. `report` prints what is there of both. Exit code 1 where a run
failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.results import make_missing_runs
from ops.learning.synthesis.settings import JOBS, SEEDS, SETTINGS, TRAINED

_WRITTEN, _TRAINED = "written", "trained"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    from ops.learning.synthesis.run import name_run, run_writing

    development = options.development
    make_missing_runs(
        {seed: name_run(seed, development=development) for seed in options.seeds},
        options.out / _WRITTEN,
        lambda seed: run_writing(seed, SETTINGS, development=development),
    )
    return 0


def _train(options: argparse.Namespace) -> int:
    from ops.learning.synthesis.run import name_run
    from ops.learning.synthesis.training import BASE, run_job

    development = options.development
    for seed in options.seeds:
        for arm in (None, *TRAINED):
            own = name_run(seed, development=development)
            name = f"{BASE if arm is None else arm.name}-{own}"
            folder = options.out / _TRAINED / name
            make_missing_runs(
                {seed: name},
                options.out / _TRAINED,
                partial(
                    run_job,
                    arm,
                    settings=SETTINGS,
                    jobs=JOBS,
                    folder=folder,
                    development=development,
                ),
            )
    return 0


def _report(options: argparse.Namespace) -> int:
    from ops.learning.synthesis.outcomes import write_outcomes
    from ops.learning.synthesis.report import write_report
    from ops.learning.synthesis.run import WritingRun
    from ops.learning.synthesis.training import TrainedRun

    files = sorted((options.out / _WRITTEN).glob("*.json"))
    results = [WritingRun.model_validate_json(file.read_bytes()) for file in files]
    print(write_report(results, SETTINGS), end="")
    files = sorted((options.out / _TRAINED).glob("*.json"))
    trained = [TrainedRun.model_validate_json(file.read_bytes()) for file in files]
    if trained:
        print(f"\n{write_outcomes(trained, JOBS)}", end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.synthesis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="write the tasks of all seeds that are missing")
    run.set_defaults(command=_run)
    train = commands.add_parser("train", help="train and evaluate all policies that are missing")
    train.set_defaults(command=_train)
    summary = commands.add_parser("report", help="tables on stdout")
    summary.set_defaults(command=_report)
    for command in (run, train):
        command.add_argument("--seeds", type=parse_seeds, default=SEEDS, help="such as 1-5 or 2,4")
        command.add_argument(
            "--development", action="store_true", help="task seeds for tuning, not for figures"
        )
    for command in (run, train, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
