"""One arm on one seed: a job as the loop makes it, with users that err or that an adapter plays,
evaluated with exact users.

All arms of a seed have the same pools. A run that was killed goes on from its job's journal.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from daemon.adapters.directory import WEIGHTS, verify
from daemon.solver.job import ADAPTER, JOURNAL
from daemon.solver.journal import Journal
from daemon.solver.spec import digest
from envs.shop.environment import Shop
from events.jobs import AdapterUser, JobSpec
from events.messages import StrictModel
from ops.learning.evaluation import evaluate, generate_holdout
from ops.learning.results import Source
from ops.learning.run import describe_source
from ops.learning.screen.plan import Recorder
from ops.learning.screen.run import Training, spend
from ops.learning.screen.settings import CONFIGURATIONS
from ops.learning.seeds import MISLED, Seeds
from ops.learning.user_faults.settings import (
    ARMS,
    BASE,
    BUDGETS,
    BUDGETS_DIGEST,
    DIGEST,
    LOOP,
    PLAYER_TOKENS,
    PLAYERS,
    PLAYERS_DIGEST,
    TRAFFIC,
)
from ops.learning.user_faults.shop import write_definition
from ops.learning.users.run import name_run


class UserFaults(StrictModel):
    """What became of the rollouts of a job."""

    rollouts: int = 0
    unjudged: int = 0
    """Rollouts with a fault that was named."""


class Result(StrictModel):
    """An arm on held-out tasks."""

    arm: str
    seed: int
    development: bool
    source: Source
    training: Training
    faults: UserFaults
    seconds: float
    outcomes: Mapping[str, Mapping[str, tuple[bool, ...]]]


def path_of(folder: Path, arm: str, seed: int, *, development: bool) -> Path:
    """Return where a result is."""
    return folder / f"{arm}-{'development' if development else 'seed'}{seed}.json"


def run(
    arm: str, seed: int, folder: Path, *, development: bool, users: Path | None = None
) -> Result:
    """Make one result; `users` is the folder of ops/learning/users, which holds the adapters that
    play users. Raises NoJob, JobError, BadAdapter."""
    torch.set_num_threads(1)
    began = time.monotonic()
    seeds = Seeds.of(seed, development=True) if development else Seeds.among(MISLED, seed)
    recorder = Recorder(TRAFFIC, seed, seeds)
    policy, training, faults = recorder.policy, Training(), UserFaults()
    if arm != BASE:
        place = path_of(folder, arm, seed, development=development).with_suffix("")
        spec = recorder.build_spec(CONFIGURATIONS[LOOP], place)
        if arm in PLAYERS:
            assert users is not None, "the command line asks for it"
            spec = cast(spec, users / name_run(seed, development=development), PLAYERS[arm])
        else:
            spec = _mislead(_set_budget(spec, arm), arm, place)
        training, adapter = spend(spec, place)
        if adapter is not None:
            policy = policy.with_adapter(adapter, arm)
        faults = read_faults(spec, place)
    shop = Shop()
    tasks = generate_holdout(shop, TRAFFIC.traffic, seeds.holdout, TRAFFIC.tasks)
    outcomes = evaluate(recorder.player, shop, policy, tasks, TRAFFIC.trials, seed)
    return Result.model_validate(
        {
            "arm": arm,
            "seed": seed,
            "development": development,
            "source": describe_source(TRAFFIC.checkpoint, _find_digest(arm)),
            "training": training,
            "faults": faults,
            "seconds": time.monotonic() - began,
            "outcomes": outcomes,
        }
    )


def _find_digest(arm: str) -> str:
    """Return the digest of the settings that an arm has."""
    if arm in PLAYERS:
        return PLAYERS_DIGEST
    return BUDGETS_DIGEST if arm in BUDGETS else DIGEST


def _set_budget(spec: JobSpec, arm: str) -> JobSpec:
    """Return the spec with the rollouts of the arm, where it has a budget of its own."""
    if arm not in BUDGETS:
        return spec
    sampler = spec.sampler.model_copy(update={"rollouts": BUDGETS[arm].rollouts})
    return spec.model_copy(update={"sampler": sampler})


def _mislead(spec: JobSpec, arm: str, folder: Path) -> JobSpec:
    """Return the spec with an environment whose users err as the arm says, which is written to the
    folder."""
    settings = ARMS[BUDGETS[arm].arm if arm in BUDGETS else arm]
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "environment.py"
    place.write_text(write_definition(settings.rate, users_err=settings.attribution))
    return spec.model_copy(update={"environment": str(place.absolute())})


def cast(spec: JobSpec, folder: Path, dialogues: int) -> JobSpec:
    """Return the spec with users whom the adapter plays that was tuned on so many dialogues.
    Raises BadAdapter."""
    adapter = folder / str(dialogues) / ADAPTER
    user = AdapterUser(
        adapter=f"user-{dialogues}",
        folder=str(adapter.absolute()),
        sha256=verify(adapter).files[WEIGHTS],
        max_tokens=PLAYER_TOKENS,
    )
    pools = tuple(pool.model_copy(update={"user": user}) for pool in spec.pools)
    return spec.model_copy(update={"pools": pools})


def read_faults(spec: JobSpec, folder: Path) -> UserFaults:
    """Return what became of the rollouts of a job in its folder."""
    journal = Journal(folder / JOURNAL, digest(spec))
    journal.close()
    batch = [trajectory for batch in journal.batches for trajectory in batch]
    unjudged = sum(trajectory.user_fault is not None for trajectory in batch)
    return UserFaults(rollouts=len(batch), unjudged=unjudged)
