"""A job that teaches a router, with the reference policy."""

import json
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from daemon.adapters.directory import verify
from daemon.engine.chat import Chat, as_chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.engine_router import ask, read_all_scores, render_prompts
from daemon.methods.skills.routing.figures import RouterProgress
from daemon.methods.skills.routing.job import FIGURES, RouterResult, run
from daemon.solver.job import ADAPTER
from daemon.solver.sampling.opening import read_opening
from daemon.solver.telemetry.progress import Progress
from envs.shop.environment import Shop
from events.jobs import (
    JobSpec,
    LoraSettings,
    OptimizerSettings,
    PanelRouter,
    RouterOption,
    Sampler,
    TaskPool,
)
from producers.gateway.skills.label_router import build_calibration_prompts

SHOP = Shop()
SKILL = "fallback"
OTHERS = {"cancel": 0.5, "question": 0.5}
FIRST = 77_000_000
FRESH = 78_000_000


def draw(kinds: dict[str, float], first: int, count: int) -> tuple[str, ...]:
    return tuple(task.id for task in islice(SHOP.mixture(kinds, 1, first), count))


def calibrate(policy: Policy, chat: Chat, router: PanelRouter) -> PanelRouter:
    """Return the router with what its labels score after a conversation without content."""
    prompts = render_prompts(chat, build_calibration_prompts(router))
    (scores,) = read_all_scores(policy, router, [prompts])
    return router.model_copy(update={"calibration": scores})


def build_spec(steps: int, skilled: tuple[str, ...], others: tuple[str, ...]) -> JobSpec:
    chat = Chat(CHECKPOINT)
    (first,), (second,) = chat.encode("A"), chat.encode("B")
    options = (
        RouterOption(skill=SKILL, label="A", token=first, description=SHOP.capabilities[SKILL]),
        RouterOption(label="B", token=second, description="none of these"),
    )
    return JobSpec(
        job="r",
        base="reference",
        checkpoint=str(CHECKPOINT),
        environment=SHOP.name,
        teaches="router",
        router=PanelRouter(options=options),
        pools=(
            TaskPool(name=SKILL, skill=SKILL, tasks=skilled),
            TaskPool(name="no skill", tasks=others),
        ),
        seed=1,
        sampler=Sampler(groups=2, size=8, rollouts=16 * steps),
        optimizer=OptimizerSettings(lr=8e-3),
        lora=LoraSettings(rank=16, alpha=32),
        threads=1,
    )


@pytest.mark.learning
@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSettings(lr=10, weight_decay=100),
        OptimizerSettings(lr=10, betas=(0.999999, 0.0), eps=1e-15),
    ],
)
def test_a_router_that_diverges_is_a_failure_with_the_remedy(
    optimizer: OptimizerSettings, tmp_path: Path
) -> None:
    """In a step, or where it is assessed."""
    spec = build_spec(24, draw({SKILL: 1.0}, FIRST, 8), draw(OTHERS, FIRST, 8))
    outcome = run(spec.model_copy(update={"optimizer": optimizer}), tmp_path)
    assert (outcome.outcome, outcome.adapter) == ("failed", None)
    assert str(outcome.reason).endswith("lower optimizer.lr")
    assert not (tmp_path / ADAPTER).exists()


@pytest.mark.learning
def test_a_label_outside_the_vocabulary_is_a_failure(tmp_path: Path) -> None:
    spec = build_spec(1, draw({SKILL: 1.0}, FIRST, 8), draw(OTHERS, FIRST, 8))
    assert spec.router is not None
    first, second = spec.router.options
    options = (first.model_copy(update={"token": 2**31 - 1}), second)
    router = spec.router.model_copy(update={"options": options})
    outcome = run(spec.model_copy(update={"router": router}), tmp_path)
    assert outcome.outcome == "failed"
    assert "token id 2147483647 is outside the model's vocabulary" in str(outcome.reason)


@pytest.mark.long
@pytest.mark.learning
@pytest.mark.processes
def test_a_router_learns_to_choose_and_is_the_same_after_a_kill(tmp_path: Path) -> None:
    spec = build_spec(24, draw({SKILL: 1.0}, FIRST, 40), draw(OTHERS, FIRST, 40))
    told: list[Progress] = []
    outcome = run(spec, tmp_path / "whole", told.append)
    assert (outcome.outcome, outcome.adapter) == ("trained", str(tmp_path / "whole" / ADAPTER))
    result = RouterResult.model_validate_json((tmp_path / "whole" / FIGURES).read_bytes())
    assert result.figures in [item.router for item in told if isinstance(item, RouterProgress)]
    assert result.figures.held_out == 16
    assert run(spec, tmp_path / "whole") == outcome

    chat, base = Chat(CHECKPOINT), Policy.load(CHECKPOINT, "reference")
    router = spec.router
    assert router is not None
    policy = base.with_adapter(tmp_path / "whole" / ADAPTER, "router")
    wanted = {
        **dict.fromkeys(draw({SKILL: 1.0}, FRESH, 20), SKILL),
        **dict.fromkeys(draw(OTHERS, FRESH, 20)),
    }
    views = [read_opening(SHOP, SHOP.task(task)) for task in wanted]
    conversations = [[as_chat(message) for message in view or ()] for view in views]
    answers = ask(policy, chat, calibrate(policy, chat, router), conversations)
    right = [answer.skill == skill for answer, skill in zip(answers, wanted.values(), strict=True)]
    assert sum(right) >= 36
    untaught = ask(base, chat, calibrate(base, chat, router), conversations)
    assert sum(answer.skill == SKILL for answer in untaught) < 10

    (tmp_path / "job.json").write_text(spec.model_dump_json())
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "daemon.solver", str(tmp_path / "job.json"), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = next(line for line in running.stdout if '"router"' in line)
        running.kill()
    assert running.returncode == -signal.SIGKILL
    assert json.loads(line)["router"] == told[0].model_dump(mode="json")["router"]
    assert not (out / ADAPTER).exists()
    assert run(spec, out).sha256 == outcome.sha256
    assert verify(out / ADAPTER).fingerprint is not None


@pytest.mark.learning
def test_a_router_that_learns_nothing_leaves_no_adapter(tmp_path: Path) -> None:
    """Both options have tasks of one kind."""
    tasks = draw({"cancel": 1.0}, FIRST, 40)
    spec = build_spec(2, tasks[:20], tasks[20:])
    outcome = run(spec, tmp_path)
    assert outcome.outcome == "competence_gap"
    assert "of 8 held-out tasks" in str(outcome.reason)
    assert not (tmp_path / ADAPTER).exists()
    assert run(spec, tmp_path) == outcome
