"""A router's prompts in this process: what an engine behind a gateway reads."""

from pathlib import Path

from daemon.engine.chat import Chat
from daemon.methods.skills.engine_router import render_prompts
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop
from producers.gateway.routing.token_scores import build_score_request
from tests.daemon.engine.random_model import checkpoint

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{{ ' end' if enable_thinking is false else ' think' }}"
)


def test_a_router_is_trained_and_tried_on_the_prompt_that_a_gateway_asks_with(
    tmp_path: Path,
) -> None:
    chat = Chat(checkpoint(tmp_path, vocabulary(Shop())))
    chat.tokenizer.chat_template = TEMPLATE
    prompt = [{"role": "user", "content": "Label?"}]
    asked = build_score_request("small", prompt, (32, 33))
    expected = chat.prompt(asked["messages"], **asked["chat_template_kwargs"])
    assert render_prompts(chat, [prompt]) == [expected]
    assert expected != chat.prompt(prompt), "the template reads the variable"
