"""Our forward pass of Qwen3, and our head: the model's own numbers and gradients."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from daemon.solver import dense, policy
from daemon.solver.batch import MicroBatch, choose, pad, rows
from daemon.solver.lora import reference, trainable_parameters
from daemon.solver.policy import score
from events.algorithm import Algorithm
from tests.daemon.solver.test_update import adapter, flat
from tests.daemon.solver.tiny import ENDS, VOCABULARY, groups, tiny_model


def batch(count: int = 3) -> MicroBatch:
    chosen = choose(groups(3, count=count), Algorithm(), ENDS)
    return pad(flat(rows(chosen, Algorithm(), chosen.kept.groups)))


def by_the_model(model: nn.Module, padded: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies by the model's own forward, 0 outside the mask."""
    output: Any = model(input_ids=padded.ids, attention_mask=padded.attention, use_cache=False)
    every = (output.logits[:, :-1] / temperature).log_softmax(-1)
    logp = every.gather(-1, padded.ids[:, 1:, None]).squeeze(-1)
    entropy = -(every.exp() * every).sum(-1)
    return torch.where(padded.mask > 0, logp, 0.0), torch.where(padded.mask > 0, entropy, 0.0)


def gradients(model: nn.Module, of: Tensor) -> dict[str, Tensor]:
    parameters = trainable_parameters(model)
    weighted = (of * torch.linspace(-1, 2, of.numel()).view_as(of)).sum()
    found = torch.autograd.grad(weighted, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def single(**changes: Any) -> PeftModel:
    """In float32, which is what is laid out anew."""
    return adapter(dtype=torch.float32, **changes)


def test_values_and_gradients_are_those_of_the_models_own_forward() -> None:
    model, padded = single(), batch()
    assert dense.takes(model)
    found = score(model, padded, 0.7)
    logp, entropy = by_the_model(model, padded, 0.7)
    torch.testing.assert_close(found.logp, logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy, entropy, atol=1e-5, rtol=0)
    expected = gradients(model, logp)
    for name, gradient in gradients(model, found.logp).items():
        scale = float(expected[name].abs().max())
        assert scale > 0
        torch.testing.assert_close(gradient, expected[name], atol=1e-5 * scale, rtol=0)


def test_the_reference_is_the_base_without_its_adapter() -> None:
    model, padded = single(), batch()
    with reference(model), torch.no_grad():
        found = score(model, padded).logp
    with torch.no_grad():
        plain, _ = by_the_model(tiny_model(), padded, 1.0)
        adapted = score(model, padded).logp
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)
    assert float((adapted - plain).abs().max()) > 1e-2


def test_a_micro_batch_without_a_written_token_has_gradients_of_zero() -> None:
    padded = batch()
    padded.mask.zero_()
    model = single()
    assert all(not g.any() for g in gradients(model, score(model, padded).logp).values())


def _hooked() -> Any:
    model = single()
    model.get_base_model().register_forward_hook(lambda *_: None)
    return model


def _trained_whole() -> Any:
    return tiny_model().requires_grad_(True)


def _dora() -> Any:
    config = LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM")
    return get_peft_model(tiny_model().requires_grad_(False), config)


def _llama() -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config).requires_grad_(False)


def _biased() -> Any:
    return tiny_model(attention_bias=True).requires_grad_(False)


def _windowed() -> Any:
    model = tiny_model(use_sliding_window=True, sliding_window=4, max_window_layers=0)
    return model.requires_grad_(False)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("make", [_hooked, _trained_whole, _dora, _llama, _biased, _windowed])
def test_any_other_model_goes_through_its_own_forward(make: Any) -> None:
    model = make()
    assert not dense.takes(model)
    padded = batch()
    logp, _ = by_the_model(model, padded, 1.0)
    torch.testing.assert_close(score(model, padded).logp, logp, atol=1e-5, rtol=0)


def test_double_precision_goes_through_the_models_own_forward() -> None:
    assert not dense.takes(adapter(dtype=torch.float64))


def test_the_head_is_the_same_in_one_tile_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model, padded = single(), batch(count=24)
    assert int(padded.mask.sum()) > 256
    whole = score(model, padded)
    expected = gradients(model, whole.logp)
    monkeypatch.setattr(policy, "_TILE", 0)
    tiled = score(model, padded)
    torch.testing.assert_close(tiled.logp, whole.logp, atol=1e-6, rtol=0)
    torch.testing.assert_close(tiled.entropy, whole.entropy, atol=1e-6, rtol=0)
    for name, gradient in gradients(model, tiled.logp).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-5)


def test_the_heads_gradient_is_the_derivative_of_its_value() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    weight, written = 3 * torch.randn(11, 5, dtype=torch.float64), torch.arange(7)
    assert torch.autograd.gradcheck(
        lambda h: policy._score_tokens(h, weight, written, 0.8)[0], (hidden,)
    )


def test_logits_of_any_size_do_not_overflow() -> None:
    hidden, weight = torch.full((1, 1), 1e4), torch.tensor([[1.0], [-1.0]])
    logp, entropy = policy._score_tokens(hidden, weight, torch.tensor([1]), 1.0)
    assert logp.tolist() == [-2e4]
    assert entropy.tolist() == [0.0]
