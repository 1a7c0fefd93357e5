"""From trajectories to tensors, and the policy's log-probabilities of them."""

import math
from random import Random
from typing import Any

import pytest
import torch

from daemon.config.presets import preset
from daemon.solver.batch import Row, choose, denominators, micro_batches, mini_batches, pad, rows
from daemon.solver.loss import Denominators
from daemon.solver.policy import IncompatibleModel, check, check_ids, score
from daemon.solver.trajectory import Trajectory
from events.algorithm import Algorithm, FilterConfig
from tests.daemon.solver.tiny import (
    END,
    ENDS,
    conversation,
    failed_group,
    groups,
    tiny_model,
    trajectory,
    turn,
)


def all_rows(trajectories: list[Trajectory], algorithm: Algorithm | None = None) -> list[Row]:
    algorithm = algorithm or Algorithm()
    chosen = choose(trajectories, algorithm, ENDS)
    names = tuple(dict.fromkeys(item.group for item in trajectories))
    return [row for part in rows(chosen, algorithm, names) for row in part]


def test_padding_changes_no_log_probability() -> None:
    """Short rows beside long ones, prompts included, at the sampler's positions."""
    model = tiny_model(dtype=torch.float64)
    batch = all_rows(groups(1))
    together = score(model, pad(batch)).logp
    for place, row in enumerate(batch):
        alone = score(model, pad([row])).logp[0]
        torch.testing.assert_close(together[place, : len(alone)], alone, atol=1e-9, rtol=0)
        assert not together[place, len(alone) :].any()


def test_log_probabilities_and_entropy_are_those_of_the_models_own_forward() -> None:
    model = tiny_model(dtype=torch.float64)
    batch = pad(all_rows(groups(2)))
    logits = model(input_ids=batch.ids, attention_mask=batch.attention).logits[:, :-1] / 0.7
    expected = logits.log_softmax(-1)
    picked = expected.gather(-1, batch.ids[:, 1:, None]).squeeze(-1) * batch.mask
    entropy = -(expected.exp() * expected).sum(-1) * batch.mask
    found = score(model, batch, temperature=0.7)
    torch.testing.assert_close(found.logp, picked, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.entropy, entropy, atol=1e-9, rtol=0)


def test_the_mask_is_on_the_predictions_of_what_was_written() -> None:
    (row,) = all_rows([trajectory(turn([5, 6, 7], [8, END]))])
    padded = pad([row])
    assert padded.ids.tolist() == [[5, 6, 7, 8, END]]
    assert padded.mask.tolist() == [[0, 0, 1, 1]]
    assert padded.ids[:, 1:][padded.mask > 0].tolist() == [8, END]
    torch.testing.assert_close(padded.sampler_logp, torch.tensor([[0, 0, -0.5, -0.51]]))


def test_denominators_of_rows_are_those_of_their_tensors() -> None:
    batch = all_rows(groups(3))
    padded = pad(batch)
    found, expected = denominators(batch), Denominators.of(padded.mask, padded.rollout_tokens)
    assert found.rollouts == pytest.approx(expected.rollouts)
    assert (found.tokens, found.longest) == (expected.tokens, expected.longest)


def test_a_rollout_in_many_sequences_still_counts_once() -> None:
    """Per-turn sequences of a template that breaks prefixes, weighed per rollout."""
    broken = trajectory(turn([5], [6, END]), turn([7], [8, 9, END]), rollout="a")
    whole = trajectory(turn([5], [6, END]), rollout="b", success=False, reward=0.0)
    batch = all_rows([broken, whole])
    assert [row.rollout_tokens for row in batch] == [5, 5, 2]
    assert denominators(batch).rollouts == pytest.approx(2.0)
    by_turn = all_rows([broken, whole], preset("trace_code"))
    assert denominators(by_turn).rollouts == pytest.approx(3.0)


def test_a_refused_rollout_makes_its_group_smaller_and_is_no_failure() -> None:
    good, bad = (trajectory(turn([5], [6, END]), rollout=name) for name in "ab")
    worse = trajectory(turn([5], [6, END]), rollout="c", success=False, reward=0.0)
    lost = trajectory(turn([5], [6, END]), rollout="d", success=None, reward=None)
    chosen = choose([good, bad, worse, lost], Algorithm(), ENDS)
    assert [refused.rollout for refused in chosen.refused] == ["d"]
    found = [part[0].advantage for part in rows(chosen, Algorithm(), chosen.kept.groups)]
    deviation = math.sqrt(1 / 3)
    assert found == pytest.approx([1 / 3 / deviation, 1 / 3 / deviation, -2 / 3 / deviation], 1e-4)


def test_groups_are_filtered_by_the_verdict_and_not_by_shaped_rewards() -> None:
    """Else a group that always fails would teach nothing but its penalties."""
    penalties = [0.0, -0.1, -0.2, -0.3]
    failing = [
        trajectory(turn([5], [6, END]), rollout=str(p), success=False, reward=p) for p in penalties
    ]
    assert choose(failing, Algorithm(), ENDS).kept.groups == ()


def test_a_cut_off_rollout_is_masked_out_or_kept() -> None:
    cut = trajectory(turn([5], [6, 7], truncated=True), rollout="cut", success=False, reward=0.0)
    whole = trajectory(turn([5], [6, END]), rollout="whole")
    masked = all_rows([cut, whole])
    assert [row.sequence.ids for row in masked] == [(5, 6, END)]
    assert masked[0].advantage > 0
    assert len(all_rows([cut, whole], preset("sr_code"))) == 2


@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_micro_batches_hold_every_row_once_and_keep_to_their_budget(budget: int) -> None:
    batch = all_rows(groups(4, count=5))
    found = micro_batches(batch, budget)
    assert sorted(id(row) for part in found for row in part) == sorted(id(row) for row in batch)
    for part in found:
        assert len(part) == 1 or len(part) * max(row.length for row in part) <= budget


def test_mini_batches_never_part_a_rollout() -> None:
    chance = Random("mini")
    made = [conversation(chance, str(n), "g", success=n % 2 == 0) for n in range(7)]
    algorithm = Algorithm(unit="turn")
    parted = rows(choose(made, algorithm, ENDS), algorithm, ["g"])
    found = list(mini_batches(parted, 3))
    assert [row for part in found for row in part] == [row for part in parted for row in part]
    assert len(found) == 3
    assert len(list(mini_batches(parted[:2], 4))) == 2


def test_no_rows_are_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one sequence"):
        pad([])


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"attention_dropout": 0.1}, "attention_dropout is 0.1")],
)
def test_a_model_with_dropout_is_refused(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(IncompatibleModel, match=names):
        check(tiny_model(**changes))


def test_a_model_whose_head_is_not_all_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
    )
    with pytest.raises(IncompatibleModel, match="more to its logits than its head"):
        check(Gemma2ForCausalLM(config))


def test_training_mode_changes_no_log_probability() -> None:
    model, batch = tiny_model(), pad(all_rows(groups(1)))
    assert torch.equal(score(model.train(), batch).logp, score(model.eval(), batch).logp)


def test_a_plain_model_is_supported() -> None:
    check(tiny_model())


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(IncompatibleModel, match=r"token id 32 is outside .* vocabulary of 32"):
        check_ids(tiny_model(), 32)


def advantages_of(batch: list[Trajectory], filtering: FilterConfig) -> dict[str, list[float]]:
    """Group -> the advantages that its rollouts are trained with."""
    algorithm = Algorithm(filter=filtering)
    chosen = choose(batch, algorithm, ENDS)
    found: dict[str, list[float]] = {}
    kept = [item for item in batch if item.group in chosen.kept.groups]
    for item, part in zip(kept, rows(chosen, algorithm, chosen.kept.groups), strict=True):
        found.setdefault(item.group, []).extend(row.advantage for row in part)
    return found


def test_a_group_that_always_fails_does_not_train_on_its_penalties() -> None:
    """A malformed call costs some reward: that is a difference, and no verdict."""
    batch = [*groups(1, count=1), *failed_group(penalty=0.05)]
    assert advantages_of(batch, FilterConfig()).keys() == {"g0"}
    kept = advantages_of(batch, FilterConfig(informative=False, uniform="zero"))
    assert kept["failed"] == [0.0] * 4
    assert kept["g0"] == advantages_of(batch, FilterConfig())["g0"]
    by_reward = advantages_of(batch, FilterConfig(informative=False))
    assert by_reward["failed"][0] < -1, "what specs meant before stays what they mean"
