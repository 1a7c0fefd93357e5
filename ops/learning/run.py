"""One run: diagnose, plan, train by the job that the daemon runs too, evaluate on held-out tasks.

Everything follows from the key and the settings (and the machine's arithmetic). What the job leaves
(adapters, journal) stays in a folder beside the result, and a run that was killed goes on from it.
"""

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final, Self

import torch
from transformers import AutoModelForCausalLM

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.identity import weights_sha256
from daemon.engine.policy import Policy
from daemon.solver import job
from daemon.solver.journal import Journal
from daemon.solver.reference.demonstrations import DEVELOPMENT
from daemon.solver.sampling.local import InProcess
from daemon.solver.spec import digest
from daemon.solver.telemetry.progress import by_group
from daemon.solver.trajectory import ORACLE, Trajectory
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.jobs import InProcessSource, JobSpec, Sampler
from ops.learning import arms
from ops.learning.diagnosis import diagnose
from ops.learning.evaluation import evaluate, generate_holdout, passive
from ops.learning.results import Costs, Key, PolicyEvaluation, Run, Source, Step
from ops.learning.seeds import Seeds
from ops.learning.settings import Settings, traffic
from ops.learning.targets import Targets, choose
from producers.simulation import Provenance

SLOTS: Final = 64
LENGTH: Final = 512
"""Tokens of the longest conversation."""
_RULE_TASKS: Final = 100
"""Per kind, of the figures that the unseen set is chosen by; once each."""
_RULE_FIRST: Final = DEVELOPMENT[400_000]
"""Seed of the first of them."""


class JobError(KintsugiError):
    """A job that ended without what it was for."""


@dataclass
class Bench:
    """What a run works with: the settings, the environment, the base policy, the sampler."""

    settings: Settings
    mix: Mapping[str, float]
    """Kind of task -> its share of the traffic."""
    seeds: Seeds
    """Task seeds of what is diagnosed, trained on and held out."""
    seed: int
    """Of everything else that is drawn."""

    @classmethod
    def of(cls, settings: Settings, key: Key) -> Self:
        """The bench of a run of the four arms. Raises ValueError for a seed without a block."""
        return cls(
            settings,
            traffic(key.capabilities, key.share),
            Seeds.of(key.seed, development=key.development),
            key.seed,
        )

    @cached_property
    def shop(self) -> Shop:
        """The environment."""
        return Shop()

    @cached_property
    def policy(self) -> Policy:
        """The base."""
        return Policy.load(self.settings.checkpoint, self.settings.base)

    @cached_property
    def player(self) -> InProcess:
        """Samples at temperature 1."""
        chat = Chat(self.settings.checkpoint)
        engine = Engine(self.policy, SLOTS, LENGTH)
        return InProcess(engine, chat, max_tokens=self.settings.max_tokens)

    @cached_property
    def tasks(self) -> list[TaskDefinition]:
        """The held-out ones, the same for every policy on this traffic and seed."""
        return generate_holdout(self.shop, self.mix, self.seeds.holdout, self.settings.tasks)

    def evaluate_policy(self, policy: Policy, budget: int, spent: int) -> PolicyEvaluation:
        """A policy's outcomes."""
        outcomes = evaluate(
            self.player, self.shop, policy, self.tasks, self.settings.trials, self.seed
        )
        return PolicyEvaluation.model_validate(
            {"budget": budget, "spent": spent, "outcomes": outcomes}
        )

    def diagnose_traffic(self, policy: Policy, seeds: Seeds) -> Targets:
        """What recorded traffic of a policy says to train. Raises NothingToTarget."""
        # A round counts who answers the alias now: with no route in its log, that is the base, so
        # the policy stands there under the base's name, whatever adapter it has.
        name = self.settings.base
        provenance = Provenance(alias="agent", base=name, policy=name, purpose="live")
        attempts = arms.play_traffic(
            self.player, self.shop, policy, self.mix, seeds, self.seed, self.settings.diagnosis
        )
        with tempfile.TemporaryDirectory() as home:
            diagnosis = diagnose(Path(home), self.shop, attempts, provenance)
        return choose(diagnosis, self.shop, self.settings.rule)


def run(key: Key, settings: Settings, budget: int, folder: Path) -> Run:
    """Make one result. Raises NothingToTarget, JobError and what the job raises."""
    torch.set_num_threads(1)
    began = time.monotonic()
    bench = Bench.of(settings, key)
    trained = key.arm != "base"
    draft = _train(bench, key, budget, folder / key.name) if trained else _base(bench)
    return Run(
        key=key,
        source=describe_source(settings.checkpoint, settings.digest),
        budget=budget,
        spent=draft.spent,
        targets=draft.targets,
        ended=draft.ended,
        steps=tuple(draft.steps),
        evaluations=tuple(draft.evaluations),
        passive=draft.passive,
        seconds=time.monotonic() - began,
    )


@dataclass
class _RunDraft:
    """A run's result in the making."""

    spent: Costs = field(default_factory=Costs)
    targets: Targets | None = None
    ended: str = "untrained"
    steps: list[Step] = field(default_factory=list)
    evaluations: list[PolicyEvaluation] = field(default_factory=list)
    passive: dict[str, dict[str, tuple[bool, ...]]] = field(default_factory=dict)


def _base(bench: Bench) -> _RunDraft:
    idle = passive(bench.shop, bench.tasks, bench.settings.trials)
    return _RunDraft(
        evaluations=[bench.evaluate_policy(bench.policy, 0, 0)],
        passive={kind: {t: tuple(v) for t, v in rows.items()} for kind, rows in idle.items()},
    )


def _train(bench: Bench, key: Key, budget: int, folder: Path) -> _RunDraft:
    settings, draft = bench.settings, _RunDraft()
    if key.arm != "a":
        draft.targets = bench.diagnose_traffic(bench.policy, bench.seeds)
        draft.spent = Costs(diagnosis=settings.diagnosis)
    spec = _spec(bench, key, draft.targets, budget - draft.spent.total)
    outcome = job.run(spec, folder)
    if outcome.outcome != "trained" or outcome.adapter is None:
        raise JobError(f"{key.name}: {outcome.outcome}, {outcome.reason}")
    draft.ended = outcome.reason or "budget spent"
    batches = read_batches(spec, folder)
    draft.steps = list(build_steps(spec, batches, draft.spent.total))
    draft.spent = draft.spent.model_copy(update=count_uses(batches))
    draft.evaluations = list(_evaluations(bench, spec, batches, draft.spent.diagnosis, folder))
    return draft


def _spec(bench: Bench, key: Key, targets: Targets | None, budget: int) -> JobSpec:
    """What the job is told; `budget` is what the diagnosis left."""
    settings = bench.settings
    updates = settings.refining if key.arm in ("b", "c") else settings.updates
    groups = budget // settings.size
    if targets is None:
        plan = arms.plan_general(bench.shop, bench.mix, bench.seeds, key.seed, groups)
    else:
        plan = arms.plan_targets(
            bench.shop, targets, settings, bench.seeds, key.seed, groups, warm=key.arm in ("b", "c")
        )
    spent = 0 if targets is None else settings.diagnosis
    return JobSpec(
        job=key.name,
        base=settings.base,
        checkpoint=str(settings.checkpoint),
        environment=bench.shop.name,
        pools=plan.pools,
        seed=key.seed,
        sampler=Sampler(
            groups=settings.groups,
            size=settings.size,
            rollouts=budget,
            max_tokens=settings.max_tokens,
            momentum=settings.momentum,
            source=InProcessSource(slots=SLOTS, length=LENGTH),
        ),
        warm_start=plan.warm_start,
        grpo=key.arm != "c",
        checkpoints=tuple(b - spent for b in settings.budgets if b - spent <= budget),
        algorithm=updates.algorithm,
        optimizer=updates.optimizer,
        lora=settings.lora,
        limits=settings.limits,
        threads=1,
    )


def read_batches(spec: JobSpec, folder: Path) -> list[tuple[Trajectory, ...]]:
    """Everything the job used, in order."""
    journal = Journal(folder / job.JOURNAL, digest(spec))
    journal.close()
    return journal.batches


def count_uses(batches: Sequence[Sequence[Trajectory]]) -> dict[str, int]:
    """What of the budget the job used for what."""
    shown = sum(trajectory.policy == ORACLE for batch in batches for trajectory in batch)
    return {"references": shown, "training": sum(map(len, batches)) - shown}


def build_steps(
    spec: JobSpec, batches: Sequence[Sequence[Trajectory]], spent: int
) -> Iterator[Step]:
    """Yield every batch of GRPO; `spent` is what of the budget went before the job."""
    pools = {task: pool.name for pool in spec.pools for task in pool.tasks}
    for batch in batches:
        spent += len(batch)
        groups = by_group(trajectory for trajectory in batch if trajectory.policy != ORACLE)
        if groups:
            yield Step(
                spent=spent,
                informative=sum(0 < sum(own) < len(own) for _, own in groups) / len(groups),
                passed=sum(sum(own) / len(own) for _, own in groups) / len(groups),
                groups=Counter(pools[task] for task, _ in groups),
            )


def _evaluations(
    bench: Bench,
    spec: JobSpec,
    batches: Sequence[Sequence[Trajectory]],
    diagnosis: int,
    folder: Path,
) -> Iterator[PolicyEvaluation]:
    """Yield the evaluation of every checkpoint that had a budget of its own; for the warm start
    alone, that of its end."""
    totals = list(accumulate(map(len, batches)))
    if not spec.grpo:
        policy = bench.policy.with_adapter(folder / job.ADAPTER, spec.job)
        yield bench.evaluate_policy(
            policy, diagnosis + spec.sampler.rollouts, diagnosis + totals[-1]
        )
        return
    for count in spec.checkpoints:
        place = folder / job.CHECKPOINTS / str(count)
        policy = bench.policy.with_adapter(place, f"{spec.job}-{count}")
        # A warm start is one batch: a budget that ends before it is that of an untrained policy.
        used = max((total for total in totals if total <= count), default=0)
        yield bench.evaluate_policy(policy, diagnosis + count, diagnosis + used)


def describe_source(checkpoint: Path, digest: str) -> Source:
    """What code, settings (by their digest) and weights these are."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return Source(
        commit=_git("rev-parse", "HEAD"),
        clean=not _git("status", "--porcelain", "--untracked-files=no"),
        settings=digest,
        base=weights_sha256(model),
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def measure_development(settings: Settings) -> dict[str, float]:
    """pass^1 of every kind on development seeds that no run of these experiments uses."""
    torch.set_num_threads(1)
    bench = Bench.of(settings, Key(arm="base", capabilities="main", share=1, seed=0))
    tasks = generate_holdout(bench.shop, bench.shop.capabilities, _RULE_FIRST, _RULE_TASKS)
    outcomes = evaluate(bench.player, bench.shop, bench.policy, tasks, 1, 0)
    return {kind: sum(map(sum, rows.values())) / len(rows) for kind, rows in outcomes.items()}
