"""A job that fits a router's head, with the reference policy."""

import math
from itertools import islice
from pathlib import Path

import pytest
import torch

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import verify
from daemon.adapters.fingerprint import distance
from daemon.config.settings import Agent, Training
from daemon.engine.chat import Chat, as_chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.engine_router import ask
from daemon.methods.skills.router_job import build_router_spec
from daemon.methods.skills.routing.figures import RouterProgress
from daemon.methods.skills.routing.head import HeadInputs
from daemon.methods.skills.routing.head import fit as fit_head
from daemon.methods.skills.routing.job import FIGURES, RouterResult, run
from daemon.solver.job import ADAPTER
from daemon.solver.sampling.opening import read_opening
from daemon.solver.telemetry.progress import Progress
from envs.shop.environment import Shop
from events.jobs import JobSpec, RouterOption

SHOP = Shop()
SKILLS: tuple[str | None, ...] = ("fallback", "two_writes", None)
OTHERS = {"cancel": 0.5, "address": 0.5}


def draw(skill: str | None, first: int, count: int) -> tuple[str, ...]:
    kinds = OTHERS if skill is None else {skill: 1.0}
    return tuple(task.id for task in islice(SHOP.mixture(kinds, 1, first), count))


def build_spec(tasks: dict[str | None, tuple[str, ...]]) -> JobSpec:
    labels = ("A", "B", "C")[: len(tasks)]
    chat = Chat(CHECKPOINT)
    tokens = [token for label in labels for token in chat.encode(label)]
    options = [
        RouterOption(skill=skill, label=label, token=token, description=str(skill))
        for skill, label, token in zip(tasks, labels, tokens, strict=True)
    ]
    return build_router_spec(
        Training(threads=1),
        Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),
        job="r",
        base="reference",
        options=options,
        tasks=tasks,
        form="head",
    )


@pytest.mark.learning
def test_a_head_learns_to_choose_from_the_prompt_of_the_agent(tmp_path: Path) -> None:
    spec = build_spec({skill: draw(skill, 77_000_000, 40) for skill in SKILLS})
    told: list[Progress] = []
    outcome = run(spec, tmp_path / "first", told.append)
    assert outcome.outcome == "trained", outcome.reason
    folder = tmp_path / "first" / ADAPTER
    result = RouterResult.model_validate_json((tmp_path / "first" / FIGURES).read_bytes())
    assert [item.router for item in told if isinstance(item, RouterProgress)] == [result.figures]
    assert (result.figures.held_out, result.prompts) == (24, 120)
    assert run(spec, tmp_path / "second").sha256 == outcome.sha256, "nothing is drawn anew"
    assert fit(folder, CHECKPOINT, max_rank=8).rank == len(SKILLS)
    expected = verify(folder).fingerprint
    assert expected is not None
    assert distance(expected.adapter, expected.base) > 1, "also after what no task says"

    chat, base = Chat(CHECKPOINT), Policy.load(CHECKPOINT, "reference")
    assert spec.router is not None
    head = spec.router.model_copy(update={"adapter": "head"})
    policy = base.with_adapter(folder, "head")
    wanted = {task: skill for skill in SKILLS for task in draw(skill, 78_000_000, 20)}
    views = [read_opening(SHOP, SHOP.task(task)) for task in wanted]
    conversations = [[as_chat(message) for message in view or ()] for view in views]
    answers = ask(policy, chat, head, conversations)
    right = [answer.skill == skill for answer, skill in zip(answers, wanted.values(), strict=True)]
    assert sum(right) >= 52
    untaught = ask(base, chat, head, conversations)
    assert len({answer.skill for answer in untaught}) == 1, "the base prefers one label always"


@pytest.mark.learning
def test_a_head_of_options_that_do_not_differ_leaves_no_adapter(tmp_path: Path) -> None:
    tasks = draw("cancel", 77_000_000, 60)
    spec = build_spec({skill: tasks[20 * n : 20 * n + 20] for n, skill in enumerate(SKILLS)})
    outcome = run(spec, tmp_path)
    assert outcome.outcome == "competence_gap"
    assert "the router learnt nothing: it chooses rightly in" in str(outcome.reason)
    assert not (tmp_path / ADAPTER).exists()


def test_a_head_of_prompts_that_are_all_alike_is_a_gap_and_no_crash(tmp_path: Path) -> None:
    outcome = run(build_spec({"fallback": draw("fallback", 77_000_000, 2), None: ()}), tmp_path)
    assert outcome.outcome == "competence_gap"
    assert "it chooses rightly in 100.0% of 1 held-out tasks" in str(outcome.reason)
    state, logits = torch.rand(64, dtype=torch.float64), torch.zeros(6, 2, dtype=torch.float64)
    noisy = state * (1 + 1e-8 * torch.rand(6, 64, dtype=torch.float64))
    alike = HeadInputs(noisy, logits, logits.logsumexp(-1), torch.tensor([0, 1] * 3))
    head = fit_head(alike, 0)
    assert head.loss == pytest.approx(math.log(2)), "rounding is not learnt"
    assert float(head.rows.abs().max()) < 10
