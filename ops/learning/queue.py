"""Many runs, a few at a time, each in a process of its own with one thread.

A run that has a result is skipped, so a queue that was stopped goes on where it was. A run that
fails is named at the end and stops no other one.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from ops.learning.results import Key, select_pending
from ops.learning.settings import Arm

_FIRST: Final[tuple[Arm, ...]] = ("base", "d", "a", "b", "c")
"""Arms in the order of what they tell: the base and the comparison that matters most come first."""
_TOGETHER: Final = 3
"""Number of arms that are finished on every seed before the others begin."""

Tell = Callable[[str], None]


def keys(
    arms: Iterable[Arm],
    capabilities: str,
    shares: Iterable[float],
    seeds: Sequence[int],
    *,
    development: bool,
) -> list[Key]:
    """The runs in the order in which they are worth most; the base's always among them."""
    wanted = {"base", *arms}
    return [
        Key(arm=arm, capabilities=capabilities, share=share, seed=seed, development=development)
        for share in shares
        for part in (_FIRST[:_TOGETHER], _FIRST[_TOGETHER:])
        for seed in seeds
        for arm in part
        if arm in wanted
    ]


def work(
    folder: Path, wanted: Sequence[Key], flags: Sequence[str], processes: int, tell: Tell
) -> list[Key]:
    """Make every result that is missing, each by a command with these flags; returns the runs that
    failed."""
    waiting = list(select_pending(folder, wanted))
    tell(f"{len(wanted) - len(waiting)} of {len(wanted)} runs are there, {len(waiting)} to be made")
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(processes) as pool:
        futures = {pool.submit(_one, folder, key, flags): key for key in waiting}
        failed = list(_collect_failures(folder, futures, tell))
    return [key for key in waiting if key in failed]


def _collect_failures(folder: Path, futures: dict[Future[int], Key], tell: Tell) -> Iterator[Key]:
    for number, done in enumerate(as_completed(futures), 1):
        key = futures[done]
        code = done.result()
        how = "done" if code == 0 else f"failed with exit code {code}, see {_log(folder, key)}"
        tell(f"{number} of {len(futures)}: {key.name} {how}")
        if code:
            yield key


def _one(folder: Path, key: Key, flags: Sequence[str]) -> int:
    command = [sys.executable, "-m", "ops.learning", "one", key.model_dump_json()]
    command += ["--out", str(folder), *flags]
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with _log(folder, key).open("w", encoding="utf-8") as log:
        done = subprocess.run(
            command, env={**os.environ, **alone}, stdout=log, stderr=log, check=False
        )
    return done.returncode


def _log(folder: Path, key: Key) -> Path:
    return folder / f"{key.name}.log"
