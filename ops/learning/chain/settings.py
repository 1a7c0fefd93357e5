"""Every setting of a chain: the demo's, on a mixture with four weak kinds, and changes of them."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Annotated, Any, Final

from pydantic import Field

import ops.demo.place as demo
from daemon.engine.reference.weights import CHECKPOINT
from events.canonical import exact_json, sha256
from events.messages import StrictModel

WEAK: Final = ("two_writes", "fallback", "question", "changed_mind")
"""Kinds that the reference policy is weak in."""
_PLAIN: Final = ("cancel", "return", "exchange", "payment", "address", "ineligible")
MIXTURES: Final[Mapping[str, Mapping[str, float]]] = {
    "four": dict.fromkeys(WEAK, 0.085) | dict.fromkeys(_PLAIN, 0.11),
    "demo": demo.MIX,
}
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


CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    "demo": Configuration(),
    "demo_mix": Configuration(mixture="demo"),
    "shown": Configuration(
        sections={
            "proposer": {
                "tasks": 384,
                "targeted_step": 0.7,
                "targeted_most": 0.7,
                "replay": 0.1,
            },
            "training": {"warm_start": "always", "references": 64},
        }
    ),
}
SETTINGS: Final = Settings()


def _read_demo_sections() -> dict[str, dict[str, Any]]:
    """The demo's settings of what a chain runs; ports and keys that it does not need are blank."""
    text = (Path(demo.__file__).parent / "kintsugi.toml").read_text()
    blank = dict.fromkeys(("gateway_port", "engine_port"), "1")
    values = {**asdict(demo.SIZES["whole"]), **blank, "traffic": "{}", "checkpoint": "",
              "key": "", "watcher": ""}  # fmt: skip
    document = tomllib.loads(Template(text).substitute(values))
    return {section: dict(document.get(section, {})) for section in _SECTIONS}
