"""The command line that all fault drivers share: `--count`, and one line of JSON as the result."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command(run: Callable[[int, Path], dict[str, Any]], about: str | None) -> None:
    """Run a driver in a temporary folder, print its figures, and exit 1 unless it passed."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how often the fault strikes")
    parser.add_argument("--folder", type=Path, help="where to work, kept; else a temporary one")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        result = run(options.count, options.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="kintsugi-fault-") as folder:
            result = run(options.count, Path(folder))
    print(json.dumps(result))
    sys.exit(0 if result["passed"] else 1)
