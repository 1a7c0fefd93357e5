"""Compare targeted with general reinforcement learning at equal rollouts, and say what it shows.

    python -m ops.learning.sentinel run --out DIR [--mixes mixture,unseen] [--seeds 1-5]
    python -m ops.learning.sentinel report --out DIR [--image gains.svg]

`run` makes one result after another in this process: all arms of a seed, then the next seed, then
the next traffic. It goes on where it was stopped; a second one in the same folder is refused. Exit
code 1 where a run failed or there is nothing to report.
"""

import argparse
import fcntl
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds
from ops.learning.results import write_document
from ops.learning.sentinel import report
from ops.learning.sentinel.results import Key, read
from ops.learning.sentinel.settings import ARMS, MIXES, SETTINGS, Arm


class FolderInUse(KintsugiError):
    """Another process makes results in the folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1


def list_keys(
    mixes: Sequence[str], arms: Sequence[Arm], seeds: Sequence[int], *, development: bool
) -> list[Key]:
    """The runs in the order in which they are made."""
    return [
        Key(mix=mix, arm=arm, seed=seed, development=development)
        for mix in mixes
        for seed in seeds
        for arm in arms
    ]


def _run(options: argparse.Namespace) -> int:
    failed = 0
    keys = list_keys(options.mixes, options.arms, options.seeds, development=options.development)
    with _locked(options.out):
        for key in keys:
            if not key.locate(options.out).exists():
                failed += not _make(key, options.out)
    return 1 if failed else 0


def _make(key: Key, folder: Path) -> bool:
    """Make one result; returns whether it is there now."""
    from ops.learning.sentinel.run import compare

    try:
        result = compare(key, SETTINGS, folder)
    except (KintsugiError, ValueError) as error:
        print(f"{key.name}: {error}", file=sys.stderr, flush=True)
        return False
    write_document(key.locate(folder), result)
    print(
        f"{key.name}: {result.seconds:.0f} s, {result.processor_seconds:.0f} s of a processor",
        flush=True,
    )
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Inside the block, no other process makes results there. Raises FolderInUse."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"another process makes results in {folder}; wait for it, or name another folder"
            ) from None
        yield


def _report(options: argparse.Namespace) -> int:
    comparisons = report.group_runs(read(options.out))
    if options.image:
        report.draw(comparisons, options.image)
    print(report.text(comparisons), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning.sentinel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--mixes", type=_choose(MIXES), default=list(MIXES))
    run.add_argument("--arms", type=_choose(ARMS), default=list(ARMS))
    run.add_argument("--seeds", type=parse_seeds, default=range(1, 6), help="such as 1-5 or 2,4")
    run.add_argument(
        "--development", action="store_true", help="task seeds for tuning, not for figures"
    )
    summary = commands.add_parser("report", help="tables on stdout, gains as SVG")
    summary.set_defaults(command=_report)
    summary.add_argument("--image", type=Path)
    for command in (run, summary):
        command.add_argument("--out", type=Path, required=True)
    return parser


def _choose(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names, which are put into their own order."""
    known = list(names)

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is unknown; there are {', '.join(known)}"
            )
        return [name for name in known if name in chosen]

    return parse


if __name__ == "__main__":
    sys.exit(main())
