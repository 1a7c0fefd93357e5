"""Every fault driver at its full count, in pieces that may be stopped and resumed.

    python -m ops.faults.run [--scale 0.05] [--only DRIVER ...] [--checkpoint FILE]

A piece that is done is a line in the checkpoint file and is not run again, so the hours may be
spread over several runs and over machines (put the files together). At the end one line of JSON per
driver: counts are sums over its pieces, times the longest. Exit code 1 if a piece did not pass;
after the defect is mended, remove its line from the checkpoint.
"""

import importlib
import inspect
import json
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ops.faults
from ops.command_line import build_parser

PLAN: Final = {
    "broker_down": (600, 600),
    "broker_flap": (20, 10),
    "broker_kill": (20, 10),
    "broker_wiped": (10, 5),
    "clock_steps": (100, 20),
    "corrupt_batch": (10, 5),
    "database_down": (300, 300),
    "demo_kill": (4, 1),
    "engine_liar": (1_000, 100),
    "fold_kill": (100, 20),
    "fold_poison": (2_000, 200),
    "fold_twins": (60, 60),
    "full_disk": (100, 20),
    "gateway_alike": (200, 20),
    "gateway_broker_down": (600, 600),
    "gateway_clients": (1_000, 100),
    "gateway_full_disk": (100, 20),
    "gateway_kill": (1_000, 50),
    "gateway_pause": (100, 20),
    "gateway_restart": (100, 10),
    "gateway_retry": (300, 30),
    "gateway_upstream_kill": (100, 10),
    "job_answers": (22, 11),
    "kill_appender": (100, 20),
    "log_restored": (200, 20),
    "log_trimmed": (20, 10),
    "loop_kill": (20, 2),
    "power_cut": (1_000, 100),
    "reordered": (200, 40),
    "serving_database_down": (100, 10),
    "serving_engine_kill": (100, 10),
    "serving_files": (240, 24),
    "serving_full_disk": (100, 10),
    "serving_kill": (200, 20),
    "serving_restored": (40, 4),
    "serving_twins": (150, 15),
    "session_poison": (120, 24),
    "shipper_kill": (100, 20),
}
"""Driver -> (full count, count in one piece). broker_down, database_down, fold_twins and
gateway_broker_down count the seconds of one absence, which cannot be cut into pieces."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A module of this folder with `run(count, folder) -> figures`."""

    name: str
    run: Callable[..., dict[str, Any]]
    full: int
    piece: int

    @property
    def takes_seed(self) -> bool:
        """Return whether the driver takes a seed, so that each piece can have its own."""
        return "seed" in inspect.signature(self.run).parameters


def drivers() -> Iterator[Driver]:
    """Yield the drivers of this folder by name."""
    for module in pkgutil.iter_modules(ops.faults.__path__):
        if module.name == "run":
            continue
        run = getattr(importlib.import_module(f"ops.faults.{module.name}"), "run", None)
        if run is not None:
            yield Driver(module.name, run, *PLAN[module.name])


def strike(driver: Driver, count: int, seed: int) -> dict[str, Any]:
    """Run one piece. A driver's exception becomes a failed result, so that others still run."""
    options = {"seed": seed} if driver.takes_seed else {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"kintsugi-{driver.name}-") as folder:
        # PostgreSQL's own user must be able to enter.
        Path(folder).chmod(0o755)
        try:
            figures = driver.run(count, Path(folder), **options)
        except Exception as error:  # recorded in the piece's result, so the whole run fails
            figures = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    return figures | {"count": count, "took_seconds": round(time.monotonic() - began, 1)}


def sum_pieces(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Add counts of pieces, take the largest times and rates, join lists; all must have passed."""
    total: dict[str, Any] = {}
    for piece in pieces:
        for name, value in piece.items():
            older = total.get(name)
            if older is None:
                total[name] = value
            elif isinstance(value, bool):
                total[name] = older and value
            elif name == "took_seconds":
                total[name] = round(older + value, 1)
            elif isinstance(value, float) or name.endswith(("_seconds", "_bytes")):
                total[name] = max(older, value)
            elif isinstance(value, dict):
                total[name] = sum_pieces([older, value])
            elif isinstance(value, int | list):
                total[name] = older + value
    return total


def main() -> int:
    """Run the command line."""
    parser = build_parser(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full counts")
    parser.add_argument("--only", nargs="*", metavar="DRIVER")
    default = Path(".local/faults/checkpoint.jsonl")
    parser.add_argument("--checkpoint", type=Path, default=default)
    chosen = parser.parse_args()
    everything = {driver.name: driver for driver in drivers()}
    unknown = set(chosen.only or ()) - set(everything)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(everything)}")
    passed = True
    for name in chosen.only or everything:
        total = _finish(everything[name], chosen.scale, chosen.checkpoint)
        passed = passed and total["passed"]
        print(json.dumps({"driver": name, **total}), flush=True)
    return 0 if passed else 1


def _finish(driver: Driver, scale: float, checkpoint: Path) -> dict[str, Any]:
    """Run a driver's pieces that the checkpoint lacks; return the sum of all pieces."""
    wanted = max(1, round(driver.full * scale))
    pieces = _read_checkpoint(checkpoint, driver.name)
    while (done := sum(piece["count"] for piece in pieces)) < wanted:
        count = min(driver.piece, wanted - done)
        print(f"{driver.name}: {done} of {wanted}, {count} more ...", file=sys.stderr, flush=True)
        piece = strike(driver, count, seed=done)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with checkpoint.open("a") as file:
            file.write(json.dumps({"driver": driver.name, **piece}) + "\n")
        pieces.append(piece)
    return sum_pieces(pieces)


def _read_checkpoint(checkpoint: Path, driver: str) -> list[dict[str, Any]]:
    if not checkpoint.exists():
        return []
    lines = [json.loads(line) for line in checkpoint.read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name != "driver"}
        for line in lines
        if line["driver"] == driver
    ]


if __name__ == "__main__":
    sys.exit(main())
