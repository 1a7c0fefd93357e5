"""A panel whose router is a head: a real gateway over a real engine, and what the head reads."""

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.methods.skills.engine_router import ask as ask_here
from events.jobs import PanelRouter, RouterOption
from events.rollouts import MemberChoice
from events.serving import Panel
from tests.daemon.engine.conftest import adapter, listening, other_adapter, save_adapter
from tests.daemon.engine.heads import save_head
from tests.daemon.gateway.conftest import Front, post
from tests.daemon.gateway.panels import MEMBERS, SKILLS, TOKENS, routed
from tests.daemon.gateway.test_panels import PATIENT, last
from tests.daemon.gateway.test_routing import ask, load

__all__ = ["adapter", "other_adapter"]

TEMPLATE: Final = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    "{{ mood or 'assistant' }}"
)
MESSAGES: Final = [
    {"role": "system", "content": "You help customers."},
    {"role": "user", "content": "Hello, I am Rosa."},
]
LIMITS: Final[dict[str, Any]] = {"max_tokens": 4, "temperature": 0}


def tools(name: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]


CALLS: Final[dict[str, dict[str, Any]]] = {
    "one": {"messages": MESSAGES, "tools": tools("return_item")},
    "two": {"messages": MESSAGES, "tools": tools("cancel_order")},
    "tiny": {
        "messages": MESSAGES,
        "tools": tools("return_item"),
        "chat_template_kwargs": {"mood": "angry"},
    },
}
"""Who shall answer -> a call: they differ in what stands beside their messages alone."""


def prompts(chat: Chat) -> list[tuple[int, ...]]:
    return [
        chat.prompt(call["messages"], call["tools"], **call.get("chat_template_kwargs", {}))
        for call in CALLS.values()
    ]


def fit_rows(folder: Path, asked: list[tuple[int, ...]]) -> torch.Tensor:
    """Rows that give each prompt's own option 20 nats more, and the others nothing."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        states = torch.stack(
            [model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1] for ids in asked]
        )
    rows: torch.Tensor = 20 * torch.linalg.pinv(states).T
    return rows


def test_a_head_reads_the_prompt_of_the_call_itself(
    checkpoint: Path, tmp_path: Path, front_over: Front
) -> None:
    folder = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(checkpoint).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    chat, base = Chat(folder), Policy.load(folder, "tiny")
    head = save_head(folder, tmp_path / "head", TOKENS, fit_rows(folder, prompts(chat)))
    options = tuple(
        RouterOption(skill=skill, label=label, token=token, description="")
        for skill, label, token in zip(SKILLS, "ABC", TOKENS, strict=True)
    )
    router = PanelRouter(form="head", adapter="head", options=options)
    offers = [CALLS["one"]["tools"], CALLS["two"]["tools"]]
    taught = base.with_adapter(head, "head")
    here = ask_here(taught, chat, router, [MESSAGES, MESSAGES], offers)
    assert [answer.skill for answer in here] == ["returns", "payments"]
    with listening(base, chat) as engine:
        load(
            engine,
            one=save_adapter(folder, tmp_path / "one", seed=1),
            two=save_adapter(folder, tmp_path / "two", seed=2),
            head=head,
        )
        front = front_over(engine.url, **PATIENT)
        policy = Panel(members=MEMBERS, router=router)
        front.gateway.context.routing.apply(routed({"p": policy}, "p"))
        for member, call in CALLS.items():
            answer = ask(front, f"for-{member}", **call, **LIMITS)
            assert answer.headers["x-kintsugi-member"] == member
            chosen = last(front).member
            assert chosen is not None
            assert (chosen.router_ms is None, chosen.doubt) == (
                False,
                None if member != "tiny" else "none",
            )
        document = {"model": "agent", "system": "You help customers.", "max_tokens": 4}
        said = {"messages": MESSAGES[1:], "tools": [{"name": "cancel_order", "input_schema": {}}]}
        post(front.url, "/v1/messages", **document, **said)
        assert (last(front).member or MemberChoice()).adapter == "two", "Anthropic's clients too"
        post(front.url, "/v1/completions", model="agent", prompt="Hello.", max_tokens=2)
        assert last(front).member == MemberChoice(doubt="failed"), "no prompt of a conversation"
