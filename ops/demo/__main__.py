"""make demo: from rollouts to ranked failure patterns, through killed processes.

    python -m ops.demo [--seed N] [--tasks N] [--trials N] [--home FOLDER]

It plays a scripted agent in the environment shop, imports the rollouts, kills the folding process
with SIGKILL while it works, several times, and shows that the tables are the same as those of a
fold that nobody disturbed. Exit code 1 if they are not. Uses the embedded defaults alone, whatever
is configured; the home stays, so that the commands it names can be tried.
"""

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from envs.shop.environment import Shop
from ops.demo.agent import Attempt, attempts
from ops.demo.mistakes import CATEGORY
from ops.demo.steps import Demo, DemoFailed
from ops.demo.traffic import make_tasks

KILLS: Final = 3

LIFE: Final = 0.12
"""At most this part of the work is done before a kill is due."""

DELAY: Final = 40e-6
"""Seconds per rollout: a due kill falls within about one transaction, anywhere in it."""

SHOWN_PATTERNS: Final = 5


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--home", type=Path, default=Path(".local/demo"))
    chosen = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    started = time.monotonic()
    try:
        equal = tell(console, chosen.home, chosen.seed, chosen.tasks, chosen.trials)
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    console.print(f"\n{time.monotonic() - started:.0f} s. Look around:", end=" ")
    home = os.path.relpath(chosen.home)
    console.print(f"KINTSUGI_HOME={home} .venv/bin/kintsugi patterns", style="bold")
    return 0 if equal else 1


def tell(console: Console, home: Path, seed: int, tasks: int, trials: int) -> bool:
    """The demo, step by step; whether the killed and the undisturbed fold are equal."""
    shutil.rmtree(home, ignore_errors=True)
    demo = Demo(home)
    shop = Shop()
    made = list(attempts(shop, make_tasks(shop, seed, tasks), trials, seed))
    failed = sum(not attempt.record["success"] for attempt in made)
    _head(console, 1, "rollouts")
    console.print(
        f"A scripted agent serves {tasks:,} customers of a small shop, {trials} times each: "
        f"{len(made):,} rollouts, {failed:,} failed."
    )
    _import(console, demo, made)
    _fold(console, demo, len(made), seed)
    _patterns(console, demo)
    _compare(console, demo, made)
    return _equal(console, demo)


def _import(console: Console, demo: Demo, made: list[Attempt]) -> None:
    _head(console, 2, "events")
    demo.write_rollouts(made)
    began = time.monotonic()
    first = demo.run("import", str(demo.rollouts), "--no-wait")
    seconds = time.monotonic() - began
    console.print(
        f"kintsugi import: {first['imported']:,} events appended to the log in {seconds:.1f} s, "
        "not folded yet."
    )


def _fold(console: Console, demo: Demo, total: int, seed: int) -> None:
    _head(console, 3, "projection, with kill -9 in the middle")
    random_ = random.Random(f"kills {seed}")
    folded = 0
    for _ in range(KILLS):
        due = folded + 1 + int(total * random_.uniform(0, LIFE))
        death = demo.fold_and_kill(due, delay=random_.uniform(0, DELAY * total))
        folded = death.folded
        console.print(
            f"kintsugi consume, process {death.pid}: killed after {death.seconds:.1f} s with "
            f"{death.folded:>5,} of {total:,} rollouts folded"
        )
        if folded == total:
            raise DemoFailed(
                f"the process was killed with all of {total} rollouts folded, which is "
                "not in the middle; run it again with more --tasks"
            )
    finished = demo.fold(total)
    console.print(
        f"kintsugi consume, process {finished.pid}: finished after {finished.seconds:.1f} s with "
        f"{finished.folded:,} of {total:,}"
    )
    again = demo.run("import", str(demo.rollouts))
    console.print(
        f"The same file imported again: {again['imported']} new, "
        f"{again['duplicates']:,} duplicates."
    )


def _patterns(console: Console, demo: Demo) -> None:
    _head(console, 4, "failure patterns, what to train next first")
    patterns = demo.run("patterns")
    table = Table(box=None, pad_edge=False)
    for title in ("priority", "failures", "attempts", "pass rate"):
        table.add_column(title, justify="right")
    table.add_column("category")
    table.add_column("first gold write that was not made")
    for line in patterns[:SHOWN_PATTERNS]:
        table.add_row(
            f"{line['priority']:.3f}", str(line["failures"]), str(line["attempts"]),
            f"{line['pass_rate']:.0%}", line["category"], line["pivot"],
        )  # fmt: skip
    console.print(table)
    console.print(f"... {len(patterns)} in all (kintsugi patterns)", style="dim")


def _compare(console: Console, demo: Demo, made: list[Attempt]) -> None:
    """What the agent was made to do wrong against what the diagnosis says."""
    _head(console, 5, "the diagnosis against what the script did wrong")
    lines = demo.run("rollouts", "ls", "--failed")
    found = {(line["task"], line["trial"]): line["category"] for line in lines}
    planted = Counter[Any]()
    agreed = Counter[Any]()
    for attempt in made:
        if attempt.mistake is None or attempt.record["success"]:
            continue
        key = (f"shop/{attempt.record['task']['id']}", attempt.record["trial"])
        planted[attempt.mistake] += 1
        agreed[attempt.mistake] += found.get(key) == CATEGORY[attempt.mistake]
    table = Table(box=None, pad_edge=False)
    table.add_column("the agent ...")
    table.add_column("failures", justify="right")
    table.add_column("found", justify="right")
    table.add_column("as")
    for mistake, count in planted.most_common():
        table.add_row(mistake.value, str(count), str(agreed[mistake]), CATEGORY[mistake])
    console.print(table)
    console.print(
        "One scripted mistake at most per attempt: a check of the path, and easier than real logs.",
        style="dim",
    )


def _equal(console: Console, demo: Demo) -> bool:
    _head(console, 6, "the same tables as without a kill")
    killed = demo.digest()
    undisturbed = demo.digest(undisturbed=True)
    rebuilt = demo.run("rebuild")
    equal = killed == undisturbed == rebuilt["hash"] and rebuilt["equal"] is True
    console.print(f"folded through {KILLS} kills     {killed}")
    console.print(f"folded without a kill      {undisturbed}")
    console.print(f"rebuilt from the log       {rebuilt['hash']}")
    console.print(
        "EQUAL, row for row" if equal else "NOT EQUAL", style="bold green" if equal else "bold red"
    )
    return equal


def _head(console: Console, number: int, title: str) -> None:
    console.print(f"\n[bold]{number}  {title}[/bold]")


if __name__ == "__main__":
    sys.exit(main())
