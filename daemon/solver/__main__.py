"""The learner as a program of its own: `python -m daemon.solver parity FILE`.

Not part of `kintsugi`, which must start without torch. Exit codes are those of `kintsugi`: 0 done,
1 failed, 2 wrong usage; errors are one sentence on stderr.
"""

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from events.errors import KintsugiError

DONE, FAILED = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    given = _parser().parse_args(arguments)
    try:
        return parity(given)
    except KintsugiError as error:
        print(f"daemon.solver: {error}", file=sys.stderr)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"daemon.solver: {where}{error.strerror or error}", file=sys.stderr)
    return FAILED


def parity(given: Namespace) -> int:
    """Print how far the loss is from a fixture; 1 where it is further than its tolerance."""
    # torch takes seconds to import, and wrong usage should not wait for it.
    from daemon.solver.parity import compare, read

    found = compare(read(given.file))
    document = {
        "cases": found.cases,
        "max_loss_error": _number(found.max_loss_error),
        "max_grad_error": _number(found.max_grad_error),
        "worst": found.worst,
    }
    print(json.dumps(document))
    return DONE if found.passed else FAILED


def _number(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m daemon.solver", description="The learner.")
    commands = parser.add_subparsers(dest="command", required=True)
    described = "Compare the loss and its gradient with those of a file of cases."
    command = commands.add_parser("parity", help=described, description=described)
    command.add_argument("file", type=Path, help="JSON with `inputs` and `cases`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
