"""Run eight cycles of the loop and what they are compared with, and say which goals are met.

    python -m ops.learning.cycles run --out DIR --seeds 21,22,23 [--arms base,loop,general,sft]
    python -m ops.learning.cycles report --out DIR

`run` makes one result after another and goes on where it was stopped; the base is always among the
arms. Exit code 1 where an arm failed or there is nothing to report.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.demo.place import SEEDS
from ops.learning.__main__ import parse_seeds
from ops.learning.cycles import report
from ops.learning.cycles.run import path_of, run, write
from ops.learning.cycles.settings import ARMS, SETTINGS, Arm, Settings

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, settings: Settings = SETTINGS) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    # However it is stopped, what it started is stopped with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.command == "report":
            print(report.text(report.read(options.out), settings), end="")
            return 0
        return run_all(options.out, options.seeds, options.arms, settings)
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def run_all(folder: Path, seeds: Sequence[int], arms: Sequence[Arm], settings: Settings) -> int:
    """Make every result that is missing; return 1 where one failed, else 0. Raises OtherSettings
    where a result is there that was made with other settings."""
    report.check_settings(report.read(folder), settings)
    failed = 0
    for seed in seeds:
        for arm in ARMS:
            path = path_of(folder, arm, seed)
            if path.exists() or arm not in ("base", *arms):
                continue
            print(f"{path.stem}: begins", file=sys.stderr, flush=True)
            try:
                result = run(arm, seed, settings, folder)
            except KintsugiError as error:
                print(f"{path.stem}: {error}", file=sys.stderr, flush=True)
                failed += 1
                continue
            write(folder, result)
            print(f"{path.stem}: {result.seconds:.0f} s", flush=True)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.cycles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    runs = commands.add_parser("run", help="make all results that are missing")
    runs.add_argument("--seeds", type=_seeds, required=True, help="such as 21-23 or 21,22")
    runs.add_argument("--arms", type=_arms, default=tuple(ARMS), help="such as loop,sft")
    summary = commands.add_parser("report", help="tables on stdout")
    for command in (runs, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


def _seeds(text: str) -> list[int]:
    try:
        seeds = parse_seeds(text)
    except ValueError:
        seeds = []
    if not seeds or not all(0 <= seed < SEEDS for seed in seeds):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no seeds; write numbers from 0 to {SEEDS - 1}, such as 21-23 or 21,22"
        )
    return seeds


def _arms(text: str) -> list[Arm]:
    arms: list[Arm] = [arm for arm in ARMS if arm in text.split(",")]
    if unknown := set(text.split(",")) - set(ARMS):
        raise argparse.ArgumentTypeError(f"{min(unknown)!r} is no arm; there are {', '.join(ARMS)}")
    return arms


if __name__ == "__main__":
    sys.exit(main())
