"""The sampler: the model's own numbers, whatever stands in the other slots."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from daemon.engine.reference.sampler import ANSWER, Sampler, Slots, spoken
from daemon.engine.reference.train import fresh_model
from envs.episode import Termination
from envs.shop.environment import Shop


def test_extending_slots_gives_the_logits_of_a_whole_forward(
    tokens: PreTrainedTokenizerFast,
) -> None:
    model = fresh_model(tokens, seed=1)
    slots = Slots(model, 4, length=32)
    chance = torch.Generator().manual_seed(0)
    whole = [torch.randint(len(tokens), (n,), generator=chance).tolist() for n in (9, 4, 17)]
    order, cut = torch.tensor([3, 0, 2]), torch.tensor([5, 3, 16])
    with torch.no_grad():
        # What an earlier sequence left in a slot must not be seen.
        slots.extend(order, torch.zeros(3, dtype=torch.int64), [[1] * 20] * 3)
        first = slots.extend(
            order,
            torch.zeros(3, dtype=torch.int64),
            [i[:n] for i, n in zip(whole, cut, strict=True)],
        )
        second = slots.extend(order, cut, [i[n:] for i, n in zip(whole, cut, strict=True)])
        for row, ids in enumerate(whole):
            right = model(input_ids=torch.tensor([ids])).logits[0]
            torch.testing.assert_close(first[row], right[cut[row] - 1], atol=1e-5, rtol=0)
            torch.testing.assert_close(second[row], right[-1], atol=1e-5, rtol=0)


def test_an_answer_without_end_fails_its_episode_alone(tokens: PreTrainedTokenizerFast) -> None:
    model = fresh_model(tokens, seed=2)
    shop = Shop()
    tasks = [shop.generate("cancel", seed) for seed in range(5)]
    played = list(Sampler(model, tokens, slots=2).play(shop, tasks))
    assert sorted(number for number, _, _ in played) == list(range(5))
    long = [e for _, e, _ in played if e.termination is Termination.AGENT_ERROR]
    assert any(str(ANSWER) in episode.reason for episode in long)
    assert not any(verdict.success for *_, verdict in played)


def test_calls_are_read() -> None:
    text = '<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'
    message = spoken(text + text, 4)
    assert [(c.name, c.arguments) for c in message.tool_calls] == [
        ("get_user", {"user_id": "U12"})
    ] * 2
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.content is None
    assert spoken("Wait. " + text).content == "Wait."


@pytest.mark.parametrize(
    "text",
    [
        "Done.",
        "<tool_call>\n{broken\n</tool_call>",
        '<tool_call>\n{"name": "get_user"}\n</tool_call>',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        "<tool_call>\n[]\n</tool_call>",
        '<tool_call>\n{"name": "get_user", "arguments": {}}',
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    message = spoken(text)
    assert (message.content, message.tool_calls) == (text, ())
