"""It learns: a policy that is sampled for real gets better at what is rewarded, and only then."""

from random import Random

import pytest
import torch
from peft import PeftModel

from daemon.config.presets import PRESETS, preset
from daemon.solver.lora import attach
from daemon.solver.trajectory import Trajectory, Turn
from daemon.solver.update import Learner
from events.algorithm import Algorithm
from events.jobs import LoraSettings, OptimizerSettings
from tests.daemon.solver.tiny import VOCABULARY, tiny_model, trajectory

LEVERS = frozenset(range(VOCABULARY))
"""One token ends the turn, whichever it is: a bandit with as many levers as tokens."""


def wins(context: int, lever: int) -> bool:
    """Which quarter of the levers pays depends on what the policy was shown."""
    return lever % 4 == context % 4


def pull(model: PeftModel, contexts: list[int], size: int, seed: int) -> list[Trajectory]:
    """`size` rollouts for each context, drawn from the policy."""
    prompts = torch.tensor([[context, 2, 3] for context in contexts for _ in range(size)])
    with torch.no_grad():
        logp = model(input_ids=prompts).logits[:, -1].log_softmax(-1)
    chosen = torch.multinomial(logp.exp(), 1, generator=torch.Generator().manual_seed(seed))
    drawn = zip(prompts.tolist(), chosen.tolist(), logp.gather(-1, chosen).tolist(), strict=True)
    return [
        trajectory(
            Turn(tuple(prompt), (lever,), (logprob,)),
            rollout=f"{seed}/{number}",
            group=f"{seed}/{number // size}",
            success=wins(prompt[0], lever),
            reward=float(wins(prompt[0], lever)),
        )
        for number, (prompt, [lever], [logprob]) in enumerate(drawn)
    ]


def win_rate(model: PeftModel) -> float:
    """Over all contexts, exactly: the probability of every lever that pays."""
    contexts = range(4, 16)
    with torch.no_grad():
        found = model(input_ids=torch.tensor([[context, 2, 3] for context in contexts]))
    pays = [[float(wins(context, lever)) for lever in range(VOCABULARY)] for context in contexts]
    chances: torch.Tensor = found.logits[:, -1].softmax(-1) * torch.tensor(pays)
    return float(chances.sum(-1).mean())


def learn(seed: int, algorithm: Algorithm, steps: int = 25) -> tuple[float, float]:
    """Win rate before and after GRPO from a random model."""
    model = attach(tiny_model(seed), LoraSettings(rank=8), seed)
    learner = Learner(model, algorithm, LEVERS, OptimizerSettings(lr=0.01))
    chance = Random(f"contexts {seed}")
    before = win_rate(model)
    for step in range(steps):
        contexts = [chance.randrange(4, 16) for _ in range(8)]
        figures = learner.step(pull(model, contexts, 8, seed * 1000 + step))
        assert figures.mismatch_mean < 1e-5
    return before, win_rate(model)


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_raises_the_rate_of_success_of_a_random_model(seed: int) -> None:
    before, after = learn(seed, Algorithm())
    assert before < 0.5
    assert after > before + 0.35


@pytest.mark.learning
@pytest.mark.parametrize("name", PRESETS)
def test_published_algorithms_learn_too(name: str) -> None:
    before, after = learn(0, preset(name))
    assert after > before + 0.3


def test_verdicts_by_chance_teach_nothing() -> None:
    """The same steps on coin flips: what improves above is not the training itself."""
    model = attach(tiny_model(0), LoraSettings(rank=8), 0)
    learner = Learner(model, Algorithm(), LEVERS, OptimizerSettings(lr=0.01))
    chance = Random("coins")
    before = win_rate(model)
    for step in range(25):
        made = pull(model, [chance.randrange(4, 16) for _ in range(8)], 8, step)
        flipped = [
            trajectory(
                *item.turns,
                rollout=item.rollout,
                group=item.group,
                success=coin,
                reward=float(coin),
            )
            for item in made
            for coin in [chance.random() < 0.5]
        ]
        learner.step(flipped)
    assert win_rate(model) < before + 0.2
