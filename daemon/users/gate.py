"""The gate of an adapter that plays users (role `work`).

    for told in UserGate(app, runner, agent, row, previous).advance(): ...   repeatedly

It plays `DIALOGUES` gold dialogues with the environment's oracle, in a process of its own
(evaluation/user_trial.py) that runs beside the worker as jobs do and outlives it; then
`UserEvaluated` says what came out. The tasks are fresh: they follow from the adapter, from seeds
that neither training nor reports come near, and are of kinds in the shares of the agent's traffic.
Where plans write tasks (`improve.synthesis`), and another adapter passed its gate before, the users
of a tenth of them speak in each of the manners that such a task may have.

Guarantees: a worker that goes on after a `kill -9`, or is one of two, has the same tasks and
appends the same event. An adapter that cannot be played is rejected, with the reason.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Final

from consumers.reads.serving import AdapterRow
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.evaluation.comparison import FIRST_TASK, TASKS
from daemon.evaluation.plan_program import BadPlan
from daemon.evaluation.user_trial import UserPlan, UserResult, read_result
from daemon.jobs.runner import (
    OUT,
    Absent,
    Active,
    Again,
    Exit,
    Job,
    JobRunner,
    JobStartError,
    verdict,
)
from daemon.users.players import build_adapter_user, list_manners
from envs.registry import locate, open_place
from events.errors import KintsugiError
from events.rollouts import clip_reason
from events.serving import AdapterMoved

if TYPE_CHECKING:
    from daemon.config.settings import Agent
    from daemon.core.app import App
    from envs.environment import Environment

DIALOGUES: Final = 600
"""Gold dialogues of a gate: of a user without a fault, the upper 95 % bound of the rate of early
ends is half of its limit then."""


class CannotPlayUser(KintsugiError):
    """An adapter that cannot be measured as a user."""


class UserGate:
    """The gate of one adapter."""

    def __init__(
        self, app: "App", runner: JobRunner, agent: "Agent", row: AdapterRow,
        previous: AdapterRow | None, dialogues: int = DIALOGUES,
    ) -> None:  # fmt: skip
        """`previous` plays users until then; None: the script does. `dialogues` are played; with
        fewer than the default, no user can pass. Raises UnknownEnvironment, EnvironmentBroken."""
        assert agent.environment is not None, "an agent without an obstacle has an environment"
        settings = app.settings
        self._app, self._runner, self._row = app, runner, row
        place = locate(agent.environment, settings.environments.paths)
        environment = open_place(
            agent.environment, benchmarks=settings.benchmarks, paths=settings.environments.paths
        )
        self._environment = environment.name
        chance = Random(f"user gate {row.adapter} {row.sha256}").getrandbits(48)
        trial, benchmarks = settings.trial, settings.benchmarks
        self._plan = UserPlan(
            name=f"user gate {row.adapter}",
            environment=place,
            benchmarks=None if benchmarks is None else str(benchmarks),
            checkpoint=str(agent.checkpoint),
            alias=row.alias,
            base=row.base,
            user=build_adapter_user(row, settings.improve.users_candidates),
            previous=None if previous is None else previous.adapter,
            tasks=draw_tasks(environment, agent.traffic, chance, dialogues),
            manners=() if previous is None else list_manners(settings),
            seed=chance,
            episodes=trial.episodes,
            dtype=trial.dtype,
            threads=trial.threads,
        )
        self._job: Final = self._plan.digest[:32]

    def advance(self) -> Iterator[str]:
        """Do the next thing, if there is one; what happened, as sentences. Raises LogError,
        DatabaseUnavailable."""
        try:
            if (yield from self._run()):
                yield self._conclude()
        except (JobStartError, DecisionRefusal) as error:
            yield str(error)
        except (BadPlan, CannotPlayUser) as error:
            yield self._reject(str(error))

    def _run(self) -> Generator[str, None, bool]:
        """Bring the trial on; whether it is over. Raises CannotPlayUser, JobStartError."""
        settings, name = self._app.settings.jobs, self._row.adapter
        match self._runner.state(self._job):
            case Absent():
                yield from self._start()
            case Active() as running:
                late = running.seconds >= settings.minutes * 60
                if late or running.silent >= settings.heartbeat_seconds:
                    reason = "it ran too long" if late else "it said nothing for too long"
                    self._runner.cancel(self._job, reason)
                    yield f"the gate of {name} is told to stop: {reason}"
            case Exit() as ended:
                result = verdict(ended, settings.attempts)
                if isinstance(result, Again) and ended.seconds < settings.minutes * 60:
                    yield from self._start()
                elif isinstance(result, Again) or result.outcome != "played":
                    raise CannotPlayUser(f"it could not be played: {result.reason}")
                else:
                    return True
        return False

    def _start(self) -> Iterator[str]:
        if self._runner.start(Job(self._job, self._plan)):
            yield f"{self._row.adapter}: its gate began, {len(self._plan.tasks)} dialogues"

    def _conclude(self) -> str:
        """Append what came out. Raises BadPlan, CannotPlayUser, DecisionRefusal."""
        result = read_result(self._runner.folder(self._job) / OUT, self._plan)
        if result is None:
            raise CannotPlayUser("its trial ended, and not every dialogue is on disk")
        event = result.to_event(self._plan).model_copy(update={"environment": self._environment})
        origin = f"user gate {self._job}"
        Decisions(self._app).take(event, "user evaluated", self._row.cause, origin)
        return f"{self._row.adapter} {_describe(result)}"

    def _reject(self, reason: str) -> str:
        moved = AdapterMoved(
            adapter=self._row.adapter, state="rejected", reason=clip_reason(reason)
        )
        Decisions(self._app).take(moved, "rejected", self._row.cause, origin=self._job)
        return f"{self._row.adapter} is rejected: {reason}"


def draw_tasks(
    environment: "Environment", traffic: dict[str, float], chance: int, count: int
) -> tuple[str, ...]:
    """Return the ids of so many fresh tasks with a user, of kinds in the shares of the traffic,
    or of every kind in equal shares."""
    shares = traffic or dict.fromkeys(environment.capabilities, 1.0)
    first = FIRST_TASK + (chance % TASKS) * TASKS
    tasks = environment.mixture(shares, chance, first)
    spoken = (task.id for task in tasks if not task.solo)
    return tuple(islice(spoken, count))


def _describe(result: UserResult) -> str:
    passed = "passed its gate" if result.passed else "failed its gate"
    return f"{passed} on {result.dialogues:,} dialogues: {result.reason}"
