"""One seed: a member for each weak kind, one adapter for all of them, and the members' merges, each
on held-out tasks.

Everything follows from the seed and the settings (and the machine's arithmetic). Jobs leave their
journals in a folder beside the result, from which a run that was killed goes on.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import torch

from daemon.adapters.directory import write_directory
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.merging import (
    Factors,
    Member,
    build_directory,
    find_largest_rank,
    merge,
    read_members,
)
from daemon.engine.policy import Policy
from daemon.solver import job
from daemon.solver.sampling.local import InProcess
from envs.shop.environment import Shop
from events.jobs import InProcessSource, JobSpec, Sampler, TaskPool, WarmStart
from ops.learning.evaluation import Outcomes, evaluate, generate_holdout
from ops.learning.merging.settings import KINDS, MERGES, TAUGHT, Merge, Settings
from ops.learning.results import TimedRun
from ops.learning.run import LENGTH, SLOTS, JobError, describe_source
from ops.learning.seeds import MERGED, TUNED, Seeds


class SeedRun(TimedRun):
    """A finished seed."""

    outcomes: Mapping[str, Mapping[str, Mapping[str, tuple[bool, ...]]]]
    """Policy -> kind -> held-out task -> verdict on each trial."""
    ranks: Mapping[str, int]
    """Merge -> its rank."""


def name_run(seed: int, *, development: bool) -> str:
    """Return the name of a seed's files."""
    return f"{'development' if development else 'seed'}{seed}"


class Bench:
    """What a seed works with."""

    def __init__(self, seed: int, settings: Settings, folder: Path, *, development: bool) -> None:
        self.settings, self.seed, self.folder = settings, seed, folder
        self.seeds = Seeds.among(TUNED if development else MERGED, seed)
        self.shop = Shop()
        self.policy = Policy.load(settings.checkpoint, settings.base)
        self._chat = Chat(settings.checkpoint)

    def train(self, name: str, kinds: Sequence[str]) -> Path:
        """Return the folder of an adapter that is trained on these kinds. Raises JobError."""
        outcome = job.run(self._build_spec(name, kinds), self.folder / name)
        if outcome.outcome != "trained" or outcome.adapter is None:
            raise JobError(f"{name}: {outcome.outcome}, {outcome.reason}")
        return Path(outcome.adapter)

    def evaluate(self, policy: Policy) -> Outcomes:
        """Play the held-out tasks of all kinds."""
        settings = self.settings
        kinds = (*sorted(TAUGHT), *KINDS)
        tasks = generate_holdout(self.shop, kinds, self.seeds.holdout, settings.tasks)
        player = InProcess(
            Engine(policy, SLOTS, LENGTH), self._chat, max_tokens=settings.max_tokens
        )
        return evaluate(player, self.shop, policy, tasks, settings.trials, self.seed)

    def merge(self, name: str, members: Sequence[Path], wanted: Merge) -> tuple[Policy, int]:
        """Return the policy of a merge, and its rank."""
        read = read_members(members, [wanted.weight] * len(members))
        rank = find_largest_rank(read)
        small = rank if wanted.times is None else wanted.times * read[0].rank
        if wanted.cut:
            merged = _cut(merge(read, rank, wanted.method), small)
        else:
            merged = merge(read, small, wanted.method)
        folder = self._write(name, read, merged, wanted)
        return self.policy.with_adapter(folder, name), small

    def _write(
        self, name: str, members: Sequence[Member], merged: Mapping[str, Factors], wanted: Merge
    ) -> Path:
        folder = self.folder / name
        if not folder.exists():
            write_directory(folder, build_directory(members, merged, wanted.method))
        return folder

    def _build_spec(self, name: str, kinds: Sequence[str]) -> JobSpec:
        settings, count = self.settings, len(kinds)
        budget, shown = settings.budget * count, settings.references * count
        groups = budget // settings.size
        pools = [
            TaskPool(
                name=kind,
                share=(1 - settings.replay) / count,
                tasks=self._draw({kind: 1.0}, self.seeds.training, groups),
                references=self._draw({kind: 1.0}, self.seeds.references, settings.references),
            )
            for kind in kinds
        ]
        replay = TaskPool(
            name="replay",
            share=settings.replay,
            tasks=self._draw(TAUGHT, self.seeds.replay, groups),
            references=self._draw(TAUGHT, self.seeds.siblings, shown),
            replay=True,
        )
        return JobSpec(
            job=f"{name_run(self.seed, development=False)}-{name}",
            base=settings.base,
            checkpoint=str(settings.checkpoint),
            environment=self.shop.name,
            pools=(*pools, replay),
            seed=self.seed,
            sampler=Sampler(
                groups=settings.groups,
                size=settings.size,
                rollouts=budget,
                max_tokens=settings.max_tokens,
                source=InProcessSource(slots=SLOTS, length=LENGTH),
            ),
            warm_start=WarmStart(mode="always", sft=settings.sft),
            algorithm=settings.algorithm,
            optimizer=settings.optimizer,
            lora=settings.lora,
            limits=settings.limits,
            threads=1,
        )

    def _draw(self, weights: Mapping[str, float], first: int, count: int) -> tuple[str, ...]:
        tasks = self.shop.mixture(weights, seed=self.seed, first_task=first)
        return tuple(task.id for task in islice(tasks, count))


def _cut(merged: Mapping[str, Factors], rank: int) -> dict[str, Factors]:
    """Return the first so many columns: all singular values are equal, so any are as good."""
    return {name: Factors(own.down[:rank], own.up[:, :rank]) for name, own in merged.items()}


def run(seed: int, settings: Settings, folder: Path, *, development: bool) -> SeedRun:
    """Make one result. Raises JobError and what a job raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    place = folder / name_run(seed, development=development)
    bench = Bench(seed, settings, place, development=development)
    outcomes: dict[str, Outcomes] = {"base": bench.evaluate(bench.policy)}
    members = [bench.train(kind, [kind]) for kind in KINDS]
    for kind, member in zip(KINDS, members, strict=True):
        outcomes[kind] = bench.evaluate(bench.policy.with_adapter(member, kind))
    joint = bench.policy.with_adapter(bench.train("joint", KINDS), "joint")
    outcomes["joint"] = bench.evaluate(joint)
    ranks = {}
    for name, wanted in MERGES.items():
        policy, ranks[name] = bench.merge(name, members, wanted)
        outcomes[name] = bench.evaluate(policy)
    return SeedRun.model_validate(
        {
            "seed": seed,
            "development": development,
            "source": describe_source(settings.checkpoint, settings.digest),
            "outcomes": outcomes,
            "ranks": ranks,
            "seconds": time.monotonic() - began,
            "processor_seconds": time.process_time() - worked,
        }
    )
