"""One seed: a router for the members that ops/learning/merging trained, and panels of them on the
same held-out tasks.

The router learns from tasks that neither members nor figures have seen. What the base and each
member alone pass is read from the members' result; so is perfect routing (report.py).
"""

import time
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import torch

from daemon.adapters.directory import WEIGHTS, verify
from daemon.config.settings import Agent, Training
from daemon.cycle.router_job import build_router_spec
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.routing import calibrate, find_label_tokens
from daemon.evaluation.trial import Adapter, PanelPlayer, Plan, TrialAttempt, play, read_attempts
from daemon.solver.job import ADAPTER
from daemon.solver.routing import job
from daemon.solver.routing.job import FIGURES, RouterResult
from envs.shop.environment import Shop
from events.jobs import PanelRouter, RouterOption
from ops.learning.merging.run import SeedRun, name_run
from ops.learning.merging.settings import KINDS, TAUGHT
from ops.learning.merging.settings import SETTINGS as MERGING
from ops.learning.results import TimedRun
from ops.learning.routing.settings import LABELS, TRAINED, UNTRAINED, Settings
from ops.learning.run import JobError, describe_source
from ops.learning.seeds import MERGED, PART, TUNED, Seeds

_ROUTER = "router"


class RoutingRun(TimedRun):
    """A finished seed."""

    members: SeedRun
    """Result of the members alone."""
    outcomes: Mapping[str, Mapping[str, Mapping[str, tuple[bool, ...]]]]
    """Panel -> kind -> held-out task -> verdict on each trial."""
    choices: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Panel -> kind -> skill, or doubt of the router -> episodes."""
    router: RouterResult


def run(
    seed: int, settings: Settings, members: Path, folder: Path, *, development: bool
) -> RoutingRun:
    """Make one result; `members` is a folder of `python -m ops.learning.merging run`. Raises
    JobError, and what a trial raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    name = name_run(seed, development=development)
    alone = SeedRun.model_validate_json((members / f"{name}.json").read_bytes())
    seeds = Seeds.among(TUNED if development else MERGED, seed)
    own = {kind: _read_adapter(kind, members / name / kind / ADAPTER) for kind in KINDS}
    options = _build_options(settings)
    router = _train(seed, seeds, settings, options, folder / name)
    panels = _build_panels(settings, options, own, router)
    plan = Plan(
        name=name,
        environment=Shop.name,
        checkpoint=str(settings.checkpoint),
        alias="agent",
        base=MERGING.base,
        players=tuple(panels),
        tasks=tuple(
            f"{Shop.name}/{kind}/{seeds.holdout + number}"
            for kind in (*sorted(TAUGHT), *KINDS)
            for number in range(MERGING.tasks)
        ),
        trials=MERGING.trials,
        seed=seed,
        max_tokens=MERGING.max_tokens,
        threads=1,
    )
    play(plan, folder / name / "trial")
    attempts = [item for chunk in read_attempts(folder / name / "trial", plan) for item in chunk]
    by_panel = {
        panel.name: [item for item in attempts if item.player == place]
        for place, panel in enumerate(panels)
    }
    result = (folder / name / _ROUTER / FIGURES).read_bytes()
    return RoutingRun(
        seed=seed,
        development=development,
        source=describe_source(settings.checkpoint, settings.digest),
        members=alone,
        outcomes={panel: _read_outcomes(played) for panel, played in by_panel.items()},
        choices={panel: _count_choices(played) for panel, played in by_panel.items()},
        router=RouterResult.model_validate_json(result),
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
    )


def _build_options(settings: Settings) -> tuple[RouterOption, ...]:
    skills = (*KINDS, None)
    tokens = find_label_tokens(settings.checkpoint, LABELS[: len(skills)])
    return tuple(
        RouterOption(
            skill=skill,
            label=label,
            token=token,
            description=settings.other if skill is None else Shop.capabilities[skill],
        )
        for skill, label, token in zip(skills, LABELS, tokens, strict=False)
    )


def _train(
    seed: int, seeds: Seeds, settings: Settings, options: tuple[RouterOption, ...], folder: Path
) -> Adapter:
    """Return the adapter of a router. Raises JobError."""
    shop = Shop()

    def draw(weights: Mapping[str, float], first: int, count: int) -> tuple[str, ...]:
        return tuple(task.id for task in islice(shop.mixture(weights, seed, first), count))

    tasks: dict[str | None, tuple[str, ...]] = {
        kind: draw({kind: 1.0}, seeds.traffic, settings.skilled) for kind in KINDS
    }
    tasks[None] = draw(TAUGHT, seeds.traffic + PART // 2, settings.others)
    spec = build_router_spec(
        Training(threads=1),
        Agent(alias="agent", environment=shop.name, checkpoint=settings.checkpoint),
        job=f"{_ROUTER}-{seed}",
        base=MERGING.base,
        options=options,
        tasks=tasks,
        parameters=settings.parameters,
    )
    outcome = job.run(spec, folder / _ROUTER)
    if outcome.adapter is None:
        raise JobError(f"the router of seed {seed}: {outcome.outcome}, {outcome.reason}")
    return _read_adapter(_ROUTER, Path(outcome.adapter))


def _read_adapter(name: str, folder: Path) -> Adapter:
    return Adapter(name=name, folder=str(folder), sha256=verify(folder).files[WEIGHTS])


def _build_panels(
    settings: Settings,
    options: tuple[RouterOption, ...],
    members: Mapping[str, Adapter],
    trained: Adapter,
) -> list[PanelPlayer]:
    """Return the panels, each with a router that is calibrated as composing one does it."""
    base, chat = Policy.load(settings.checkpoint, MERGING.base), Chat(settings.checkpoint)
    taught = base.with_adapter(Path(trained.folder), trained.name)
    return [
        PanelPlayer(
            name=TRAINED,
            members=dict(members),
            router=calibrate(taught, chat, PanelRouter(adapter=trained.name, options=options)),
            router_adapter=trained,
        ),
        PanelPlayer(
            name=UNTRAINED,
            members=dict(members),
            router=calibrate(base, chat, PanelRouter(options=options)),
        ),
    ]


def _read_outcomes(played: list[TrialAttempt]) -> dict[str, dict[str, tuple[bool, ...]]]:
    outcomes: dict[str, dict[str, tuple[bool, ...]]] = {}
    for attempt in sorted(played, key=lambda attempt: attempt.trial):
        kind, task = _name_task(attempt)
        verdicts = outcomes.setdefault(kind, {})
        verdicts[task] = (*verdicts.get(task, ()), bool(attempt.head.success))
    return outcomes


def _count_choices(played: list[TrialAttempt]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for attempt in played:
        choice = attempt.head.member
        assert choice is not None, "a panel played"
        counts.setdefault(_name_task(attempt)[0], Counter())[
            choice.skill or f"base: {choice.doubt}"
        ] += 1
    return {kind: dict(sorted(own.items())) for kind, own in counts.items()}


def _name_task(attempt: TrialAttempt) -> tuple[str, str]:
    """Kind and id."""
    task = attempt.head.task
    assert task is not None, "a trial's rollouts have tasks"
    assert task.capability is not None, "generated tasks have a kind"
    return task.capability, task.id
