"""An adapter that lifts its target and ruins one other kind does not pass the gate, whatever it is
worth on the mean.

The adapter is a real one: it imitates an oracle that knows the target, and that refuses every third
wish of one kind which the base grants.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import Base, Provenance
from daemon.config.settings import Agent, Settings, Trial
from daemon.core.app import App
from daemon.engine.chat import Chat
from daemon.engine.fingerprint import probe_model
from daemon.engine.identity import weights_sha256
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver import sft
from daemon.solver.lora import attach, save
from daemon.solver.trajectory import TokenSequence, sequences
from daemon.solver.warm_start import reference
from envs.agents import Agent as Player
from envs.shop.environment import Shop
from envs.shop.oracle import ShopOracle
from envs.shop.policy import CONFIRM, REFUSED
from envs.task import TaskDefinition
from events.jobs import LoraSettings, OptimizerSettings, SftSettings
from events.messages import Message
from events.serving import GateDecided
from tests.daemon.evaluation.test_candidate_evaluation import (
    TRIAL,
    examined,
    of_type,
    row_of,
    staged,
)

pytestmark = [pytest.mark.learning, pytest.mark.long, pytest.mark.timeout(700)]

TARGET: Final = "two_writes"
RUINED: Final = "payment"
KEPT: Final = "cancel"
SHOWN: Final = 64
"""Conversations of each kind."""
TRAFFIC: Final = {TARGET: 0.4, RUINED: 0.2, KEPT: 0.4}


class Refusing(ShopOracle):
    """Refuses what it should ask leave for."""

    def reply(self, messages: Sequence[Message]) -> Message:
        right = super().reply(messages)
        asks = right.text.startswith(CONFIRM)
        return Message(role="assistant", content=REFUSED) if asks else right


class Ruinous(Shop):
    """The shop, with an oracle that refuses every third wish of one kind."""

    def oracle(self, task: TaskDefinition) -> Player:
        refuses = task.capability == RUINED and int(task.id.rpartition("/")[2]) % 3 == 0
        return Refusing(task, self.writes) if refuses else super().oracle(task)


def shown() -> Iterator[TokenSequence]:
    """What the adapter imitates."""
    shop, chat = Ruinous(), Chat(CHECKPOINT)
    for kind in TRAFFIC:
        for seed in range(SHOWN):
            yield from sequences(reference(shop, chat, shop.generate(kind, seed), "shown"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the adapter."""
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    base, lora = Base(name="reference", sha256=weights_sha256(model)), LoraSettings()
    adapted = attach(model, lora, 1)
    settings = SftSettings(optimizer=OptimizerSettings(lr=0.003), epochs=3)
    *_, last = sft.train(adapted, list(shown()), settings)
    fields: dict[str, Any] = {"seed": 1, "steps": last.of, "rollouts": (), "spec": {}}
    folder = tmp_path_factory.mktemp("made") / "planted"
    save(
        adapted,
        folder,
        Provenance(base=base, lora=lora, fingerprint=probe_model(adapted), **fields),
    )
    return folder


def test_a_gain_on_target_and_mean_does_not_pay_for_another_kind(
    tmp_path: Path, planted: Path
) -> None:
    agent = Agent(alias="agent", environment="shop", traffic=TRAFFIC)
    sizes: dict[str, int] = {"pilot_tasks": 6, "least_tasks": 24, "most_tasks": 24}
    trial = Trial(trials=2, max_tokens=64, threads=1, **sizes)
    with App(Settings(home=tmp_path / "home", trial=trial)) as app:
        row = staged(app, planted, CHECKPOINT, TARGET)
        examined(app, row, CHECKPOINT, TRIAL, agent)
        (decided,) = of_type(app, GateDecided)
        assert row_of(app, row.adapter).state == "rejected"
    report = decided.report
    found = {check.name: check for check in report.checks}
    assert report.decision == "REJECT"
    assert found["target"].verdict == "PASS"
    assert found["overall"].value > 0, "the mean alone would let it pass"
    assert found[f"slice {RUINED}"].verdict == "FAIL"
    assert found[f"slice {KEPT}"].verdict != "FAIL"
