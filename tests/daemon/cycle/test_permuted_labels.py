"""An environment whose labels of kinds are permuted: what fails, what is taught, written and
trained is the same, from the log to the weights of an adapter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import select

from consumers.reads import learning
from consumers.reads.scheduling import CYCLE_START
from consumers.tables import Rollout
from daemon.config.settings import (
    Agent,
    Environments,
    Improve,
    Log,
    Proposer,
    Settings,
    Training,
)
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.job import run
from daemon.solver.telemetry.progress import Progress
from envs.evaluation import Attempt
from envs.registry import open_place
from envs.shop.kinds import KINDS
from events.jobs import JobSpec
from events.learning import Directive, SkillsContrasted, TaskProposed, TaskRejected
from events.streams import LEARNING
from producers.simulation import Provenance, append_rollouts, build_rollout_event
from tests.daemon.controller.test_directive_builder import attempted
from tests.daemon.cycle.test_planner import QUIET
from tests.daemon.methods.skills.test_skills import draw, forgets

STALL = '''"""The shop under another name, with labels of kinds that are permuted."""

from envs.environment import UnknownTask
from envs.shop.environment import Shop
from envs.shop.kinds import KINDS

LABELS = {labels!r}
SHOP = Shop()
KIND_OF = {{label: kind for kind, label in LABELS.items()}}


class Stall(Shop):
    name = "stall"
    capabilities = {{LABELS[kind]: KINDS[kind].demands for kind in KINDS}}

    @property
    def catalog(self):
        return SHOP.catalog

    def task_id(self, capability, seed):
        return f"stall/{{KIND_OF[capability]}}/{{seed}}"

    def _build_task(self, capability, seed, phrasing=None):
        if capability not in KIND_OF:
            raise UnknownTask(capability)
        kind = KIND_OF[capability]
        task = super()._build_task(kind, seed, phrasing)
        name = f"stall/{{kind}}/{{seed}}" + ("" if phrasing is None else f"/{{phrasing}}")
        return task.model_copy(update={{"id": name, "capability": capability}})
'''
"""Ids of tasks say which generator made them; labels are what `capability` holds."""


@dataclass(frozen=True)
class World:
    """What a cycle made of recorded rollouts, and of its job."""

    contrasts: list[SkillsContrasted]
    directive: Directive
    tasks: list[tuple[str, str, str | None]]
    """Body without its label, pattern, and the rollout that it follows."""
    rejected: list[tuple[str, str, str]]
    spec: JobSpec
    """Without the file of the environment."""
    sha256: str | None
    """The trained adapter's."""


@dataclass(frozen=True)
class Labels:
    """What is made of labels, which people read."""

    rollouts: list[str | None]
    """The log's."""
    job: str | None
    """What its adapter is called after."""
    reported: list[str]
    """What the job counts its rollouts by."""


def build_world(
    folder: Path, labels: Mapping[str, str], attempts: Sequence[Attempt]
) -> tuple[World, Labels]:
    folder.mkdir()
    file = folder / "stall.py"
    file.write_text(STALL.format(labels=dict(labels)))
    stall = open_place(str(file))
    settings = Settings(
        home=folder / "home", log=Log(durability="process"), scheduler=QUIET,
        proposer=Proposer(tasks=4), improve=Improve(skills="panel", skills_rounds=1),
        training=Training(
            rollouts=16, groups=2, lora_rank=2, max_tokens=64, threads=1, probe_below=0
        ),
        environments=Environments(paths=(file,)),
        agents=(Agent(alias="agent", environment="stall", checkpoint=CHECKPOINT),),
    )  # fmt: skip
    provenance = Provenance("agent", "base", "base", "live")
    with App(settings) as app:
        for number, attempt in enumerate(attempts):
            task = stall.task(attempt.task.id.replace("shop/", "stall/"))
            event = build_rollout_event(
                replace(attempt, task=task), stall, provenance, f"rollout-{number:03}"
            )
            append_rollouts(app.spool, app.blobs, [event])
        app.settle()
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        assert Leader(app, CyclePlanner(app), Leadership(app)).tick().troubles == []
        with app.reading() as connection:
            (cycle,) = learning.cycles(connection)
            (job,) = learning.list_cycle_jobs(connection, cycle.cycle)
            stored = Rollout.table().c
            recorded = connection.execute(select(stored.capability).order_by(stored.rollout))
            rollouts = list(recorded.scalars())
        events = [app.bodies.whole(item).event.data for item in app.log.read(LEARNING.name, 0, 0)]
    told: list[Progress] = []
    outcome = run(job.spec, folder / "job", told.append)
    assert cycle.directive is not None
    bodies = {
        data.task.id: stall.task(data.task.id).model_dump_json(exclude={"capability"})
        for data in events
        if isinstance(data, TaskProposed)
    }
    world = World(
        [data for data in events if isinstance(data, SkillsContrasted)],
        cycle.directive,
        [
            (bodies[data.task.id], data.pattern, data.source_rollout)
            for data in events
            if isinstance(data, TaskProposed)
        ],
        [
            (data.pattern, data.check, data.reason)
            for data in events
            if isinstance(data, TaskRejected)
        ],
        job.spec.model_copy(update={"environment": ""}),
        outcome.sha256,
    )
    reported = [label for progress in told for label in progress.capabilities]
    return world, Labels(rollouts, job.capability, reported)


@pytest.mark.long
def test_permuted_labels_change_nothing_from_the_log_to_the_weights(tmp_path: Path) -> None:
    kinds = list(KINDS)
    permuted = dict(zip(kinds, (*kinds[7:], *kinds[:7]), strict=True))
    attempts = [attempted(task, forgets) for task in draw()]
    plain, own = build_world(tmp_path / "plain", dict(zip(kinds, kinds, strict=True)), attempts)
    world, other = build_world(tmp_path / "permuted", permuted, attempts)
    assert world == plain
    (contrast,) = plain.contrasts
    assert {item.skill for item in contrast.skills} >= {"cancel_order", "exchange_item"}
    assert plain.tasks
    assert {pool.replay for pool in plain.spec.pools} == {False, True}
    assert plain.sha256 is not None
    assert other.rollouts == [permuted[label or ""] for label in own.rollouts]
    assert sorted(other.reported) == sorted(permuted[label] for label in own.reported)
    assert other.job in permuted.values()
