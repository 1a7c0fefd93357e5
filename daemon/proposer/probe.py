"""Measure the current policy on a written task before it is accepted (check V8).

    prober = Prober(app, environment, probed)
    prober(task)        how many of 8 rollouts pass

The rollouts of one task are played together on a serving engine and recorded under a purpose of
their own: no pattern and no live guard counts them, and the buffer reads the task's rate from them.

Guarantee: a rollout's id follows from cycle, policy, task and trial, so the rollouts of a leader
that was killed are read from the tables and not played again. Not covered: engines that are not
reached over HTTP.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from daemon.proposer.candidate import CannotSample
from daemon.proposer.verification import SAMPLES
from envs.endpoint import Endpoint, EndpointRefusal, EndpointUnavailable, Sampling
from envs.environment import Environment
from envs.evaluation import UNJUDGED, Attempt, Setup, make_environment_user, play_all
from envs.players import ModelAgent
from envs.task import TaskDefinition
from events.envelope import derive_id
from events.errors import BlobError, LogError
from producers.simulation import Provenance, append_rollouts, build_rollout_event

if TYPE_CHECKING:
    from daemon.core.app import App

_ATTEMPTS: Final = 3
"""Attempts at one answer; then the next tick of the scheduler tries again."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that serves a policy."""

    url: str
    """Base URL of the engine; ends in /v1."""
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The policy to probe, the engine that serves it, and the cycle."""

    cycle: str
    alias: str
    base: str
    policy: str
    """Name of the policy at the engine."""
    engine: Engine
    sampling: Sampling


class Prober:
    """Plays written tasks with the policy that serves now."""

    def __init__(
        self,
        app: "App",
        environment: Environment,
        probed: ProbeTarget,
        stopping: Callable[[], bool] = lambda: False,
        *,
        record: bool = True,
    ) -> None:
        """`stopping`: whether the process was told to stop; then no rollout is begun. `record`:
        whether the rollouts are appended to the log."""
        self._app, self._environment, self._probed = app, environment, probed
        self._stopping, self._recording = stopping, record

    def __call__(self, task: TaskDefinition) -> int:
        """Return how many of `SAMPLES` rollouts pass. Raises CannotSample, EnvironmentFailure."""
        from consumers.database import DatabaseUnavailable

        try:
            return self._count_passes(task)
        except (BlobError, DatabaseUnavailable, LogError) as error:
            # Neither is the task's fault, and a check that raises would reject it.
            raise CannotSample(f"what is played cannot be recorded: {error}") from error

    def _count_passes(self, task: TaskDefinition) -> int:
        from consumers.reads import rollouts as reads

        names = [self._rollout(task, trial) for trial in range(SAMPLES)]
        with self._app.reading() as connection:
            known = reads.verdicts(connection, names)
        missing = [trial for trial, name in enumerate(names) if name not in known]
        if missing and self._stopping():
            raise CannotSample("the scheduler was told to stop; the next one goes on")
        played = asyncio.run(self._play(task, missing)) if missing else []
        verdicts = [
            *(outcome.success for outcome in known.values()),
            *(outcome.success for outcome in played),
        ]
        return sum(verdict is True for verdict in verdicts)

    async def _play(self, task: TaskDefinition, trials: Sequence[int]) -> list[Attempt]:
        """Play these trials of a task, and record each as soon as it ends."""
        probed = self._probed
        results: list[Attempt] = []
        try:
            async with AsyncExitStack() as stack:
                endpoint = await stack.enter_async_context(
                    Endpoint(
                        probed.engine.url,
                        probed.policy,
                        api_key=probed.engine.api_key,
                        concurrency=SAMPLES,
                        attempts=_ATTEMPTS,
                    )
                )
                plan = [(task, trial) for trial in trials]
                playing = play_all(self._setup(endpoint), plan, concurrency=len(plan))
                async for attempts in await stack.enter_async_context(aclosing(playing)):
                    if self._recording:
                        self._record(attempts)
                    results += attempts
        except (EndpointRefusal, EndpointUnavailable) as error:
            raise CannotSample(f"{probed.policy} cannot be asked about a task: {error}") from error
        if spoilt := [attempt for attempt in results if attempt.termination in UNJUDGED]:
            raise CannotSample(
                f"{probed.policy} at {probed.engine.url} did not get through task {task.id}: "
                f"{spoilt[0].reason}"
            )
        return results

    def _setup(self, endpoint: Endpoint) -> Setup:
        environment, sampling = self._environment, self._probed.sampling
        return Setup(
            environment,
            agent=lambda task, seed: ModelAgent(
                endpoint, partial(environment.select_schemas, task), seed, sampling
            ),
            user=make_environment_user(environment),
        )

    def _record(self, attempts: Sequence[Attempt]) -> None:
        """Append the attempts that have a verdict to the log."""
        probed = self._probed
        provenance = Provenance(probed.alias, probed.base, probed.policy, "probe")
        rollouts = [
            build_rollout_event(
                attempt, self._environment, provenance, self._rollout(attempt.task, attempt.trial)
            )
            for attempt in attempts
            if attempt.termination not in UNJUDGED
        ]
        append_rollouts(self._app.spool, self._app.blobs, rollouts)

    def _rollout(self, task: TaskDefinition, trial: int) -> str:
        probed = self._probed
        return derive_id("probe", probed.cycle, probed.policy, task.id, str(trial))
