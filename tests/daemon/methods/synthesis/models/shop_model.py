"""A model that writes tasks of shop from what it is shown, and ways in which it may fail."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from daemon.config.settings import ProposerModel
from daemon.methods.synthesis.models.client import ModelClient
from daemon.methods.synthesis.protocols import Draft
from daemon.proposer.candidate import Candidate, CandidateFacts
from daemon.proposer.verification import Verdict, verify
from envs.environment import Environment
from envs.task import write_body
from events.synthesis.plans import Plan
from tests.envs.model_server import Json, Reply, called, said

SEED: Final = (1 << 28) + 7
"""A seed of written tasks."""

PLAN: Final = Plan(
    plan="00-cancel",
    domain="orders",
    kind="cancel",
    complexity="compound",
    tool_mode="write",
    tools=("find_user", "get_order", "cancel_order"),
    manner="as_is",
    writing="A customer cancels one pending order.",
    judging="The order is cancelled, and nothing else.",
)


@dataclass
class ShopModel:
    """Finds the customer and a pending order of theirs, cancels it, and asks for that."""

    act: Callable[[list[str]], Json | None] = lambda results: None
    """Its next call in place of the right one, by the results so far."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that it writes in place of the right ones; in texts, ORDER stands for
    the order that was cancelled."""

    def __call__(self, body: Json) -> Reply | Json:
        return self.explore(body) if body.get("tools") else self.write(body)

    def explore(self, body: Json) -> Json:
        """The next call, or the end of the exploration."""
        messages = body["messages"]
        results = [
            json.loads(message["content"])["result"]
            for message in messages
            if message["role"] == "tool"
        ]
        other = self.act(results)
        if other is not None:
            return other
        good = [json.loads(result) for result in results if not result.startswith("Error")]
        if not good:
            customer = json.loads(messages[1]["content"])["customer"]
            name, code = re.search(r"You are (\w+) and your zip code is (\w+)", customer).groups()  # type: ignore[union-attr]
            return called("find_user", {"name": name, "zip": code})
        if len(good) == 1:
            return called("get_user", {"user_id": good[0]["user_id"]})
        seen = good[2:]
        if seen and seen[-1] == {"status": "cancelled"}:
            return said("READY")
        if seen and seen[-1]["status"] == "pending":
            return called("cancel_order", {"order_id": seen[-1]["order_id"]})
        return called("get_order", {"order_id": good[1]["orders"][len(seen)]})

    def write(self, body: Json) -> Json:
        """The five fields."""
        material = json.loads(body["messages"][1]["content"])
        calls = {call["tool"]: call["arguments"] for call in material["calls"]}
        who, order = calls["find_user"], calls["cancel_order"]["order_id"]
        fields = {
            "reason_for_call": f"I want to cancel my order {order}.",
            "known_info": f"I am {who['name']}, zip code {who['zip']}.",
            "unknown_info": "",
            "task_instructions": "Confirm the cancellation when you are asked.",
            "communicate_info": [],
            **self.change,
        }
        return said(json.dumps(fields).replace("ORDER", order))


def make_client(url: str, **settings: Any) -> ModelClient:
    """A client of the proposer at this URL."""
    redact = settings.pop("redact", str)
    return ModelClient(ProposerModel(url=url, model="big", **settings), "proposer", redact)


def examine(environment: Environment, draft: Draft) -> Verdict:
    """What the ten checks say of a draft."""
    body = write_body(draft.task.dump_body())
    environment.use_definitions({draft.task.id: body}.get)
    return verify(
        CandidateFacts(environment, Candidate(draft.task, "synthesize", None, draft.drawn))
    )
