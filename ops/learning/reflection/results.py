"""What a run leaves: one JSON file, whole or absent."""

from collections.abc import Mapping
from pathlib import Path

from envs.task import Operator
from events.messages import StrictModel
from ops.learning.reflection.settings import Arm
from ops.learning.results import Source


class Key(StrictModel):
    """Identifies a run."""

    arm: Arm
    seed: int
    development: bool = False

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return f"{'development' if self.development else 'seed'}{self.seed}-{self.arm}"

    def locate(self, folder: Path) -> Path:
        """Return the path of its result."""
        return folder / f"{self.name}.json"


class Tries(StrictModel):
    """What a policy does with one held-out lesson, a value per try."""

    repaired: tuple[bool, ...]
    """Whether the first message repairs the call; where it has to speak, whether the task is done
    in the end too."""
    official: tuple[bool, ...]
    """Whether it is correct by the benchmark's own rule."""
    passed: tuple[bool, ...]
    """Verdict on the whole episode."""
    reflected: tuple[bool, ...]
    """Whether the first message has a reflection."""
    repeated: tuple[int, ...]
    """Calls that repeat the one before them."""
    tokens: tuple[int, ...]
    """Tokens that the policy wrote."""


class ArmRun(StrictModel):
    """A finished run."""

    key: Key
    source: Source
    references: int = 0
    """Trajectories of the oracle that were shown."""
    reference_tokens: int = 0
    """Tokens of them that were trained on, once each."""
    rollouts: int = 0
    """That were sampled for training."""
    ended: str = "untrained"
    """How the job ended."""
    adapter: str | None = None
    """sha256 of the adapter's weights; None where the base answered: untrained, or after a job that
    found nothing to learn from (`ended`)."""
    clean: Mapping[str, Mapping[str, tuple[bool, ...]]]
    """Kind -> held-out task -> verdict on each trial."""
    clean_tokens: Mapping[str, float]
    """Kind -> tokens that the policy wrote, the mean over episodes."""
    injected: Mapping[Operator, Mapping[str, Tries]]
    """Operator -> held-out lesson -> what was done with it."""
    kind_of: Mapping[str, str]
    """Held-out lesson -> kind of its task."""
    seconds: float
    """Wall time, evaluation included."""
    processor_seconds: float


def read(folder: Path) -> list[ArmRun]:
    """All results of a folder, by name."""
    return [ArmRun.model_validate_json(file.read_bytes()) for file in sorted(folder.glob("*.json"))]
