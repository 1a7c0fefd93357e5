"""Sources of rollouts: this process, an endpoint (remote.py), or the job's vLLM (own_vllm.py).

A source gets the policy by `adopt` and plays whole batches with it. Guarantee: a batch's
trajectories depend on policy and batch alone. In this process they are equal bit for bit, on one
machine with one number of threads. So a resumed job repeats the rollouts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from peft import PeftModel

from daemon.adapters.directory import Provenance
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.solver.base import CannotBegin
from daemon.solver.sampling.adapter_users import load_users
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.sampling.local import Attempt, InProcess
from daemon.solver.trajectory import Trajectory
from envs.evaluation import episode_seed
from events.jobs import InProcessSource, JobSpec, TaskPool


@dataclass(frozen=True, slots=True)
class Batch:
    """Attempts that are played together."""

    seed: int
    """Seed of the batch: attempt i at a task has the seed `episode_seed(seed, task, i)`."""
    attempts: tuple[Attempt, ...]


def batch_of(
    spec: JobSpec, environments: JobEnvironments, number: int, drawn: Sequence[tuple[str, TaskPool]]
) -> Batch:
    """Return batch `number` with a group of attempts per (task, pool). Raise UnknownTask."""
    seed = Random(f"batch {spec.seed} {number}").getrandbits(48)
    attempts: list[Attempt] = []
    for place, (task_id, pool) in enumerate(drawn):
        task = environments.task(task_id)
        group = f"{spec.job}/{number}/{place}"
        for member in range(spec.sampler.size):
            attempts.append(
                Attempt(
                    task=task,
                    group=group,
                    seed=episode_seed(seed, task_id, len(attempts)),
                    rollout=f"{group}/{member}",
                    environment=environments.find(task_id),
                    user=pool.user,
                    reward=pool.reward,
                )
            )
    return Batch(seed, tuple(attempts))


@dataclass(frozen=True, slots=True)
class Version:
    """A policy at one moment of its training."""

    name: str
    model: PeftModel
    """Model in training; it may change again after the source has adopted the version."""
    provenance: Provenance
    untrained: bool
    """Whether the policy is untrained and still answers as the base does."""


class Source(Protocol):
    """Source of rollouts: plays batches with the policy that it adopted last."""

    def adopt(self, version: Version) -> None:
        """Play with the policy of `version` from now on."""

    def play(self, batch: Batch) -> Iterator[Trajectory]:
        """Yield finished trajectories. Raise EnvironmentFailure and the source's own errors."""

    def close(self) -> None:
        """Release what the source holds."""


class HereSource:
    """Source that samples in this process."""

    def __init__(
        self, spec: JobSpec, place: InProcessSource, environments: JobEnvironments, chat: Chat
    ) -> None:
        """Load the adapters that play users. Raise the errors of `load_users`."""
        self._spec = spec
        self._place = place
        self._environments = environments
        self._chat = chat
        self._users = load_users(spec)
        self._policy: Policy | None = None

    def adopt(self, version: Version) -> None:
        """Merge the adapter into a copy of the weights. Raise IncompatibleModel, CannotBegin."""
        if self._users is None:
            self._policy = Policy.of(version.model, version.name)
        else:
            self._policy = self._users.adapt(version.model, version.name)
        length, context = self._place.length, self._policy.context
        if length is not None and length > context:
            raise CannotBegin(
                f"sampler.source.length is {length:,}, and the context of the model is "
                f"{context:,} tokens; lower it"
            )

    def play(self, batch: Batch) -> Iterator[Trajectory]:
        """Yield trajectories in the order in which they end. Raise EnvironmentFailure."""
        assert self._policy is not None, "a source adopts a policy before it plays"
        sampler, place = self._spec.sampler, self._place
        # A user played by an adapter reads and writes in a slot of its own.
        slots = place.slots if self._users is None else 2 * place.slots
        # A prefix cache with other conversations could change rounding, so the engine starts empty.
        engine = Engine(self._policy, slots, place.length)
        player = InProcess(
            engine,
            self._chat,
            temperature=sampler.temperature,
            max_tokens=sampler.max_tokens,
            form=self._spec.algorithm.repair,
            users=None if self._users is None else self._users.policies,
            episodes=place.slots,
        )
        for rollout in player.play(self._environments.own, batch.attempts, self._policy):
            yield rollout.trajectory

    def close(self) -> None:
        """Do nothing: no resource is held."""
