"""Practise repairs in nine ways with one budget, and say what each brings.

    python -m ops.learning.reflection run --out DIR [--seeds 1-5] [--arms base,sft]
    python -m ops.learning.reflection report --out DIR

`run` makes one result after another in this process: all arms of a seed, then the next seed. It
goes on where it was stopped. Several may work in one folder: each leaves out the results that
another one is making. Exit code 1 where a run failed or there is nothing to report.
"""

import argparse
import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.reflection import report
from ops.learning.reflection.results import Key, read
from ops.learning.reflection.settings import ARMS, SEEDS, SETTINGS, Arm
from ops.learning.results import write_document


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    failed = 0
    for seed in options.seeds:
        for arm in options.arms:
            key = Key(arm=arm, seed=seed, development=options.development)
            with _claim(options.out, key) as is_ours:
                if is_ours and not key.locate(options.out).exists():
                    failed += not _make(key, options.out)
    return 1 if failed else 0


@contextmanager
def _claim(folder: Path, key: Key) -> Iterator[bool]:
    """Inside the block, no other process makes this result; whether this one may."""
    place = folder / key.name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "claim").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _make(key: Key, folder: Path) -> bool:
    """Make one result; return whether it is there now."""
    from ops.learning.reflection.run import practise

    try:
        result = practise(key, SETTINGS, folder)
    except (KintsugiError, ValueError) as error:
        print(f"{key.name}: {error}", file=sys.stderr, flush=True)
        return False
    write_document(key.locate(folder), result)
    print(
        f"{key.name}: {result.seconds:.0f} s, {result.processor_seconds:.0f} s of a processor",
        flush=True,
    )
    return True


def _report(options: argparse.Namespace) -> int:
    print(report.write_report(read(options.out), SETTINGS), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.reflection",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--arms", type=_parse_arms, default=list(ARMS), help="such as base,sft")
    run.add_argument("--seeds", type=parse_seeds, default=SEEDS, help="such as 1-5 or 2,4")
    run.add_argument(
        "--development", action="store_true", help="task seeds for tuning, not for figures"
    )
    summary = commands.add_parser("report", help="tables on stdout")
    summary.set_defaults(command=_report)
    for command in (run, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


def _parse_arms(text: str) -> list[Arm]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in ARMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no arm; there are {', '.join(ARMS)}")
    return [arm for arm in ARMS if arm in chosen]


if __name__ == "__main__":
    sys.exit(main())
