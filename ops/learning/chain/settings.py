"""Every setting of a chain: the demo's, on a mixture with four weak kinds, and changes of them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

import ops.demo.place as demo
from daemon.engine.reference.weights import CHECKPOINT
from events.canonical import exact_json, sha256
from events.messages import StrictModel
from ops.demo.mixture import MIX
from ops.learning.settings import FOUR_WEAK

_DEMO: Final = Path(demo.__file__).parent
_PLACE: Final = re.compile(r"\$(\w+)")
MIXTURES: Final[Mapping[str, Mapping[str, float]]] = {"four": FOUR_WEAK, "demo": MIX}
"""Name -> kind of task -> its share of the traffic."""
_SECTIONS: Final = ("proposer", "training", "trial")


class Configuration(StrictModel):
    """Changes of the demo's settings: section -> field -> value."""

    sections: Mapping[str, Mapping[str, Any]] = {}
    mixture: str = "four"

    def build_sections(self) -> dict[str, dict[str, Any]]:
        """The sections of the settings that a chain reads, the demo's with these changes."""
        sections = _read_demo_sections()
        for section, changes in self.sections.items():
            sections.setdefault(section, {}).update(changes)
        return sections


class Settings(StrictModel):
    """How every chain is made."""

    checkpoint: Path = CHECKPOINT
    base: str = "reference"
    recorded: Annotated[int, Field(ge=1)] = demo.SIZES["whole"].min_rollouts
    """Live rollouts before each cycle, as in the demo."""
    tasks: Annotated[int, Field(ge=1)] = 64
    """Held-out, per kind."""
    trials: Annotated[int, Field(ge=1)] = 3
    """Per held-out task."""

    def compute_digest(self, configuration: Configuration) -> str:
        """sha256 of everything but where the checkpoint lies."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        traffic = dict(MIXTURES[configuration.mixture])
        return sha256(exact_json([own, configuration.build_sections(), traffic]))


_BEFORE: Final = {
    "proposer": {
        "tasks": 96, "targeted_step": 0.5, "targeted_most": 0.5, "replay": 0.05, "siblings": 0.0,
    },
    "training": {"warm_start": "off"},
}  # fmt: skip
"""What the demo had before ADR 0060."""
CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    "demo": Configuration(),
    "demo_mix": Configuration(mixture="demo"),
    "before": Configuration(sections=_BEFORE),
    "shown_less": Configuration(sections={"proposer": {"tasks": 384}}),
    "shown_half": Configuration(
        sections={
            "proposer": {"tasks": 640, "replay": 0.1},
            "training": {"references": 48, "references_most": 0.5},
        }
    ),
    "no_siblings": Configuration(sections={"proposer": {"siblings": 0.0}}),
    "no_warm_start": Configuration(sections={"training": {"warm_start": "off"}}),
}
"""Name -> changes of the demo's settings."""
SETTINGS: Final = Settings()


def _read_demo_sections() -> dict[str, dict[str, Any]]:
    """The demo's settings of what a chain runs; ports, keys and times, which it does not need, are
    1."""
    text = (_DEMO / "kintsugi.toml").read_text()
    values: dict[str, object] = {**asdict(demo.SIZES["whole"]), "traffic": "{}"}
    filled = _PLACE.sub(lambda match: str(values.get(match[1], 1)), text)
    document = tomllib.loads(filled)
    return {section: dict(document.get(section, {})) for section in _SECTIONS}
