"""The command line of an experiment that is run seed by seed.

    commands = Commands("merging", __doc__, SEEDS, run=_run, report=_report)
    commands.run.add_argument("--sizes", type=...)          more options of `run`, where it has some
    sys.exit(commands.main(arguments))

`run` has `--seeds`, `--development` and `--out`, `report` has `--out`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from events.errors import KintsugiError
from ops.learning.__main__ import parse_seeds

Command = Callable[[argparse.Namespace], int]
"""Takes the options, returns the exit code."""


class Commands:
    """The commands `run` and `report` of an experiment."""

    def __init__(
        self,
        experiment: str,
        description: str | None,
        seeds: Sequence[int],
        *,
        run: Command,
        report: Command,
    ) -> None:
        """`experiment` is a package of ops.learning, `seeds` are those that `run` makes by
        default."""
        self._parser = argparse.ArgumentParser(
            prog=f"python -m ops.learning.{experiment}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        commands = self._parser.add_subparsers(required=True)
        self.run = commands.add_parser("run", help="make all results that are missing")
        """The parser of the command `run`."""
        self.run.set_defaults(command=run)
        self.run.add_argument("--seeds", type=parse_seeds, default=seeds, help="such as 1-5 or 2,4")
        self.run.add_argument(
            "--development", action="store_true", help="task seeds for tuning, not for figures"
        )
        summary = commands.add_parser("report", help="tables on stdout")
        summary.set_defaults(command=report)
        for command in (self.run, summary):
            command.add_argument("--out", type=Path, required=True)

    def main(self, arguments: Sequence[str] | None) -> int:
        """Run the command that the arguments name (None: those of the process); return its exit
        code, 1 after an error, which is printed."""
        options = self._parser.parse_args(arguments)
        try:
            return int(options.command(options))
        except KintsugiError as error:
            print(error, file=sys.stderr)
            return 1
