"""The command lines of drivers: flags in, one JSON document out.

if __name__ == "__main__":
    run_command(__doc__, measure, events=20_000, rounds=5)      --events, --rounds, --folder
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn


def build_parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help prints the module docstring `about` unchanged."""
    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option `--folder`."""
    parser.add_argument("--folder", type=Path, help="where to work, kept; else a temporary one")


@contextmanager
def open_folder(folder: Path | None) -> Iterator[Path]:
    """Yield the folder of the option, made if missing; for None a temporary one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kintsugi-") as name:
        yield Path(name)


def run_command(
    about: str | None,
    run: Callable[..., dict[str, Any]],
    *,
    indent: int | None = None,
    **numbers: float,
) -> NoReturn:
    """Run a driver, print its figures as JSON, and exit.

    Each of `numbers` is a flag with its default. `run` gets the flags and `folder` by name. The
    exit status is 1 if the figures list something `wrong` or have a false `passed`, else 0.
    """
    parser = build_parser(about)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    add_folder(parser)
    options = vars(parser.parse_args())
    with open_folder(options.pop("folder")) as folder:
        figures = run(folder=folder, **options)
    print(json.dumps(figures, indent=indent))
    sys.exit(1 if figures.get("wrong") or not figures.get("passed", True) else 0)


def print_path(find: Callable[[], object], *errors: type[Exception]) -> NoReturn:
    """Print the path that `find` returns and exit; on one of `errors` exit with its text."""
    try:
        print(find())
    except errors as error:
        sys.exit(str(error))
    sys.exit(0)
