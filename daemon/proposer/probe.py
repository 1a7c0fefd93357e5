"""Measure the current policy on a written task before it is accepted (check V8).

The rollouts are played together on a serving engine and recorded under the purpose `probe`, which
only the buffer's rates read. A model (an endpoint, or an adapter of the same engine) may play the
user. A rollout whose user erred is played again with another seed. Guarantee: a rollout's id
follows from cycle, policy, task, trial and the user's model, so a restarted leader reads it from
the tables. Not covered: engines without HTTP.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from daemon.proposer.candidate import CannotSample, CheckFailure
from daemon.proposer.verification import SAMPLES
from envs.endpoint import Endpoint, EndpointRefusal, EndpointUnavailable, Sampling, read_key
from envs.environment import Environment
from envs.episode import Termination
from envs.evaluation import UNJUDGED, Attempt, Setup, make_environment_user, play_all
from envs.players import ModelAgent, Player
from envs.simulator import TokenMeter, UserBudgetSpent, UserRefusal, make_user
from envs.task import TaskDefinition
from events.envelope import derive_id
from events.errors import BlobError, LogError
from events.jobs import AdapterUser, EndpointUser, ModelUser
from producers.simulation import (
    Provenance,
    append_rollouts,
    build_rollout_event,
    name_fallible_user,
)

if TYPE_CHECKING:
    from daemon.core.app import App

T = TypeVar("T")

_ATTEMPTS: Final = 3
"""Attempts at one request to the model; if all fail, the next tick tries again."""
_TRIES: Final = 3
"""Tries of a rollout whose user, played by a model, erred."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The inference server that serves a policy."""

    url: str
    """Base URL of the server; ends in /v1."""
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A policy to probe, its engine, and the cycle that probes it."""

    cycle: str
    alias: str
    base: str
    policy: str
    """Name of the policy at the engine."""
    engine: Engine
    sampling: Sampling
    user: ModelUser | None = None
    """The model that plays the users; None for the environment's own user."""


class ProbeBudget:
    """Limits on a cycle's probes if a model behind an endpoint plays the users."""

    def __init__(self, tokens: int, minutes: float) -> None:
        """Allow `tokens` of the user's model and `minutes` of playing."""
        self.meter = TokenMeter(tokens)
        self._minutes = minutes
        self._seconds = minutes * 60

    async def play(self, rollouts: Awaitable[T]) -> T:
        """Return the rollouts' result. Raise UserBudgetSpent if the minutes run out."""
        begin = time.monotonic()
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await rollouts
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UserBudgetSpent(
                f"the probes of this cycle took {self._minutes:g} minutes with the model that "
                "plays the users; raise models.user.minutes"
            ) from error
        finally:
            self._seconds -= time.monotonic() - begin


class Prober:
    """Plays written tasks with the serving policy and counts its passes."""

    def __init__(
        self,
        app: "App",
        environment: Environment,
        probed: ProbeTarget,
        stopping: Callable[[], bool] = lambda: False,
        *,
        record: bool = True,
        budget: ProbeBudget | None = None,
    ) -> None:
        """Begin no rollout once `stopping` returns true. Append rollouts to the log if `record`.
        `budget` limits a user behind an endpoint; None sets no limit."""
        self._app, self._environment, self._probed = app, environment, probed
        self._stopping, self._recording = stopping, record
        is_metered = isinstance(probed.user, EndpointUser)
        self._budget = budget if is_metered else None
        self._meter = TokenMeter(None) if self._budget is None else self._budget.meter

    def __call__(self, task: TaskDefinition) -> int:
        """Return how many of `SAMPLES` rollouts pass. Raise CannotSample or EnvironmentFailure.
        Raise CheckFailure if the user erred in each try or its budget is spent."""
        from consumers.database import DatabaseUnavailable

        try:
            return self._count_passes(task)
        except (BlobError, DatabaseUnavailable, LogError) as error:
            # The task is not at fault, but any other error would reject it.
            raise CannotSample(f"what is played cannot be recorded: {error}") from error

    def _count_passes(self, task: TaskDefinition) -> int:
        from consumers.reads import rollouts as reads

        users = self._erring
        tries = 1 if users is None else _TRIES
        places = {self._rollout(task, trial): trial % SAMPLES for trial in range(tries * SAMPLES)}
        with self._app.reading() as connection:
            known = reads.verdicts(connection, list(places))
        verdicts = {places[name]: outcome.success for name, outcome in known.items()}
        reason = ""
        for turn in range(tries):
            missing = [place for place in range(SAMPLES) if place not in verdicts]
            if not missing:
                break
            if self._stopping():
                raise CannotSample("the scheduler was told to stop; the next one goes on")
            trials = [turn * SAMPLES + place for place in missing]
            try:
                with self._meter.measure(f"a part of {SAMPLES} rollouts"):
                    played = asyncio.run(self._play_in_time(task, trials))
            except UserBudgetSpent as error:
                raise CheckFailure(str(error)) from error
            for attempt in played:
                if attempt.termination is Termination.USER_ERROR:
                    reason = attempt.reason
                else:
                    verdicts[attempt.trial % SAMPLES] = attempt.success
        passes = sum(verdict is True for verdict in verdicts.values())
        if users is not None and len(verdicts) < SAMPLES:
            raise CheckFailure(
                f"the users that {users} played erred in {tries} tries of "
                f"{SAMPLES - len(verdicts)} of {SAMPLES} rollouts; {passes} of the others passed: "
                f"{reason}"
            )
        return passes

    @property
    def _erring(self) -> str | None:
        """Return the name of the model that plays the users if it may err, else None."""
        user = self._probed.user
        return name_fallible_user(self._environment, None if user is None else user.simulator)

    async def _play_in_time(self, task: TaskDefinition, trials: Sequence[int]) -> list[Attempt]:
        """Play as `_play` does, within the budget. Raise UserBudgetSpent."""
        playing = self._play(task, trials)
        return await (playing if self._budget is None else self._budget.play(playing))

    async def _play(self, task: TaskDefinition, trials: Sequence[int]) -> list[Attempt]:
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
                try:
                    make_player = await self._prepare_user(stack)
                except (EndpointRefusal, EndpointUnavailable) as error:
                    raise UserRefusal(f"the user's model: {error}") from error
                plan = [(task, trial) for trial in trials]
                setup = self._setup(endpoint, make_player)
                playing = play_all(setup, plan, concurrency=len(plan))
                async for attempts in await stack.enter_async_context(aclosing(playing)):
                    if self._recording:
                        self._record(attempts)
                    results += attempts
        except UserRefusal as error:
            raise CannotSample(f"the users of a task cannot be played: {error}") from error
        except (EndpointRefusal, EndpointUnavailable) as error:
            raise CannotSample(f"{probed.policy} cannot be asked about a task: {error}") from error
        tolerable = () if self._erring is None else (Termination.USER_ERROR,)
        unjudged = UNJUDGED.difference(tolerable)
        if spoilt := [attempt for attempt in results if attempt.termination in unjudged]:
            raise CannotSample(
                f"task {task.id} cannot be played with {probed.policy} at {probed.engine.url}: "
                f"{spoilt[0].reason}"
            )
        return results

    async def _prepare_user(self, stack: AsyncExitStack) -> Callable[[TaskDefinition, int], Player]:
        """Return a maker of an episode's user. Raise EndpointRefusal, EndpointUnavailable."""
        environment, user, engine = self._environment, self._probed.user, self._probed.engine
        if user is None:
            return make_environment_user(environment)
        if isinstance(user, AdapterUser):
            client = Endpoint(
                engine.url,
                user.adapter,
                api_key=engine.api_key,
                concurrency=SAMPLES,
                attempts=_ATTEMPTS,
            )
        else:
            client = Endpoint(
                user.url,
                user.model,
                api_key=read_key(user.url, user.api_key_variable),
                concurrency=SAMPLES,
                timeout=user.timeout,
                attempts=_ATTEMPTS,
            )
        await stack.enter_async_context(client)
        await client.check()
        meter = None if isinstance(user, AdapterUser) else self._meter
        return partial(make_user, user, client, environment, meter=meter)

    def _setup(
        self, endpoint: Endpoint, make_player: Callable[[TaskDefinition, int], Player]
    ) -> Setup:
        environment, sampling = self._environment, self._probed.sampling
        return Setup(
            environment,
            agent=lambda task, seed: ModelAgent(
                endpoint, partial(environment.select_schemas, task), seed, sampling
            ),
            user=make_player,
            user_may_err=self._probed.user is not None,
        )

    def _record(self, attempts: Sequence[Attempt]) -> None:
        """Append the attempts that have a verdict to the log."""
        probed = self._probed
        simulator = None if probed.user is None else probed.user.simulator
        provenance = Provenance(probed.alias, probed.base, probed.policy, "probe", simulator)
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
        parts = [probed.cycle, probed.policy, task.id, str(trial)]
        if probed.user is not None:
            parts.append(probed.user.model_dump_json(exclude={"budget"}))
        return derive_id("probe", *parts)
