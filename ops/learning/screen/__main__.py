"""Screen configurations of the learner, and say what they show.

    python -m ops.learning.screen run --out DIR --seeds 0 --development
    python -m ops.learning.screen run --out DIR --configurations today,zero --seeds 11,12,13
    python -m ops.learning.screen run --out DIR --mixture weak --configurations rounds_1,rounds_4
    python -m ops.learning.screen report --out DIR --mixture weak

`run` makes one result after another in this process and goes on where it was stopped; the base is
always among the configurations. Exit code 1 where a run failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.screen import report
from ops.learning.screen.settings import BASE, CONFIGURATIONS, MIXTURES


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _run(options: argparse.Namespace) -> int:
    from ops.learning.screen.run import path_of, screen, write

    failed = 0
    names = [BASE, *options.configurations]
    for seed, name in [(seed, name) for seed in options.seeds for name in names]:
        path = path_of(options.out, name, seed, development=options.development)
        if path.exists():
            continue
        try:
            result = screen(
                name, seed, MIXTURES[options.mixture], options.out, development=options.development
            )
        except KintsugiError as error:
            print(f"{path.stem}: {error}", file=sys.stderr, flush=True)
            failed += 1
            continue
        write(options.out, result)
        print(f"{path.stem}: {result.seconds:.0f} s", flush=True)
    return 1 if failed else 0


def _report(options: argparse.Namespace) -> int:
    try:
        results = report.read(options.out)
        show = report.kinds_text if options.kinds else report.text
        print(show(results, MIXTURES[options.mixture], options.against), end="")
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--configurations", type=_names, default=tuple(CONFIGURATIONS))
    run.add_argument("--seeds", type=parse_seeds, default=[0], help="such as 1-5 or 2,4")
    run.add_argument(
        "--development", action="store_true", help="task seeds for tuning, not for figures"
    )
    summary = commands.add_parser("report", help="tables on stdout")
    summary.set_defaults(command=_report)
    names = (BASE, *CONFIGURATIONS)
    summary.add_argument("--against", choices=names, default=BASE, help="what to compare with")
    summary.add_argument("--kinds", action="store_true", help="the gain on every kind of task")
    for command in (run, summary):
        command.add_argument("--out", type=Path, required=True)
        command.add_argument(
            "--mixture", choices=tuple(MIXTURES), default="demo", help="traffic; a folder has one"
        )
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CONFIGURATIONS]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is no configuration; there are {', '.join(CONFIGURATIONS)}"
        )
    return names


if __name__ == "__main__":
    sys.exit(main())
