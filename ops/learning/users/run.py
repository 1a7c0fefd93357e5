"""One seed: users tuned on so many dialogues of the oracle with the exact user, each examined on
the same held-out dialogues."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import WEIGHTS, Base, Provenance, verify
from daemon.engine.fingerprint import probe_model
from daemon.engine.identity import weights_sha256
from daemon.evaluation.user_trial import UserPlan, UserResult, play, read_result
from daemon.solver.job import ADAPTER
from daemon.solver.lora import attach, save
from daemon.solver.users import job
from daemon.solver.users.job import FIGURES, UserJobResult
from envs.shop.environment import Shop
from events.jobs import AdapterUser, JobSpec, Sampler, TaskPool, WarmStart
from events.messages import StrictModel
from ops.learning.results import TimedRun
from ops.learning.run import JobError, describe_source
from ops.learning.seeds import PLAYED, TUNED, Seeds
from ops.learning.users.settings import BASE, SIZES, Settings


class SizeRun(StrictModel):
    """A user after so many dialogues."""

    job: UserJobResult | None
    """How it was trained; None for the base."""
    gate: UserResult
    seconds: float
    """Of a processor, for job and gate."""


class UserRun(TimedRun):
    """A finished seed."""

    sizes: Mapping[int, SizeRun]


def name_run(seed: int, *, development: bool) -> str:
    """Return the name of a run's files."""
    return f"{'development' if development else 'seed'}{seed}"


def run(
    seed: int,
    settings: Settings,
    folder: Path,
    *,
    development: bool,
    sizes: tuple[int, ...] = SIZES,
) -> UserRun:
    """Make one result. Raises JobError, and what a trial raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    seeds = Seeds.among(TUNED if development else PLAYED, seed)
    own = folder / name_run(seed, development=development)
    results: dict[int, SizeRun] = {}
    for size in sizes:
        before = time.process_time()
        out = own / str(size)
        trained = _train(seed, seeds, settings, size, out) if size else None
        if trained is None:
            save_base(settings, out / ADAPTER)
        gate = _examine(seed, seeds, settings, size, out)
        spent = time.process_time() - before
        results[size] = SizeRun(job=trained, gate=gate, seconds=spent)
        print(f"seed {seed}, {size} dialogues: {gate.reason}; {spent:.0f} s", flush=True)
    return UserRun(
        seed=seed,
        development=development,
        source=describe_source(settings.checkpoint, settings.digest),
        sizes=results,
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
    )


def _draw(first: int, count: int) -> tuple[str, ...]:
    """Return the ids of so many tasks, every kind in turn."""
    kinds = tuple(Shop.capabilities)
    return tuple(f"{Shop.name}/{kinds[n % len(kinds)]}/{first + n}" for n in range(count))


def _train(seed: int, seeds: Seeds, settings: Settings, size: int, out: Path) -> UserJobResult:
    """Train a user on the first tasks of the seed's block. Raises JobError."""
    sft = settings.sft.model_copy(update={"epochs": settings.choose_epochs(size)})
    pool = TaskPool(
        name="gold",
        tasks=_draw(seeds.siblings, settings.held_out),
        references=_draw(seeds.references, size),
    )
    spec = JobSpec(
        job=f"user-{size}-{seed}",
        base=BASE,
        checkpoint=str(settings.checkpoint),
        environment=Shop.name,
        teaches="user",
        pools=(pool,),
        seed=seed,
        sampler=Sampler(groups=1, size=2, rollouts=size + 2),
        warm_start=WarmStart(mode="always", sft=sft),
        grpo=False,
        lora=settings.lora,
        threads=1,
    )
    outcome = job.run(spec, out)
    if outcome.adapter is None:
        raise JobError(f"the user of seed {seed}, {size} dialogues: {outcome.reason}")
    return UserJobResult.model_validate_json((out / FIGURES).read_bytes())


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


def _examine(seed: int, seeds: Seeds, settings: Settings, size: int, out: Path) -> UserResult:
    """Return what the user of a folder does in held-out dialogues."""
    folder = out / ADAPTER
    plan = UserPlan(
        name=f"user-{size}-{seed}",
        environment=Shop.name,
        checkpoint=str(settings.checkpoint),
        alias="agent",
        base=BASE,
        user=AdapterUser(
            adapter=f"user-{size}",
            folder=str(folder.absolute()),
            sha256=verify(folder).files[WEIGHTS],
            max_tokens=settings.max_tokens,
        ),
        tasks=_draw(seeds.holdout, settings.examined),
        seed=seed,
        threads=1,
    )
    play(plan, out / "gate")
    result = read_result(out / "gate", plan)
    assert result is not None, "it was played"
    return result
