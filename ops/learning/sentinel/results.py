"""What a run of the comparison leaves: one JSON file, whole or absent."""

from collections.abc import Mapping
from pathlib import Path

from events.messages import StrictModel
from ops.learning.results import Costs, PolicyEvaluation, Source, Step
from ops.learning.sentinel.settings import Arm
from ops.learning.targets import Target


class Key(StrictModel):
    """Identifies a run."""

    mix: str
    """Name of its traffic."""
    arm: Arm
    seed: int
    development: bool = False

    @property
    def name(self) -> str:
        """Name of the run's files."""
        seeds = "development" if self.development else "seed"
        return f"{self.mix}-{seeds}{self.seed}-{self.arm}"

    def locate(self, folder: Path) -> Path:
        """Return the path of its result."""
        return folder / f"{self.name}.json"


class Round(StrictModel):
    """One diagnosis and the job that followed."""

    spent: Costs
    targets: tuple[Target, ...]
    """Empty where the job trained on traffic: in a general arm, or because no generator failed
    often enough."""
    ended: str
    """`trained`, or why the policy stayed as it was."""
    updates: int
    """Optimizer steps that the policy has behind it, since the round began."""
    adapter: str | None
    """sha256 of the adapter's weights."""
    steps: tuple[Step, ...]


class ComparisonRun(StrictModel):
    """A finished run, or what is finished of one."""

    key: Key
    source: Source
    weights: Mapping[str, float]
    """Kind -> its share of the traffic."""
    warm_start: Costs
    """What of the budget the warm start took; nothing from the base."""
    rounds: tuple[Round, ...]
    evaluations: tuple[PolicyEvaluation, ...]
    """Of the base and the warm start one, of the others one per budget."""
    seconds: float
    """Wall time, evaluations included; what a killed process did of an unfinished round is left
    out."""
    processor_seconds: float
    """Processor time likewise."""


def locate_unfinished(folder: Path, key: Key) -> Path:
    """Return the path of what is finished of a run."""
    return folder / key.name / "unfinished.json"


def read(folder: Path) -> list[ComparisonRun]:
    """All results of a folder, by name; of runs without one, what is finished of them."""
    whole = [_read(file) for file in sorted(folder.glob("*.json"))]
    names = {run.key.name for run in whole}
    begun = sorted(folder.glob("*/unfinished.json"))
    return whole + [_read(file) for file in begun if file.parent.name not in names]


def _read(file: Path) -> ComparisonRun:
    return ComparisonRun.model_validate_json(file.read_bytes())
