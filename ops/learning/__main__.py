"""Run the learning experiments, and say what they show.

    python -m ops.learning run --out DIR --arms a,b,c,d --shares 0.13 --seeds 1-5 --processes 2
    python -m ops.learning report --out DIR [--image curves.svg]
    python -m ops.learning unseen

`run` goes on where it was stopped. Exit code 1 where a run failed or there is nothing to report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning import queue, report, results
from ops.learning.results import Key
from ops.learning.settings import ARMS, SETTINGS, WEAK, Arm


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    wanted = queue.keys(
        options.arms,
        options.capabilities,
        options.shares,
        options.seeds,
        development=options.development,
    )
    flags = ["--budget", str(options.budget), "--checkpoint", str(options.checkpoint)]
    failed = queue.work(
        options.out, wanted, flags, options.processes, lambda line: print(line, flush=True)
    )
    return 1 if failed else 0


def _one(options: argparse.Namespace) -> int:
    from ops.learning.run import run

    settings = SETTINGS.model_copy(update={"checkpoint": options.checkpoint})
    results.write(options.out, run(options.key, settings, options.budget, options.out))
    return 0


def _report(options: argparse.Namespace) -> int:
    experiments = report.group_runs(results.read(options.out))
    if options.image:
        report.draw(experiments, options.image)
    print(report.text(experiments), end="")
    return 0


def _unseen(options: argparse.Namespace) -> int:
    from ops.learning.run import measure_development
    from ops.learning.settings import unseen

    settings = SETTINGS.model_copy(update={"checkpoint": options.checkpoint})
    passed = measure_development(settings)
    for kind, rate in passed.items():
        print(f"{kind} {rate:.3f}")
    print(f"the unseen set: {', '.join(unseen(passed)) or 'empty'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="make all results that are missing")
    run.set_defaults(command=_run)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--arms", type=_arms, default=("a", "b", "c", "d"))
    run.add_argument("--shares", type=_shares, default=(0.13,))
    run.add_argument("--seeds", type=parse_seeds, default=range(1, 6), help="such as 1-5 or 2,4")
    run.add_argument("--capabilities", choices=sorted(WEAK), default="main")
    run.add_argument("--processes", type=int, default=2)
    run.add_argument(
        "--development", action="store_true", help="task seeds for tuning, not for figures"
    )
    single = commands.add_parser("one", help="make one result (what run starts)")
    single.set_defaults(command=_one)
    single.add_argument("key", type=Key.model_validate_json)
    single.add_argument("--out", type=Path, required=True)
    summary = commands.add_parser("report", help="tables on stdout, curves as SVG")
    summary.set_defaults(command=_report)
    summary.add_argument("--out", type=Path, required=True)
    summary.add_argument("--image", type=Path)
    rule = commands.add_parser("unseen", help="which kinds the rule of the unseen set chooses")
    rule.set_defaults(command=_unseen)
    for command in (run, single):
        command.add_argument("--budget", type=int, default=max(SETTINGS.budgets))
    for command in (run, single, rule):
        command.add_argument("--checkpoint", type=Path, default=SETTINGS.checkpoint)
    return parser


def _arms(text: str) -> tuple[Arm, ...]:
    arms: tuple[Arm, ...] = tuple(arm for arm in ARMS if arm in text.split(","))
    if set(arms) != set(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} names no arms; there are {', '.join(ARMS)}")
    return arms


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def parse_seeds(text: str) -> list[int]:
    """Seeds by ranges and numbers, such as `1-5` or `2,4`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


if __name__ == "__main__":
    sys.exit(main())
