"""The gate of an adapter that plays users (role `work`).

    for told in UserGate(app, runner, agent, row, previous).advance(): ...   repeatedly

The adapter plays `DIALOGUES` dialogues with the environment's oracle, on tasks whose exact user is
known. They run in a separate process (trial.py) that outlives the worker; then `UserEvaluated` has
the result. The tasks are fresh: they follow from the adapter, and neither training nor reports use
their seeds. Their kinds have the shares of the agent's traffic. If plans write tasks
(`improve.synthesis`) and another adapter passed its gate before, a tenth of the users speaks in
each manner. Guarantees: a worker that goes on after a `kill -9`, or is one of two, has the same
tasks and appends the same event. An adapter that cannot be played is rejected, with the reason. If
the checkpoint is missing or of another base (`agents.checkpoint`), the gate waits.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from consumers.reads.serving import AdapterRow
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.evaluation.comparison import FIRST_TASK, TASKS
from daemon.evaluation.gate_trials import CannotExamine, GateTrials
from daemon.evaluation.gate_waits import GateWait, SettingFault
from daemon.evaluation.plan_program import BadPlan
from daemon.jobs.runner import (
    CHECKPOINT_SETTING,
    OUT,
    Active,
    Exit,
    Job,
    JobRunner,
    JobStartError,
    Over,
)
from daemon.methods.synthesis.users.players import build_adapter_user, list_manners
from daemon.methods.synthesis.users.trial import UserPlan, UserResult, read_result
from envs.registry import locate, open_place
from events.canonical import exact_json, sha256
from events.lifecycle import State

if TYPE_CHECKING:
    from daemon.config.settings import Agent
    from daemon.core.app import App
    from envs.environment import Environment

DIALOGUES: Final = 600
"""Dialogues of a gate: a faultless user's 95 % bound on early ends is half of its limit."""


class UserGate:
    """The gate of one adapter that plays users: a trial, and the decision on it."""

    def __init__(
        self, app: "App", runner: JobRunner, agent: "Agent", row: AdapterRow,
        previous: AdapterRow | None, dialogues: int = DIALOGUES,
    ) -> None:  # fmt: skip
        """`previous` plays users until then; None for the script. With fewer `dialogues` than the
        default, no user can pass. Raise UnknownEnvironment, EnvironmentBroken."""
        assert agent.environment is not None, "an agent without an obstacle has an environment"
        settings = app.settings
        self._app, self._runner, self._row = app, runner, row
        place = locate(agent.environment, settings.environments.paths)
        self._environment = open_place(
            agent.environment, benchmarks=settings.benchmarks, paths=settings.environments.paths
        )
        # An adapter that an operator staged again is judged on new dialogues.
        begin = f" since {row.cause}" if row.state is State.STAGED else ""
        self._chance = Random(f"user gate {row.adapter} {row.sha256}{begin}").getrandbits(48)
        self._traffic, self._dialogues = agent.traffic, dialogues
        user = build_adapter_user(row, settings.improve.users_candidates)
        self._trials = GateTrials(app, runner, row, Path(str(agent.checkpoint)), user)
        self._name = f"the gate of {row.adapter}"
        trial, benchmarks = settings.trial, settings.benchmarks
        self._fields: dict[str, Any] = {
            "name": f"user gate {row.adapter}",
            "environment": place,
            "benchmarks": None if benchmarks is None else str(benchmarks),
            "checkpoint": str(agent.checkpoint),
            "alias": row.alias,
            "base": row.base,
            "user": user,
            "previous": None if previous is None else previous.adapter,
            "manners": () if previous is None else list_manners(settings),
            "seed": self._chance,
            "episodes": trial.episodes,
            "dtype": trial.dtype,
            "threads": trial.threads,
        }
        # The digest uses no real tasks, so that asking for a wait draws none.
        whole = UserPlan(**self._fields, tasks=("none",)).digest
        self._job: Final = sha256(exact_json([whole, self._traffic, dialogues]))[:32]

    @cached_property
    def _plan(self) -> UserPlan:
        tasks = draw_tasks(self._environment, self._traffic, self._chance, self._dialogues)
        return UserPlan(**self._fields, tasks=tasks)

    def advance(self) -> Iterator[str]:
        """Take the next step, if any; yield sentences. Raise LogError, DatabaseUnavailable."""
        try:
            if (yield from self._trials.advance(self._job, self._name, self._start)):
                yield self._conclude()
        except (JobStartError, DecisionRefusal) as error:
            yield str(error)
        except (BadPlan, CannotExamine) as error:
            yield self._trials.reject(str(error), origin=self._job)

    def stop(self, reason: str) -> Iterator[str]:
        """Stop a running trial; yield a sentence."""
        if isinstance(self._runner.state(self._job), Active):
            yield self._trials.stop(self._job, self._name, reason)

    def find_wait(self) -> GateWait | None:
        """Return what the next attempt waits for, or None. Raise RunnerUnavailable."""
        state = self._runner.state(self._job)
        if isinstance(state, Active):
            return None
        result = self._trials.judge_exit(self._job, state) if isinstance(state, Exit) else None
        if isinstance(result, SettingFault) and not result.is_due:
            return self._wait_with(self._trials.describe_wait(result.reason))
        if not isinstance(result, Over):
            try:
                self._trials.check_checkpoint()
            except JobStartError as error:
                return self._wait_with(str(error))
        return None

    def _wait_with(self, says: str) -> GateWait:
        row = self._row
        return GateWait(row.adapter, row.alias, "user", says, setting=CHECKPOINT_SETTING)

    def _start(self) -> Iterator[str]:
        """Start the trial. Raise JobStartError without the checkpoint."""
        self._trials.check_checkpoint()
        if self._runner.start(Job(self._job, self._plan)):
            yield f"{self._row.adapter}: its gate began, {len(self._plan.tasks)} dialogues"

    def _conclude(self) -> str:
        """Record the trial's result as an event. Raise BadPlan, CannotExamine, DecisionRefusal."""
        result = read_result(self._runner.folder(self._job) / OUT, self._plan)
        if result is None:
            raise CannotExamine("its trial ended, and not every dialogue is on disk")
        event = result.to_event(self._plan).model_copy(
            update={"environment": self._environment.name}
        )
        origin = f"user gate {self._job}"
        Decisions(self._app).take(event, "user evaluated", self._row.cause, origin)
        return f"{self._row.adapter} {_describe(result)}"


def draw_tasks(
    environment: "Environment", traffic: dict[str, float], chance: int, count: int
) -> tuple[str, ...]:
    """Return ids of fresh tasks with a user; kinds have the traffic's shares, or equal ones."""
    shares = traffic or dict.fromkeys(environment.capabilities, 1.0)
    first = FIRST_TASK + (chance % TASKS) * TASKS
    tasks = environment.mixture(shares, chance, first)
    spoken = (task.id for task in tasks if not task.solo)
    return tuple(islice(spoken, count))


def _describe(result: UserResult) -> str:
    passed = "passed its gate" if result.passed else "failed its gate"
    return f"{passed} on {result.dialogues:,} dialogues: {result.reason}"
