"""One seed: users tuned on so many dialogues of the oracle with the exact user, each examined on
the same held-out dialogues. In manners, each trains on from the one of its size, on dialogues of
other tasks in all manners of plans in turn, and is examined in all of them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import WEIGHTS, Base, Provenance, verify
from daemon.engine.fingerprint import probe_model
from daemon.engine.identity import weights_sha256
from daemon.evaluation.user_trial import UserPlan, UserResult, play, read_result
from daemon.jobs.learning_rate import MANNERS_DIALOGUES, MANNERS_RATE
from daemon.solver.job import ADAPTER
from daemon.solver.lora import attach, save
from daemon.solver.users import job
from daemon.solver.users.job import FIGURES, UserJobResult
from daemon.synthesis.manners import MANNERS
from envs.shop.environment import Shop
from events.jobs import AdapterUser, JobSpec, Sampler, TaskPool, WarmStart
from events.messages import StrictModel
from ops.learning.results import TimedRun
from ops.learning.run import JobError, describe_source
from ops.learning.seeds import PLAYED, TUNED, Seeds
from ops.learning.users.settings import BASE, MANNERS_TOKENS, SIZES, Settings


class SizeRun(StrictModel):
    """A user after so many dialogues."""

    job: UserJobResult | None
    """How it was trained; None for the base."""
    gate: UserResult
    seconds: float
    """Of a processor, for job and gate."""


class UserRun(TimedRun):
    """A finished seed."""

    manners: bool = False
    """Whether its users trained on in all manners."""
    sizes: Mapping[int, SizeRun]


def name_run(seed: int, *, development: bool, manners: bool = False) -> str:
    """Return the name of a run's files."""
    name = f"{'development' if development else 'seed'}{seed}"
    return f"manners-{name}" if manners else name


def run(
    seed: int,
    settings: Settings,
    folder: Path,
    *,
    development: bool,
    sizes: tuple[int, ...] = SIZES,
    manners: bool = False,
) -> UserRun:
    """Make one result. Raises JobError, also where a user in manners has no user of its size to
    train on from, and what a trial raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    results: dict[int, SizeRun] = {}
    for size in sizes:
        before = time.process_time()
        user = _User(folder, seed, development, size, manners)
        trained = _train(user, settings) if size else None
        if trained is None:
            save_base(settings, user.folder / ADAPTER)
        gate = _examine(user, settings)
        spent = time.process_time() - before
        results[size] = SizeRun(job=trained, gate=gate, seconds=spent)
        print(f"{user}: {gate.reason}; {spent:.0f} s", flush=True)
    return UserRun(
        seed=seed,
        development=development,
        manners=manners,
        source=describe_source(settings.checkpoint, settings.compute_digest(manners=manners)),
        sizes=results,
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
    )


@dataclass(frozen=True)
class _User:
    """A user of a seed, by the number of dialogues that it is shown."""

    out: Path
    """The folder of the experiment."""
    seed: int
    development: bool
    size: int
    in_manners: bool

    def __str__(self) -> str:
        words = " in all manners" if self.in_manners else ""
        return f"seed {self.seed}, {self.size} dialogues{words}"

    @property
    def folder(self) -> Path:
        """Where it is made."""
        return self._locate(self.in_manners)

    @property
    def parent(self) -> str | None:
        """The adapter from which it trains on. Raises JobError where it is not there."""
        if not self.in_manners:
            return None
        folder = self._locate(manners=False) / ADAPTER
        if not folder.exists():
            raise JobError(
                f"{self} trains on from the user in {folder}, which is not there; "
                "run without --manners first"
            )
        return str(folder.absolute())

    @property
    def manners(self) -> tuple[str, ...]:
        """Those in which it learns and is examined; none: the words of the generator."""
        return tuple(MANNERS) if self.in_manners else ()

    @property
    def seeds(self) -> Seeds:
        """The block of seeds from which its tasks are drawn."""
        return Seeds.among(TUNED if self.development else PLAYED, self.seed)

    def _locate(self, manners: bool) -> Path:
        name = name_run(self.seed, development=self.development, manners=manners)
        return self.out / name / str(self.size)


def _draw(first: int, count: int) -> tuple[str, ...]:
    """Return the ids of so many tasks, every kind in turn."""
    kinds = tuple(Shop.capabilities)
    return tuple(f"{Shop.name}/{kinds[n % len(kinds)]}/{first + n}" for n in range(count))


def _train(user: _User, settings: Settings) -> UserJobResult:
    """Train a user on the first tasks of a part of the seed's block. Raises JobError."""
    seeds = user.seeds
    gold, count, sft = seeds.references, user.size, settings.choose_sft(user.size)
    if user.in_manners:
        gold, count = seeds.training, user.size * MANNERS_DIALOGUES
        optimizer = sft.optimizer.model_copy(update={"lr": sft.optimizer.lr * MANNERS_RATE})
        sft = sft.model_copy(update={"optimizer": optimizer})
    pool = TaskPool(
        name="gold",
        tasks=_draw(seeds.siblings, settings.held_out),
        references=_draw(gold, count),
    )
    spec = JobSpec(
        job=_name_job(user),
        base=BASE,
        checkpoint=str(settings.checkpoint),
        environment=Shop.name,
        teaches="user",
        manners=user.manners,
        parent=user.parent,
        pools=(pool,),
        seed=user.seed,
        sampler=Sampler(groups=1, size=2, rollouts=count + 2),
        warm_start=WarmStart(mode="always", sft=sft),
        grpo=False,
        lora=settings.lora,
        threads=1,
    )
    outcome = job.run(spec, user.folder)
    if outcome.adapter is None:
        raise JobError(f"the user of {user}: {outcome.reason}")
    return UserJobResult.model_validate_json((user.folder / FIGURES).read_bytes())


def _name_job(user: _User) -> str:
    return f"user-{'manners-' if user.in_manners else ''}{user.size}-{user.seed}"


def save_base(settings: Settings, folder: Path) -> None:
    """Write an adapter that changes nothing."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    base = AutoModelForCausalLM.from_pretrained(settings.checkpoint, dtype=torch.float32)
    name = Base(name=BASE, sha256=weights_sha256(base))
    model = attach(base, settings.lora, 0)
    provenance = Provenance(
        base=name,
        parent=None,
        lora=settings.lora,
        seed=0,
        steps=0,
        rollouts=(),
        spec={},
        fingerprint=probe_model(model),
    )
    save(model, folder, provenance)


def _examine(user: _User, settings: Settings) -> UserResult:
    """Return what the user of a folder does in held-out dialogues."""
    folder = user.folder / ADAPTER
    player = AdapterUser(
        adapter=f"user-{user.size}",
        folder=str(folder.absolute()),
        sha256=verify(folder).files[WEIGHTS],
        max_tokens=MANNERS_TOKENS if user.in_manners else settings.max_tokens,
    )
    plan = UserPlan(
        name=_name_job(user),
        environment=Shop.name,
        checkpoint=str(settings.checkpoint),
        alias="agent",
        base=BASE,
        user=player,
        tasks=_draw(user.seeds.holdout, settings.examined),
        manners=user.manners,
        seed=user.seed,
        threads=1,
    )
    play(plan, user.folder / "gate")
    result = read_result(user.folder / "gate", plan)
    assert result is not None, "it was played"
    return result
