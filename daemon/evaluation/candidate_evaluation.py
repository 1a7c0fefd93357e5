"""The unattended evaluation of a candidate up to the gate (role `work`).

    pilot       the incumbent alone plays a few tasks of every kind, to plan the sizes
    look 1      both play the planned numbers of fresh tasks; the gate decides
    look 2 ...  more tasks of the undecided kinds; the last look rejects everything unproven

A candidate's targets are tasks like those that its cycle wrote (targets.py), else its own kind or
its members' kinds. A version with members is judged as a whole: its chooser's errors count. A
branch's candidate is judged only on its targets' kinds, since no session of other kinds is sent to
it; the other kinds are reported. If another policy was ever better at a kind than the incumbent
(best_policies.py), it plays that kind too, unless the gate has rejected the candidate already. A
candidate that was rewarded for repairs also plays a slice of tasks that begin after a refused call.

Each trial (trial.py) outlives the worker. Its tasks follow from candidate, incumbent and targets,
with seeds that training never uses. One model plays the users of both sides. While its endpoint is
away or out of tokens, or the agent's checkpoint is wrong, the evaluation waits (gate_waits.py). A
trial with a fault of the user has no verdict. If the candidate has more of them than chance
explains, the surplus counts as failed (`fail_surplus` in gate/pairs.py; ADR 0076). After a change
of incumbent, users or rules (all in the digest), fresh tasks are played, and old trials stopped.

Guarantees: no trial counts twice, even if processes are killed; the report has the targets' plan. A
candidate that cannot be played is rejected, with the reason.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Final, Protocol

from consumers.reads import rollouts, serving, succession
from consumers.reads.serving import AdapterRow
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.core.kind_exclusions import find_cheat_exclusions, measure_cheats, read_cheats
from daemon.core.task_definitions import with_definitions
from daemon.evaluation.aims import list_aims, list_jobs
from daemon.evaluation.best_policies import BestPolicy, find_best
from daemon.evaluation.comparison import FIRST_TASK, TASKS, conduct_in
from daemon.evaluation.gate.decision import conclude, decide
from daemon.evaluation.gate.measurements import Conduct, Evaluation, Reference, TaskEvidence
from daemon.evaluation.gate.pairs import Pair, TooFewTrials, count_surplus, list_traffic
from daemon.evaluation.gate_trials import CannotExamine, GateTrials
from daemon.evaluation.gate_waits import GateWait, SettingFault, describe_endpoint_wait
from daemon.evaluation.plan_program import BadPlan
from daemon.evaluation.players import NoSuchPart, Player, build_player, list_member_kinds
from daemon.evaluation.sample_size import Sizes, extend_sizes, looks_of, sizes_of
from daemon.evaluation.targets import MOST, Target, find_targets
from daemon.evaluation.trial import Plan, TrialAttempt, read_attempts
from daemon.evaluation.user_faults import FaultCount, describe_faults, pair_judged, shrink_target
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
from daemon.jobs.runner import State as TrialState
from daemon.jobs.task_bodies import collect_bodies
from daemon.jobs.user_endpoints import wait_for_files, wait_for_users
from daemon.solver.journal import DEFINITIONS, write_definitions
from envs import grading
from envs.environment import Environment, UnknownTask
from envs.episode import Termination
from envs.registry import locate, open_place
from envs.task import TaskDefinition, write_body
from events.canonical import exact_json, sha256
from events.envelope import derive_id
from events.files import replace_file
from events.gate import AFTER_ERROR, GateReport
from events.jobs import USER_LIMITS, EndpointUser, ModelUser
from events.learning import Decision
from events.lifecycle import State
from events.messages import StrictModel
from events.serving import AdapterEvaluated, GateDecided, PassRates
from producers.simulation import append_rollouts, name_fallible_user

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent
    from daemon.core.app import App

_BATCH: Final = 256
"""Rollouts that are appended at once."""
_PILOT: Final = 0
_PILOT_SEEDS: Final = TASKS // 2
"""Distance between the seed of the looks' first task and that of the pilot's."""
_SLICE_SEEDS: Final = TASKS // 4
"""Distance between the seed of a plan's first task and that of the slice after a refused call."""
_NOTED: Final = "noted.json"
_TRIALS: Final = "gates"
"""Folder beside the trials: one file per adapter with its trials' names, one per line."""
_DIGITS: Final = 24
"""Number of the digest's digits with which the names of all trials of an evaluation begin."""


class SliceTasks(Protocol):
    """Draws the tasks of a slice that is not a kind of the traffic."""

    @property
    def remedy(self) -> str:
        """Return the advice to show if an environment gives too few tasks of the slice."""

    def draw(
        self,
        name: str,
        environment: Environment,
        shares: Mapping[str, float],
        seed: int,
        first: int,
        count: int,
    ) -> tuple[TaskDefinition, ...]:
        """Return `count` tasks, or fewer if the environment gives fewer. A larger `count` adds
        tasks to the set `name`. The fresh tasks' kinds have `shares`; seeds begin at `first`."""


class _TrialNote(StrictModel):
    following: Sizes | None
    """Total numbers of tasks after the next look; None if there is no next look."""


class CandidateEvaluation:
    """The evaluation of one candidate against one incumbent."""

    def __init__(
        self, app: "App", runner: JobRunner, agent: "Agent", row: AdapterRow,
        incumbent: AdapterRow | None, gates: int = 0, held_out: SliceTasks | None = None,
        user: ModelUser | None = None,
    ) -> None:  # fmt: skip
        """Prepare an evaluation against `incumbent` (None: the base). `gates` counts passed gates
        against earlier incumbents. `held_out` is needed if training rewarded repairs. `user` plays
        the users (None: the environment's own). Raises CannotExamine, UnknownEnvironment."""
        if agent.environment is None or agent.checkpoint is None:
            raise CannotExamine(
                f"agent {agent.alias} has no environment and checkpoint in the setting agents, so "
                f"{row.adapter} cannot be played; name them, or run kintsugi adapters evaluate"
            )
        settings = app.settings
        self._app, self._runner, self._agent, self._row = app, runner, agent, row
        self._incumbent, self._user = incumbent, user
        self._trial, self._gate = settings.trial, settings.gate
        self._place = locate(agent.environment, settings.environments.paths)
        self._checkpoint = agent.checkpoint
        self._trials = GateTrials(app, runner, row, agent.checkpoint, user)
        self._slice_bodies: dict[str, str] = {}
        """Played task that begins after a refused call -> text of its body."""
        self._held_out = held_out
        self._environment = with_definitions(
            app,
            open_place(
                agent.environment, benchmarks=settings.benchmarks, paths=settings.environments.paths
            ),
            self._slice_bodies,
        )
        # A kind that a cheating agent wins cannot show which agent is better.
        self._excluded = find_cheat_exclusions(settings, self._environment)
        with app.reading() as connection:
            self._jobs = list_jobs(connection, row)
            self._targets = self._find_targets(connection)
            self._rules = _find_rules(self._environment, self.kinds)
            self._best = self._find_best(connection)
        compared = [row.adapter, row.sha256, "" if incumbent is None else incumbent.adapter]
        if self._is_member:
            compared.append("member")
        if gates:
            # A former incumbent may be back, and a second report with the same digest would not be
            # appended.
            compared.append(str(gates))
        if self._rules:
            compared.append(exact_json(self._rules))
        if user is not None:
            # The digest leaves out the limits of the user's endpoint, so that an evaluation
            # continues with a larger budget.
            left = USER_LIMITS if isinstance(user, EndpointUser) else frozenset[str]()
            compared.append(user.model_dump_json(exclude=set(left)))
        # A setting that concerns the slice alone changes no evaluation without the slice.
        left_out = None if self._plays_slice else {"token_growth_after_error"}
        rules = [
            self._trial.model_dump(mode="json"),
            self._gate.model_dump(mode="json", exclude=left_out),
        ]
        aims = [target.model_dump(mode="json") for target in self._targets]
        best = {kind: self._name_policy(policy) for kind, policy in self._best.items()}
        self.digest: Final = sha256(
            exact_json([compared, self._place, self.slices, rules, aims, best])
        )
        """Digest that names the evaluation: equal comparisons have equal digests."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of the agent's traffic that no cheater wins, and the targets' kinds."""
        own = self._agent.traffic or self._environment.capabilities
        traffic = [kind for kind in own if kind not in self._excluded]
        aimed = (kind for target in self._targets for kind in target.kinds)
        return tuple(dict.fromkeys((*traffic, *aimed)))

    @property
    def slices(self) -> tuple[str, ...]:
        """Return the kinds and, if it is played, the slice of tasks after a refused call."""
        return (*self.kinds, AFTER_ERROR) if self._plays_slice else self.kinds

    @property
    def _plays_slice(self) -> bool:
        return any(pool.rewards_repairs for job in self._jobs for pool in job.spec.pools)

    @property
    def _is_member(self) -> bool:
        return self._row.has_files and any(job.branch is not None for job in self._jobs)

    @property
    def _judged(self) -> tuple[str, ...]:
        """Return the kinds that may reject the candidate."""
        if not self._is_member:
            return self.kinds
        aimed = {kind for target in self._targets for kind in target.kinds}
        return tuple(kind for kind in self.kinds if kind in aimed)

    @property
    def _siblings(self) -> frozenset[str]:
        """Return the kinds that are measured but cannot reject the candidate."""
        return frozenset(self.kinds) - set(self._judged)

    def advance(self) -> Iterator[str]:
        """Take the next step and yield sentences about it. If this machine has no record of the
        kinds that cheating agents win, these agents play first; the kinds are left out later.
        Raises LogError, DatabaseUnavailable, OSError."""
        if read_cheats(self._app.settings, self._environment) is None:
            measure_cheats(self._app.settings, self._environment)
            yield f"cheaters played {self._environment.name} before {self._row.adapter} is compared"
            return
        try:
            yield from self._advance()
        except (JobStartError, DecisionRefusal) as error:
            yield str(error)
        except (BadPlan, CannotExamine, TooFewTrials) as error:
            yield self._trials.reject(str(error), origin=self.digest)

    def _advance(self) -> Iterator[str]:
        number, sizes = _PILOT, None
        earlier: list[Plan] = []
        while True:
            plan = self._plan(number, sizes, earlier)
            noted = self._read_note(number)
            if noted is None:
                if not (yield from self._run(self._job(number), plan, _look_name(number))):
                    return
                noted = yield from self._close_trial(number, plan, sizes, earlier)
            if noted is None or noted.following is None:
                return
            if number != _PILOT:
                earlier.append(plan)
            number, sizes = number + 1, noted.following

    # What is played

    def _plan(self, number: int, sizes: Sizes | None, earlier: Sequence[Plan]) -> Plan:
        """Return the plan of the pilot (`sizes` is None) or of a look, without earlier tasks."""
        trial, incumbent = self._trial, self._incumbent
        players = [self._build_player(incumbent)]
        if sizes is None:
            counts: Mapping[str, int] = dict.fromkeys(self.slices, trial.pilot_tasks)
            tasks, trials = self._tasks(counts, _PILOT_SEEDS), max(2, trial.trials)
        else:
            players.append(self._build_player(self._row))
            before = {task for plan in earlier for task in plan.tasks}
            tasks = tuple(task for task in self._tasks(sizes.tasks, 0) if task not in before)
            trials = trial.trials
        benchmarks = self._app.settings.benchmarks
        return Plan(
            name=f"{self.digest} {number}",
            environment=self._place,
            benchmarks=None if benchmarks is None else str(benchmarks),
            checkpoint=str(self._checkpoint),
            alias=self._row.alias,
            base=self._row.base,
            players=tuple(players),
            tasks=tasks,
            trials=trials,
            seed=Random(f"trial {self.digest}").getrandbits(48),
            temperature=trial.temperature,
            max_tokens=trial.max_tokens,
            episodes=trial.episodes,
            dtype=trial.dtype,
            threads=trial.threads,
            user=self._user,
        )

    def _build_player(self, row: AdapterRow | None) -> Player:
        """Return the player for a version (None: the base). Raises CannotExamine."""
        try:
            with self._app.reading() as connection:
                return build_player(connection, row)
        except NoSuchPart as error:
            raise CannotExamine(str(error)) from None

    def _tasks(self, counts: Mapping[str, int], offset: int) -> tuple[str, ...]:
        """Return ids of `counts` tasks per slice, in mixed order. Larger counts only add ids."""
        chance = int(self.digest[:12], 16)
        first = FIRST_TASK + (chance % TASKS) * TASKS + offset
        entries = [
            (place / count, kind, task.id)
            for kind, count in counts.items()
            for place, task in enumerate(
                self._draw_slice(count, chance, first)
                if kind == AFTER_ERROR
                else islice(self._environment.mixture({kind: 1.0}, chance, first), count)
            )
        ]
        return tuple(task for _, _, task in sorted(entries))

    def _draw_slice(self, count: int, chance: int, first: int) -> tuple[TaskDefinition, ...]:
        """Draw tasks that begin after a refused call, in the traffic's shares; keep the bodies."""
        shares = self._agent.traffic or dict.fromkeys(self._environment.capabilities, 1.0)
        if self._is_member:
            shares = {kind: shares.get(kind, 1.0) for kind in self._judged}
        begin = first + _SLICE_SEEDS
        assert self._held_out is not None, "a candidate with this slice has what draws it"
        drawn = self._held_out.draw(
            f"{self.digest} {begin}", self._environment, shares, chance, begin, count
        )
        self._slice_bodies.update((task.id, write_body(task.dump_body())) for task in drawn)
        return drawn

    def _report_shortage(self, wanted: int, plans: Sequence[Plan]) -> Iterator[str]:
        """Yield a sentence if the environment gave fewer tasks after a refused call than wanted."""
        if not self._plays_slice or self._held_out is None:
            return
        drawn = sum(task in self._slice_bodies for plan in plans for task in plan.tasks)
        if drawn < wanted:
            yield (
                f"{self._row.adapter}: {self._environment.name} gives {drawn} of the {wanted} "
                "tasks that were to begin behind a refused call; where they show too "
                f"little, the candidate is rejected; {self._held_out.remedy}"
            )

    def _reference_plan(
        self, number: int, plan: Plan, policy: BestPolicy, kinds: Collection[str]
    ) -> Plan | None:
        """Return the plan by which a best policy plays a look's tasks of `kinds`, or None."""
        tasks = tuple(
            task
            for task in plan.tasks
            if task not in self._slice_bodies and self._environment.task(task).capability in kinds
        )
        if not tasks:
            return None
        changes = {
            "name": f"{self.digest} best {number}",
            "players": (self._build_player(policy.adapter),),
            "tasks": tasks,
        }
        return plan.model_copy(update=changes)

    def _find_targets(self, connection: "Connection") -> tuple[Target, ...]:
        """Return the targets from the tasks that the cycle wrote, else the candidate's or members'
        kinds. Only the sign-flip test takes several; others get the first. Raises CannotExamine."""
        written: list[tuple[str, str]] = []
        for pattern, task in list_aims(connection, self._jobs):
            kind = self._find_kind(task)
            if kind is not None:
                written.append((pattern, kind))
        targets = find_targets(written)
        if not targets:
            kinds = list_member_kinds(connection, self._row)
            known = [kind for kind in kinds if kind in self._environment.capabilities][:MOST]
            targets = tuple(map(Target.of_kind, known))
        if not targets:
            remedy = (
                "evaluate it by hand: kintsugi adapters evaluate --target"
                if self._row.has_files
                else "push its members with --capability"
            )
            raise CannotExamine(
                f"{self._row.adapter} is for {', '.join(map(repr, kinds)) or None}, and "
                f"{self._environment.name} has {', '.join(self._environment.capabilities)}; "
                f"{remedy}"
            )
        return targets if self._gate.test == "sign_flip" else targets[:1]

    def _find_kind(self, task: str) -> str | None:
        """Return a task's kind, if the environment generates this kind; else None."""
        try:
            kind = self._environment.task(task).capability
        except UnknownTask:
            # The task was written for another environment that the agent had before.
            return None
        return kind if kind in self._environment.capabilities else None

    def _find_best(self, connection: "Connection") -> dict[str, BestPolicy]:
        """Return kind -> the best policy so far, for kinds at which it is not the incumbent."""
        row = self._row
        promotions = succession.list_promotions(connection, row.alias, row.base)
        incumbent = None if self._incumbent is None else self._incumbent.adapter
        return find_best(promotions, incumbent, self._judged, self._rules)

    def _name_policy(self, policy: BestPolicy) -> str:
        return self._row.base if policy.adapter is None else policy.adapter.adapter

    # Playing

    def _run(self, name: str, plan: Plan, what: str) -> Generator[str, None, bool]:
        """Advance a trial; return whether it is over. Raises CannotExamine, JobStartError."""
        start = partial(self._start, name, plan, what)
        return (yield from self._trials.advance(name, f"trial {name}", start))

    def _start(self, name: str, plan: Plan, what: str) -> Iterator[str]:
        """Start a trial's next attempt, unless an outdated trial of the candidate still runs.
        Raises CannotExamine for a task without a body, and JobStartError if the user's model is
        unreachable, its files are damaged, or the agent's checkpoint is missing."""
        own = {task: self._slice_bodies[task] for task in plan.tasks if task in self._slice_bodies}
        stored = collect_bodies(self._app, (task for task in plan.tasks if task not in own))
        if stored.missing:
            raise CannotExamine(next(iter(stored.missing.values())))
        if stored.withheld:
            raise CannotExamine(
                f"task {stored.withheld[0]} is made of a person's session, and no trial plays such"
            )
        bodies = {**stored.found, **own}
        files = {DEFINITIONS: write_definitions(bodies)} if bodies else {}
        self._trials.check_checkpoint()
        wait_for_users(self._row.adapter, [self._user])
        wait_for_files(self._row.adapter, self._user)
        if (yield from self._stop_others(name)):
            return
        if self._runner.start(Job(name, plan, files=files, replaces_spec=True)):
            yield f"{self._row.adapter}: {what} began, {len(plan.tasks)} tasks"

    def _stop_others(self, name: str) -> Generator[str, None, bool]:
        """Stop the candidate's trials with other users, incumbents or rules, and note this trial.
        Return whether such a trial still runs."""
        path = self._runner.folder(_TRIALS) / self._row.adapter
        noted = path.read_text().split() if path.exists() else []
        own = self.digest[:_DIGITS]
        others = [job for job in noted if not job.startswith(own)]
        active = [job for job in others if isinstance(self._runner.state(job), Active)]
        for job in active:
            reason = "its gate has other users, another incumbent or other rules since"
            yield self._trials.stop(job, f"trial {job} of {self._row.adapter}", reason)
        current = [*active, *(job for job in noted if job.startswith(own) and job != name), name]
        if current != noted:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, "\n".join(current).encode())
        return bool(active)

    def find_wait(self) -> GateWait | None:
        """Return the reason why the next trial's attempt waits. None if an attempt runs, or no
        reason is known. Raises RunnerUnavailable."""
        number = _PILOT
        while (note := self._read_note(number)) is not None:
            if note.following is None:
                return None
            number += 1
        names = dict.fromkeys(map(self._name_policy, self._best.values()))
        looks = range(1, number + 1)
        jobs = (self._reference_job(name, look) for name in names for look in looks)
        for job in (self._job(number), *jobs):
            state = self._runner.state(job)
            if isinstance(state, Active):
                return None
            wait, is_over = self._find_trial_wait(job, state)
            if not is_over:
                return wait
        return None

    def _find_trial_wait(self, job: str, state: TrialState) -> tuple[GateWait | None, bool]:
        """Return why the next attempt of a trial waits, and whether the trial is over."""
        row = self._row
        if isinstance(state, Exit):
            result = self._trials.judge_exit(job, state)
            if isinstance(result, Over):
                return None, True
            if isinstance(result, SettingFault) and not result.is_due:
                says = self._trials.describe_wait(result.reason)
                wait = GateWait(row.adapter, row.alias, "agent", says, setting=result.setting)
                return wait, False
        return self._find_start_wait(), False

    def _find_start_wait(self) -> GateWait | None:
        """Return why an attempt may be unable to begin: checkpoint, files or users' endpoint."""
        row, user = self._row, self._user
        setting: str | None = CHECKPOINT_SETTING
        try:
            self._trials.check_checkpoint()
            setting = None
            wait_for_files(row.adapter, user)
        except JobStartError as error:
            return GateWait(row.adapter, row.alias, "agent", str(error), setting=setting)
        if not isinstance(user, EndpointUser):
            return None
        says = describe_endpoint_wait(row.adapter, user)
        return GateWait(row.adapter, row.alias, "agent", says, waits_for=(user.url,))

    @property
    def _erring(self) -> str | None:
        """Return the name of the model that plays the users, if it may err; else None."""
        user = self._user
        return name_fallible_user(self._environment, None if user is None else user.simulator)

    def _job(self, number: int) -> str:
        return f"{self.digest[:32]}-{number}"

    def _reference_job(self, policy: str, number: int) -> str:
        return f"{self.digest[:_DIGITS]}-best-{sha256(policy)[:8]}-{number}"

    def _read_attempts(self, job: str, plan: Plan) -> list[TrialAttempt]:
        folder = self._runner.folder(job) / OUT
        return [attempt for chunk in read_attempts(folder, plan) for attempt in chunk]

    # What came out

    def _close_trial(
        self, number: int, plan: Plan, sizes: Sizes | None, earlier: Sequence[Plan]
    ) -> Generator[str, None, _TrialNote | None]:
        """Record a finished trial, decide and note the next sizes. None: a best policy plays."""
        played = self._read_attempts(self._job(number), plan)
        self._record(played)
        if sizes is None:
            following: Sizes | None = sizes_of(
                _by_kind(played, self._slice_bodies, self._erring),
                self._targets,
                self._trial,
                self._gate,
                tuple(self._best),
                sorted(self._siblings),
            )
            assert following is not None, "a pilot is followed by a look"
            yield f"{self._row.adapter}: {following.words()}"
            yield from self._report_shortage(self._trial.pilot_tasks, [plan])
        else:
            looks = [*earlier, plan]
            whole = [
                attempt
                for place, look in enumerate(looks, start=1)
                for attempt in self._read_attempts(self._job(place), look)
            ]
            report = self._read_report(number)
            if report is None:
                report = yield from self._judge(whole, looks, sizes)
                if report is None:
                    return None
                report = self._conclude(report, sizes)
                self._append_report(self._pair(whole), report, number)
            following = self._extend(report, sizes)
            yield f"{self._row.adapter}: {report.decision} at look {number}"
            yield from self._report_user_faults(whole)
            yield from self._report_shortage(sizes.tasks.get(AFTER_ERROR, 0), looks)
        noted = _TrialNote(following=following)
        note = self._runner.folder(self._job(number)) / _NOTED
        replace_file(note, noted.model_dump_json().encode())
        return noted

    def _judge(
        self, played: Sequence[TrialAttempt], looks: Sequence[Plan], sizes: Sizes
    ) -> Generator[str, None, GateReport | None]:
        """Return the gate's report on all looks so far; None while a best policy still plays."""
        evaluation = self._measure(played, self._pair(played), sizes)
        report = decide(evaluation, self._gate)
        if not self._best or report.decision == "REJECT":
            return report
        references = yield from self._play_references(played, looks)
        if references is None:
            return None
        return decide(replace(evaluation, references=references), self._gate)

    def _play_references(
        self, played: Sequence[TrialAttempt], looks: Sequence[Plan]
    ) -> Generator[str, None, list[Reference] | None]:
        """Return the best policies' results on all looks; None while such a policy plays. For a
        policy that cannot be played, the gap of earlier reports is used."""
        by_policy: dict[str, list[str]] = {}
        for kind, policy in self._best.items():
            by_policy.setdefault(self._name_policy(policy), []).append(kind)
        references: list[Reference] = []
        waiting = False
        for name, kinds in by_policy.items():
            policy = self._best[kinds[0]]
            attempts: list[TrialAttempt] | None = None
            if policy.adapter is None or policy.adapter.state is not State.COLLECTED:
                try:
                    attempts = yield from self._play_reference(policy, kinds, looks)
                except CannotExamine as error:
                    yield f"{self._row.adapter}: {name} does not play beside it: {error}"
                else:
                    if attempts is None:
                        waiting = True
                        continue
            for kind in kinds:
                pairs = None
                if attempts is not None:
                    pairs = _reference_pairs(
                        attempts, played, kind, self._trial.trials, self._erring
                    )
                references.append(Reference(kind, name, self._best[kind].gap, pairs))
        return None if waiting else references

    def _play_reference(
        self, policy: BestPolicy, kinds: Collection[str], looks: Sequence[Plan]
    ) -> Generator[str, None, list[TrialAttempt] | None]:
        """Return a best policy's attempts; None while it still plays. Raises CannotExamine."""
        name = self._name_policy(policy)
        attempts: list[TrialAttempt] = []
        for number, look in enumerate(looks, start=1):
            plan = self._reference_plan(number, look, policy, kinds)
            if plan is None:
                continue
            job = self._reference_job(name, number)
            if not (yield from self._run(job, plan, f"{name} at {_look_name(number)}")):
                return None
            attempts += self._read_attempts(job, plan)
        self._record(attempts)
        return attempts

    def _pair(self, played: Sequence[TrialAttempt]) -> list[Pair]:
        """Return the verdicts of incumbent and candidate, paired by task. Raises TooFewTrials."""
        slices = {
            attempt.head.task.id: _slice(attempt, self._slice_bodies)
            for attempt in played
            if attempt.head.task is not None
        }
        both = (_outcomes(played, 0), _outcomes(played, 1))
        return pair_judged(both, slices, self._trial.trials, self._erring)

    def _report_user_faults(self, played: Sequence[TrialAttempt]) -> Iterator[str]:
        """Yield a sentence on the users' errors in each player's trials, if users may err."""
        users = self._erring
        if users is None:
            return
        base = self._row.base if self._incumbent is None else self._incumbent.adapter
        incumbent, candidate = (
            _count_faults(name, [attempt for attempt in played if attempt.player == player])
            for player, name in enumerate((base, self._row.adapter))
        )
        both = _outcomes(played, 0), _outcomes(played, 1)
        surplus = count_surplus(*both, both[0])
        sentence = describe_faults(users, incumbent, candidate, surplus)
        if sentence is not None:
            yield f"{self._row.adapter}: {sentence}"

    def _record(self, played: Sequence[TrialAttempt]) -> None:
        app, names = self._app, [attempt.head.rollout for attempt in played]
        app.settle()
        with app.reading() as connection:
            known = rollouts.verdicts(connection, names)
        missing = [attempt.event for attempt in played if attempt.head.rollout not in known]
        for start in range(0, len(missing), _BATCH):
            append_rollouts(app.spool, app.blobs, missing[start : start + _BATCH])
        app.settle()

    def _measure(
        self, played: Sequence[TrialAttempt], pairs: Sequence[Pair], sizes: Sizes
    ) -> Evaluation:
        """Return the gate's measurements without best policies. If users may err, targets shrink to
        the tasks with a verdict."""
        targets = sizes.targets
        if self._erring is not None:
            targets = tuple(shrink_target(target, pairs) for target in targets)
        return Evaluation(
            targets,
            pairs,
            incumbent=self._conduct(played, 0),
            candidate=self._conduct(played, 1),
            looks=looks_of(sizes, self._trial),
            siblings=self._siblings,
        )

    def _conclude(self, report: GateReport, sizes: Sizes) -> GateReport:
        """Return a look's report with the rules. If it is the last, decide its open checks too."""
        report = report.model_copy(update={"rules": self._rules})
        if report.decision == "EXTEND" and self._extend(report, sizes) is None:
            return conclude(report)
        return report

    def _extend(self, report: GateReport, sizes: Sizes) -> Sizes | None:
        """Return the sizes for the next look; None if there is no next look."""
        if report.decision != "EXTEND":
            return None
        following = extend_sizes(sizes, report, self._trial)
        if following is None or not self._plays_slice:
            return following
        more = set(self._tasks(following.tasks, 0)) - set(self._tasks(sizes.tasks, 0))
        # The environment may have no more tasks of the slice.
        return following if more else None

    def _conduct(self, played: Sequence[TrialAttempt], player: int) -> Conduct:
        own = [
            attempt
            for attempt in played
            if attempt.player == player
            and _slice(attempt, self._slice_bodies) not in self._siblings
        ]
        tokens = {attempt.head.rollout: attempt.tokens for attempt in own}
        with self._app.reading() as connection:
            begun = self._slice_bodies.keys() if self._plays_slice else None
            conduct = conduct_in(connection, list(tokens), tokens, begun)
        return replace(conduct, evidence=_measure_evidence(own, self._slice_bodies))

    def _append_report(self, pairs: Sequence[Pair], report: GateReport, number: int) -> None:
        """Append the events AdapterEvaluated and GateDecided in one batch, at most once."""
        incumbent = None if self._incumbent is None else self._incumbent.adapter
        pairs = [pair for pair in list_traffic(pairs) if pair.slice not in self._siblings]
        decisions: dict[str, Decision] = {
            "evaluated": AdapterEvaluated(
                adapter=self._row.adapter,
                incumbent=incumbent,
                environment=self._environment.name,
                tasks=len(pairs),
                trials=self._trial.trials,
                pass_hat_1=PassRates(
                    incumbent=mean(mean(pair.incumbent) for pair in pairs),
                    candidate=mean(mean(pair.candidate) for pair in pairs),
                ),
            ),
            "gate": GateDecided(
                adapter=self._row.adapter,
                alias=self._row.alias,
                incumbent=incumbent,
                report=report,
            ),
        }
        Decisions(self._app).take_all(decisions, self._row.cause, self._origin(number))

    def _read_report(self, number: int) -> GateReport | None:
        """Return the report that was appended for a look before an interruption, or None."""
        with self._app.reading() as connection:
            steps = serving.steps_of(connection, derive_id(self._origin(number), "gate"))
            row = serving.adapter_row(connection, self._row.adapter)
        was_taken = any(step.refused is None for step in steps)
        return row.gate if was_taken and row is not None else None

    def _origin(self, number: int) -> str:
        return f"{self.digest} {number}"

    def _read_note(self, number: int) -> _TrialNote | None:
        path = self._runner.folder(self._job(number)) / _NOTED
        return _TrialNote.model_validate_json(path.read_bytes()) if path.exists() else None


def _find_rules(environment: Environment, kinds: Iterable[str]) -> dict[str, str]:
    """Return kind -> version of its grading rules. First versions are left out: digests stay."""
    known = [kind for kind in kinds if kind in environment.capabilities]
    tasks = {kind: environment.generate(kind, FIRST_TASK) for kind in known}
    return {
        kind: grading.get_version(task)
        for kind, task in tasks.items()
        if task.criteria.rules is not None
    }


def _kind(attempt: TrialAttempt) -> str:
    task = attempt.head.task
    assert task is not None, "a trial's rollouts have tasks"
    assert task.capability is not None, "generated tasks have a kind"
    return task.capability


def _slice(attempt: TrialAttempt, behind: Collection[str]) -> str:
    """Return the slice of an attempt: AFTER_ERROR if its task is in `behind`, else its kind."""
    task = attempt.head.task
    return AFTER_ERROR if task is not None and task.id in behind else _kind(attempt)


def _measure_evidence(
    played: Iterable[TrialAttempt], behind: Collection[str]
) -> dict[str, TaskEvidence]:
    """Return task -> evidence of one player's answers, without trials that have no verdict. Return
    {} if an earlier version of the program played, which measured none."""
    by_task: dict[str, list[TrialAttempt]] = {}
    for attempt in played:
        if attempt.evidence is None:
            return {}
        if attempt.head.success is not None and attempt.head.task is not None:
            by_task.setdefault(attempt.head.task.id, []).append(attempt)
    return {task: _sum_evidence(attempts, behind) for task, attempts in by_task.items()}


def _sum_evidence(attempts: Sequence[TrialAttempt], behind: Collection[str]) -> TaskEvidence:
    pairs = [(item, item.evidence) for item in attempts if item.evidence is not None]
    return TaskEvidence(
        slice=_slice(attempts[0], behind),
        rollouts=len(pairs),
        passed=sum(item.head.success is True for item, _ in pairs),
        without_lookup=sum(not own.has_lookup for _, own in pairs),
        passed_without_lookup=sum(
            item.head.success is True and not own.has_lookup for item, own in pairs
        ),
        unseen_values=sum(own.unseen_values for _, own in pairs),
        answers=sum(own.answers for _, own in pairs),
        tokens=sum(item.tokens for item, _ in pairs),
    )


def _outcomes(played: Sequence[TrialAttempt], player: int) -> dict[str, list[bool | None]]:
    """Return task -> verdicts of one player's trials, in order."""
    outcomes: dict[str, list[bool | None]] = {}
    for attempt in sorted(played, key=lambda attempt: attempt.trial):
        if attempt.player == player and attempt.head.task is not None:
            outcomes.setdefault(attempt.head.task.id, []).append(attempt.head.success)
    return outcomes


def _count_faults(player: str, played: Sequence[TrialAttempt]) -> FaultCount:
    return FaultCount(player, sum(map(_is_user_error, played)), len(played))


def _is_user_error(attempt: TrialAttempt) -> bool:
    return attempt.head.termination == Termination.USER_ERROR


def _by_kind(
    played: Sequence[TrialAttempt], behind: Collection[str], users: str | None
) -> dict[str, list[list[bool]]]:
    """Return kind or slice -> the incumbent's verdicts on each task. If `users` (their model) may
    err, trials with their errors are left out, and so are tasks with fewer than two trials left.
    Raises CannotExamine if another trial has no verdict, or a kind has no task."""
    kinds = {
        item.head.task.id: _slice(item, behind) for item in played if item.head.task is not None
    }
    if users is not None:
        played = [attempt for attempt in played if not _is_user_error(attempt)]
    groups: dict[str, list[list[bool]]] = {}
    for task, verdicts in _outcomes(played, 0).items():
        judged = [item for item in verdicts if item is not None]
        if len(judged) < len(verdicts):
            raise CannotExamine(
                f"task {task} has trials that nobody could judge; the environment needs a verdict "
                "of its own"
            )
        # A single trial tells nothing about the spread.
        if users is None or len(judged) > 1:
            groups.setdefault(kinds[task], []).append(judged)
    if lost := sorted(set(kinds.values()) - set(groups)):
        raise CannotExamine(
            f"the users that {users} played erred in all but one trial of every task of "
            f"{lost[0]}; let the script play, or a better model"
        )
    return groups


def _reference_pairs(
    attempts: Sequence[TrialAttempt],
    played: Sequence[TrialAttempt],
    kind: str,
    trials: int,
    users: str | None,
) -> list[Pair]:
    """Return the pairs of a kind: a best policy's `attempts` in the incumbent's place, and the
    candidate's in `played`. Raises TooFewTrials."""
    slices = {
        attempt.head.task.id: kind
        for attempt in attempts
        if attempt.head.task is not None and _kind(attempt) == kind
    }
    return pair_judged((_outcomes(attempts, 0), _outcomes(played, 1)), slices, trials, users)


def _look_name(number: int) -> str:
    return "the pilot" if number == _PILOT else f"look {number}"
