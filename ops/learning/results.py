"""What a run leaves: one JSON file, whole or absent, and everything a report needs of it."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from events.errors import KintsugiError
from events.messages import StrictModel
from ops.learning.settings import Arm
from ops.learning.targets import Targets


class Key(StrictModel):
    """Identifies a run."""

    arm: Arm
    capabilities: str
    """The set of rare kinds in its traffic."""
    share: float
    """Share of these kinds in the traffic."""
    seed: int
    development: bool = False

    @property
    def name(self) -> str:
        """Name of the run's files."""
        seeds = "development" if self.development else "seed"
        return f"{self.capabilities}-{self.share:g}-{self.arm}-{seeds}{self.seed}"


class Source(StrictModel):
    """What code and weights made it."""

    commit: str
    clean: bool
    """Whether nothing tracked had been changed since."""
    settings: str
    """Digest of the settings."""
    base: str
    """sha256 of the base's weights."""


class TimedRun(StrictModel):
    """What every run of a seed says of itself."""

    seed: int
    development: bool
    source: Source
    seconds: float
    """Wall time, evaluation included."""
    processor_seconds: float


class NothingToReport(KintsugiError):
    """A folder without results, or with those of other settings."""


class Costs(StrictModel):
    """What of the budget went where, in rollouts."""

    diagnosis: int = 0
    references: int = 0
    training: int = 0

    @property
    def total(self) -> int:
        """All that counts."""
        return self.diagnosis + self.references + self.training


class Step(StrictModel):
    """One batch of a job."""

    spent: int
    """Rollouts of the budget spent so far, this batch included."""
    informative: float
    """Share of its groups with both verdicts."""
    passed: float
    """Mean of its groups' pass rates."""
    groups: Mapping[str, int]
    """Pool -> its groups in the batch."""


class PolicyEvaluation(StrictModel):
    """A policy of the run on held-out tasks."""

    budget: int
    """The nominal one that it is a policy of."""
    spent: int
    """Rollouts of the budget spent when the policy was made."""
    outcomes: Mapping[str, Mapping[str, tuple[bool, ...]]]


class Run(StrictModel):
    """A finished run."""

    key: Key
    source: Source
    budget: int
    spent: Costs
    targets: Targets | None
    """None where nothing was diagnosed."""
    ended: str
    """Why no more was spent: `budget`, or what the job said."""
    steps: tuple[Step, ...]
    evaluations: tuple[PolicyEvaluation, ...]
    passive: Mapping[str, Mapping[str, tuple[bool, ...]]] = {}
    """What an agent that does nothing earns; only in the base's run."""
    seconds: float
    """Wall time of the process, evaluations included."""


def path(folder: Path, key: Key) -> Path:
    """Where a run's result is."""
    return folder / f"{key.name}.json"


def write(folder: Path, run: Run) -> None:
    """Leave the result, whole or not at all."""
    write_document(path(folder, run.key), run)


def write_document(target: Path, document: StrictModel) -> None:
    """Write a JSON file, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(document.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(target)


def make_missing_runs(names: Mapping[int, str], out: Path, run: Callable[[int], TimedRun]) -> None:
    """Make the runs whose files (seed -> name) are not in a folder yet, one after the other."""
    for seed, name in names.items():
        target = out / f"{name}.json"
        if target.exists():
            continue
        result = run(seed)
        write_document(target, result)
        print(
            f"{name}: {result.seconds:.0f} s, {result.processor_seconds:.0f} s of a processor",
            flush=True,
        )


def check_settings(results: Sequence[TimedRun], digest: str) -> None:
    """See that there are results, and that they were made with the settings of a digest. Raises
    NothingToReport."""
    if not results:
        raise NothingToReport("there is no result; run some seeds first")
    for result in results:
        if result.source.settings != digest:
            raise NothingToReport(
                f"seed {result.seed} was made with the settings {result.source.settings[:12]}, not "
                f"{digest[:12]}; use another folder"
            )


def describe_provenance(results: Sequence[TimedRun]) -> str:
    """Return what code and settings made the results, which seeds they are of, and their cost."""
    commits = ", ".join(sorted({result.source.commit[:12] for result in results}))
    seeds = ", ".join(str(result.seed) for result in results)
    minutes = sum(result.processor_seconds for result in results) / 60
    settings = results[0].source.settings
    lines = [
        f"Settings {settings[:12]}, commits {commits}; seeds {seeds}; {minutes:.0f} core-minutes."
    ]
    if any(not result.source.clean for result in results):
        lines.append("Some results were made with changed files.")
    if any(result.development for result in results):
        lines.append("Development seeds: no figure to report.")
    return "\n".join(lines)


def read(folder: Path) -> list[Run]:
    """All results of a folder, by name."""
    return [Run.model_validate_json(file.read_bytes()) for file in sorted(folder.glob("*.json"))]


def select_pending(folder: Path, keys: Iterable[Key]) -> Iterator[Key]:
    """Those without a result."""
    return (key for key in keys if not path(folder, key).exists())
