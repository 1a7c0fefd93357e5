"""Write what the leader records in a cycle: the directive, the tasks, and the requests of jobs.

Guarantee: the events follow from the tables of one moment and the cycle's id. A restarted leader,
or another one, writes the same events under the same ids, except for an analyzer's words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.diagnosis.round_counts import Pair
from consumers.reads import evidence, learning, planning, rollouts, serving, succession
from consumers.reads.learning import CycleRow
from consumers.reads.serving import AdapterRow
from daemon.adapters.compatibility import BadBase, count_parameters
from daemon.controller.directive_builder import direct
from daemon.core.kind_exclusions import (
    drop_kinds,
    filter_by_pools,
    find_exclusions,
    list_exemptions,
    measure_cheats,
)
from daemon.core.task_definitions import open_event_environment, with_definitions
from daemon.core.task_kinds import find_kinds
from daemon.cycle.estimate import JobBudget, read_job_budget
from daemon.cycle.job_spec import NotTrainable, build_job_spec, name_capability, plan_rounds
from daemon.cycle.methods import CycleMethods, find_user
from daemon.cycle.outlook import describe_unusable
from daemon.cycle.parent import describe_parent, find_rejected_parent
from daemon.cycle.proposal import Proposal, RetryLater, Study
from daemon.jobs.learning_rate import needs_size
from daemon.jobs.own_successes import offer_successes
from daemon.proposer import sources
from daemon.proposer.buffer import PoolEntry, PoolMix, pools
from daemon.proposer.candidate import CannotSample, Source
from daemon.proposer.probe import Engine, ProbeBudget, Prober, ProbeTarget
from daemon.proposer.proposer import ProposalRequest, propose
from daemon.proposer.rejections import describe_rejections, list_new_entries, reject_bodies
from daemon.proposer.siblings import draw_siblings, find_regressions
from daemon.proposer.task_writer import TaskWriter
from envs.endpoint import Sampling
from envs.environment import UnknownTask
from envs.registry import EnvironmentBroken, UnknownEnvironment
from envs.task import GENERATED
from events.envelope import derive_id, utc_now
from events.jobs import JobRounds, TaskPool
from events.learning import (
    OPERATOR,
    Decision,
    DirectiveWritten,
    JobParent,
    JobRequested,
    TaskProposed,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent
    from daemon.core.app import App
    from daemon.cycle.branches import Branch, BranchChoice
    from daemon.cycle.methods import ChooserTeacher, PartsMaker, Renewal
    from envs.environment import Environment


@dataclass(frozen=True, slots=True)
class _Start:
    row: AdapterRow | None
    """Adapter with whose weights the job begins; None for the base's."""
    parent: JobParent | None
    """The adapter and the reason, if the job begins with one that does not serve; else None."""
    regressions: dict[str, float]
    """Task that the last candidate lost in its gate -> its weight."""


_FRESH = _Start(None, None, {})


@dataclass(frozen=True, slots=True)
class _Stock:
    """The tasks that a cycle's jobs may draw, and the facts needed to build the jobs."""

    environment: "Environment"
    cycle: CycleRow
    entries: Sequence[PoolEntry]
    new: Sequence[TaskProposed]
    followed: Mapping[str, Sequence[Source]]
    traffic: sources.Traffic
    priorities: Mapping[str, float]
    starts: Mapping[str | None, _Start]
    """Branch -> its start. The key None is the start of a job for all patterns."""
    parameters: int | None


class CyclePlanner:
    """Writes the directive, the tasks and the job requests of each cycle."""

    def __init__(
        self,
        app: "App",
        engines: Sequence[Engine] = (),
        stopping: Callable[[], bool] = lambda: False,
        *,
        record: bool = True,
        teach_chooser: "ChooserTeacher | None" = None,
        make_parts: "PartsMaker | None" = None,
    ) -> None:
        """Set up the planner. `engines` serve the policy that plays written tasks. `record` is
        False in a dry run, which appends nothing. Without `teach_chooser` no chooser's job is
        requested. `make_parts` builds the data engine once a cycle; None: by the settings."""
        self._app, self._engines, self._stopping = app, engines, stopping
        self._record = record
        self._methods = CycleMethods(
            app, stopping, asks_models=record, teach_chooser=teach_chooser, make_parts=make_parts
        )
        self._probe_budgets: dict[str, tuple[str, ProbeBudget]] = {}
        """Agent -> the last cycle that probed tasks, and the budget of its probes."""

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        """Return the directive of a cycle whose round is closed."""
        assert cycle.round is not None, "a cycle is diagnosed first"
        pair = Pair(cycle.alias, cycle.base)
        with self._app.reading() as connection:
            choice = self._methods.choose_branches(connection, pair)
        return direct(
            self._app, cycle.cycle, cycle.alias, cycle.base, cycle.round, choice.patterns,
            find_kinds(self._app.settings, cycle.environment), self._methods.choose_planned,
        )  # fmt: skip

    def study_round(self, cycle: CycleRow) -> Study | None:
        """Study a cycle's round before its directive; None if nothing is due. Raise Skip."""
        return self._methods.study_round(cycle)

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        """Return the tasks and jobs of a cycle with a directive, or the jobs that train branches of
        an earlier base again. Impossible settings end the cycle. Raise RetryLater."""
        retraining = self._propose_retraining(cycle)
        if retraining.said or retraining.lacking is not None:
            return retraining
        proposal = self._propose_new_tasks(cycle)
        return replace(proposal, untaught={**retraining.untaught, **proposal.untaught})

    def _propose_retraining(self, cycle: CycleRow) -> Proposal:
        """Return the jobs that train branches of an earlier base again. Raise RetryLater."""
        with self._app.reading() as connection:
            retraining = self._methods.read_retraining(connection, cycle)
        if not retraining.waiting:
            return Proposal({}, untaught=retraining.left)
        try:
            environment = open_event_environment(self._app, cycle.environment)
            parameters = self._count_parameters(cycle)
            jobs, untaught = self._build_retraining_jobs(cycle, environment, parameters, retraining)
        except (EnvironmentBroken, NotTrainable, UnknownEnvironment) as error:
            return Proposal({}, str(error))
        except CannotSample as error:
            raise RetryLater(f"the old members of {cycle.alias} wait: {error}") from error
        reasons = {
            branch: reason
            for branch, reason in retraining.describe(cycle.base).items()
            if branch not in untaught
        }
        return Proposal(jobs, untaught={**retraining.left, **untaught}, retrained=reasons)

    def _build_retraining_jobs(
        self,
        cycle: CycleRow,
        environment: "Environment",
        parameters: int | None,
        retraining: "Renewal",
    ) -> tuple[dict[str, Decision], dict[str, str]]:
        """Return the jobs that train branches again (id of event -> request), in order, and name ->
        why another has none. Raises NotTrainable, RetryLater, CannotSample."""
        budget = self._read_budget(cycle)
        # What answers may lack these branches: then the base answers for them.
        sampler = self._build_prober(environment, cycle, cycle.base)
        drawn, untaught = self._methods.draw_retraining(
            cycle, environment, retraining, budget, sampler
        )
        jobs: dict[str, Decision] = {
            derive_id("job requested", cycle.cycle, branch): self._build_job(
                cycle, environment, _FRESH, parameters, task_pools, branch
            )
            for branch, task_pools in drawn.items()
        }
        return jobs, untaught

    def _propose_new_tasks(self, cycle: CycleRow) -> Proposal:
        """Return the new tasks and jobs of a cycle with a directive. Raise RetryLater."""
        assert cycle.directive is not None, "a cycle is directed first"
        if not cycle.directive.quotas:
            lacking = "no failure pattern of the round has a priority above 0"
            return Proposal({}, lacking + self._describe_unusable(cycle))
        try:
            environment = open_event_environment(self._app, cycle.environment)
            writers = self._methods.open_writers(environment, cycle)
        except (EnvironmentBroken, UnknownEnvironment) as error:
            return Proposal({}, str(error))
        try:
            # Checked before any task is played: without the size, no job could be built.
            parameters = self._count_parameters(cycle)
        except NotTrainable as error:
            return Proposal({}, str(error))
        assert cycle.round is not None, "a cycle is diagnosed first"
        pair = Pair(cycle.alias, cycle.base)
        excluded = self._find_exclusions(environment)
        review = self._methods.review_tasks(environment, cycle)
        with self._app.reading() as connection:
            wanted = self._proposal_request(connection, environment, cycle, writers)
            wanted = replace(wanted, sources=_leave_out(wanted.sources, excluded))
            buffered = [
                entry
                for entry in self._methods.read_pool_entries(connection, cycle)
                if entry.task not in review.retired
            ]
            sealed = learning.read_sealed_tasks(connection, cycle.alias)
            drawn = sources.read_traffic(
                connection, environment, cycle.alias, cycle.base, cycle.round
            )
            priorities = {
                line.pattern: line.priority
                for line in rollouts.pattern_lines(connection, cycle.alias)
                if line.base == cycle.base
            }
            choice = self._methods.choose_branches(connection, pair)
            starts = {
                name: self._read_start(connection, environment, cycle, name)
                for name in (None, *(branch.name for branch in choice.branches))
            }
        try:
            decisions = {
                **review.decisions,
                **self._write_tasks(environment, cycle, wanted),
            }
        except CannotSample as error:
            raise RetryLater(f"the tasks of {cycle.alias} wait: {error}") from error
        reasons = sources.find_unplayable(environment, [entry.task for entry in buffered])
        written = [entry for entry in buffered if entry.task not in reasons]
        decisions |= reject_bodies(environment, cycle, buffered, reasons, sealed)
        new = [data for data in decisions.values() if isinstance(data, TaskProposed)]
        if not new:
            return Proposal(decisions, describe_rejections(list(decisions.values())))
        written += list_new_entries(new, written, writers)
        stock = _Stock(
            environment, cycle, written, new, wanted.sources, drawn, priorities, starts, parameters
        )
        return self._request_jobs(stock, choice, decisions)

    def _describe_unusable(self, cycle: CycleRow) -> str:
        """Return a clause on the failures that no task of the environment can follow, or ""."""
        kinds = find_kinds(self._app.settings, cycle.environment)
        if kinds is None:
            return ""
        with self._app.reading() as connection:
            lines = planning.list_unusable_failures(connection, cycle.alias, cycle.base, kinds)
        return f"; {describe_unusable(lines)}" if lines else ""

    def _write_tasks(
        self, environment: "Environment", cycle: CycleRow, wanted: ProposalRequest
    ) -> dict[str, Decision]:
        """Return event id -> task or rejection for a directive. Raise CannotSample."""
        with_definitions(self._app, environment, wanted.bodies)
        filled = self._methods.fill_quotas(environment, cycle, wanted, wanted.bodies)
        return {
            **filled.decisions,
            **{entry.id: entry.data for entry in propose(environment, filled.request)},
        }

    def _request_jobs(
        self, stock: "_Stock", choice: "BranchChoice", decisions: Mapping[str, Decision]
    ) -> Proposal:
        """Propose a job for each branch with written tasks, else one job. Raise RetryLater."""
        try:
            jobs, untaught = self._build_branch_jobs(stock, choice)
            if jobs:
                return Proposal({**decisions, **jobs}, untaught=untaught)
            job = self._build_policy_job(stock)
        except NotTrainable as error:
            return Proposal(decisions, str(error))
        return Proposal({**decisions, derive_id("job requested", stock.cycle.cycle): job})

    def _build_policy_job(self, stock: "_Stock") -> JobRequested:
        """Return the request of a cycle's single job. Raise NotTrainable, RetryLater."""
        task_pools = self._mix_pools(stock)
        if not task_pools:
            raise NotTrainable("every written task of a pattern with a priority is passed by now")
        return self._build_job(
            stock.cycle, stock.environment, stock.starts[None], stock.parameters, task_pools
        )

    def _build_branch_jobs(
        self, stock: "_Stock", choice: "BranchChoice"
    ) -> tuple[dict[str, Decision], dict[str, str]]:
        """Return the jobs of a cycle's branches (event id -> request), and branch -> why it has
        none. Raise NotTrainable, RetryLater."""
        jobs: dict[str, Decision] = {}
        untaught = dict(choice.left)
        budget = self._read_budget(stock.cycle)
        for branch in choice.branches:
            if not any(data.pattern in branch.patterns for data in stock.new):
                untaught[branch.name] = "no task that was written for it passed its checks"
                continue
            task_pools = self._mix_pools(stock, branch)
            if not task_pools:
                untaught[branch.name] = "every written task of its patterns is passed by now"
                continue
            if (refusal := budget.find_refusal(len(jobs))) is not None:
                untaught[branch.name] = refusal
                continue
            event = derive_id("job requested", stock.cycle.cycle, branch.name)
            jobs[event] = self._build_job(
                stock.cycle, stock.environment, stock.starts[branch.name], stock.parameters,
                task_pools, branch.name,
            )  # fmt: skip
        return jobs, untaught

    def _read_budget(self, cycle: CycleRow) -> JobBudget:
        """Return the training time that is left for the cycle's jobs."""
        pair = Pair(cycle.alias, cycle.base)
        with self._app.reading() as connection:
            return read_job_budget(connection, self._app.settings, pair, utc_now())

    def _mix_pools(self, stock: "_Stock", branch: "Branch | None" = None) -> tuple[TaskPool, ...]:
        """Return the pools of a branch's job, or of one for all patterns. A branch's targets are
        its patterns' tasks; others are only replayed, if nothing is left to learn from them."""
        cycle, entries, new = stock.cycle, list(stock.entries), stock.new
        directive, seed = cycle.directive, cycle.cycle
        assert directive is not None, "a cycle is directed first"
        if branch is not None:
            patterns = frozenset(branch.patterns)
            quotas = tuple(quota for quota in directive.quotas if quota.pattern in patterns)
            directive = directive.model_copy(update={"quotas": quotas})
            new = [data for data in new if data.pattern in patterns]
            seed = f"{seed} {branch.name}"
            entries = [
                entry
                for entry in entries
                if entry.pattern in (*patterns, OPERATOR)
                or entry.retires
                or stock.priorities.get(entry.pattern, 0.0) <= 0
            ]
        start = stock.starts[None if branch is None else branch.name]
        near = sources.find_traffic_siblings(
            stock.environment, directive, stock.followed, stock.traffic
        )
        siblings = draw_siblings(stock.environment, (near, start.regressions), len(new), seed)
        shown = frozenset(siblings)
        traffic = [task for task in stock.traffic.tasks if task not in shown]
        return pools(entries, stock.priorities, traffic, cycle.number, self._build_mix(), siblings)

    def request_chooser(self, cycle: CycleRow) -> JobRequested:
        """Return the job that trains the version's chooser. Raise RetryLater, NotTrainable."""
        return self._methods.request_chooser(cycle, self._find_agent(cycle))

    def _proposal_request(
        self,
        connection: "Connection",
        environment: "Environment",
        cycle: CycleRow,
        writers: Sequence[TaskWriter],
    ) -> ProposalRequest:
        assert cycle.directive is not None, "a cycle is directed first"
        return ProposalRequest(
            cycle=cycle.cycle,
            alias=cycle.alias,
            base=cycle.base,
            directive=cycle.directive,
            sources=sources.sources(connection, environment, cycle.directive),
            known=sources.read_prior_tasks(connection, cycle.alias, cycle.cycle),
            explore=self._app.settings.proposer.explore,
            sampler=self._build_sampler(connection, environment, cycle),
            writers=writers,
        )

    def _build_mix(self) -> PoolMix:
        settings = self._app.settings.proposer
        return PoolMix(
            settings.targeted_step, settings.targeted_most, settings.replay, settings.siblings,
            settings.operator,
        )  # fmt: skip

    def _build_sampler(
        self, connection: "Connection", environment: "Environment", cycle: CycleRow
    ) -> Prober | None:
        incumbent = self._read_incumbent(connection, cycle)
        if incumbent is not None and not incumbent.has_files:
            # The engine knows only the version's members, and no member answers every task.
            return None
        policy = cycle.base if incumbent is None else incumbent.adapter
        return self._build_prober(environment, cycle, policy)

    def _build_prober(
        self, environment: "Environment", cycle: CycleRow, policy: str
    ) -> Prober | None:
        """Return a prober of `policy` at the first engine; None if no engine may be asked."""
        settings = self._app.settings
        if not settings.proposer.probe or not self._engines:
            return None
        sampling = Sampling(settings.trial.temperature, settings.trial.max_tokens)
        with self._app.reading() as connection:
            user = find_user(connection, settings, cycle.alias, cycle.base)
        probed = ProbeTarget(
            cycle=cycle.cycle, alias=cycle.alias, base=cycle.base, policy=policy,
            engine=self._engines[0], sampling=sampling, user=user,
        )  # fmt: skip
        budget = self._find_probe_budget(cycle)
        return Prober(
            self._app, environment, probed, self._stopping, record=self._record, budget=budget
        )

    def _find_probe_budget(self, cycle: CycleRow) -> ProbeBudget:
        """Return the budget of a cycle's probes, which is kept while the cycle waits."""
        last, budget = self._probe_budgets.get(cycle.alias, ("", None))
        if budget is None or last != cycle.cycle:
            model = self._app.settings.models.user
            budget = ProbeBudget(model.max_tokens, model.minutes)
            self._probe_budgets[cycle.alias] = cycle.cycle, budget
        return budget

    def _read_start(
        self,
        connection: "Connection",
        environment: "Environment",
        cycle: CycleRow,
        branch: str | None,
    ) -> "_Start":
        regressions = self._read_regressions(connection, environment, cycle, branch)
        incumbent = self._read_incumbent(connection, cycle)
        if branch is not None:
            row, reason = self._methods.find_branch_parent(connection, cycle, branch, incumbent)
        else:
            row = find_rejected_parent(connection, cycle, incumbent)
            reason = None if row is None else describe_parent(row)
            if row is None and incumbent is not None and incumbent.has_files:
                row = incumbent
        parent = None
        if row is not None and reason is not None:
            parent = JobParent(adapter=row.adapter, reason=reason)
        return _Start(row, parent, regressions)

    def _read_regressions(
        self,
        connection: "Connection",
        environment: "Environment",
        cycle: CycleRow,
        branch: str | None,
    ) -> dict[str, float]:
        """Return task -> weight, for tasks that the last candidate lost: the branch's candidate, or
        without `branch` the last one for all patterns."""
        row = succession.find_last_candidate(connection, cycle.alias, branch)
        if row is None or row.base != cycle.base or row.gate is None:
            return {}
        differences = evidence.read_trial_differences(
            connection, cycle.alias, cycle.base, row.adapter, row.incumbent or cycle.base
        )
        generated = {}
        for task, gain in differences.items():
            try:
                # Others have none like them, and a gate's own tasks are never trained on.
                if environment.task(task).split == GENERATED:
                    generated[task] = gain
            except UnknownTask:
                # It was played in the environment that the agent had then.
                continue
        return find_regressions(generated)

    def _read_incumbent(self, connection: "Connection", cycle: CycleRow) -> AdapterRow | None:
        route = serving.route_row(connection, cycle.alias)
        name = None if route is None else route.standing.incumbent
        row = None if name is None else serving.adapter_row(connection, name)
        return None if row is None or row.base != cycle.base else row

    def _count_parameters(self, cycle: CycleRow) -> int | None:
        """Return the base's number of weights if a setting needs it. Raise NotTrainable."""
        settings = self._app.settings
        training, agent = settings.training, settings.find_agent(cycle.alias)
        if agent is None or agent.checkpoint is None or not needs_size(training):
            return None
        try:
            return count_parameters(agent.checkpoint)
        except BadBase as error:
            raise NotTrainable(
                f"no learning rate follows from the base: {error}; set training.lr, and for a warm "
                "start training.warm_start_lr and training.warm_start_epochs"
            ) from error

    def _find_agent(self, cycle: CycleRow) -> "Agent":
        """Return the agent's settings. Raise RetryLater if they do not name the agent."""
        agent = self._app.settings.find_agent(cycle.alias)
        if agent is None:
            raise RetryLater(
                f"{cycle.alias} is no longer in the setting agents, so its cycle waits; put it "
                f"back, or run kintsugi cycle cancel {cycle.alias}"
            )
        return agent

    def _build_job(
        self, cycle: CycleRow, environment: "Environment", start: "_Start",
        parameters: int | None, task_pools: Sequence[TaskPool], branch: str | None = None,
    ) -> JobRequested:  # fmt: skip
        """Return the job of a branch, or for all patterns. Raise NotTrainable, RetryLater."""
        settings = self._app.settings
        agent = self._find_agent(cycle)
        excluded = self._find_exclusions(environment)
        task_pools = drop_kinds(environment, task_pools, excluded)
        if all(pool.replay for pool in task_pools):
            reasons = "; ".join(f"{kind}: {reason}" for kind, reason in excluded.items())
            raise NotTrainable(f"every task is of a kind that nothing is trained on: {reasons}")
        job = derive_id("job", cycle.cycle, *([] if branch is None else [branch]))
        successes = None
        with self._app.reading() as connection:
            user = find_user(connection, settings, cycle.alias, cycle.base)
        if settings.training.warm_start != "off":
            with self._app.reading() as connection:
                task_pools, successes = offer_successes(
                    self._app, connection, environment, cycle.alias, cycle.base, task_pools,
                    settings.training.references,
                )  # fmt: skip
        spec = build_job_spec(
            settings.training, agent, job=job, base=cycle.base, pools=task_pools,
            benchmarks=settings.benchmarks, environments=settings.environments.paths,
            parent=None if start.row is None else Path(start.row.path),
            parameters=parameters, successes=successes,
            rounds=None
            if user is not None
            else self._plan_rounds(environment, cycle, task_pools, branch),
            user=user,
        )  # fmt: skip
        allowed = filter_by_pools(environment, spec.pools, list_exemptions(settings, environment))
        spec = spec.model_copy(update={"allowed_winnable": allowed})
        request = JobRequested(
            job=job,
            cycle=cycle.cycle,
            alias=cycle.alias,
            base=cycle.base,
            capability=name_capability(
                task_pools, lambda name: environment.task(name).capability or ""
            ),
            spec=spec,
            minutes=settings.jobs.minutes,
            parent=start.parent,
        )
        return request.for_branch(branch)

    def _find_exclusions(self, environment: "Environment") -> dict[str, str]:
        """Return kind -> why no job trains on it. If kinds are not yet measured, cheating agents
        play their tasks first (seconds to minutes)."""
        measure_cheats(self._app.settings, environment)
        return find_exclusions(self._app.settings, environment)

    def _plan_rounds(
        self, environment: "Environment", cycle: CycleRow, task_pools: Sequence[TaskPool],
        branch: str | None,
    ) -> JobRounds | None:  # fmt: skip
        """Return the job's rounds, with the known patterns and tasks; None if it has a single
        round. A branch's rounds write tasks only for its own patterns. Raise NotTrainable."""
        assert cycle.round is not None, "a cycle is diagnosed first"
        settings = self._app.settings
        plain = any(pool.is_plain for pool in task_pools if not pool.replay)
        if settings.training.rounds == 1 or not plain:
            # Rounds diagnose only pools with plain tasks.
            return None
        with self._app.reading() as connection:
            patterns = planning.read_known_patterns(connection, cycle.alias, cycle.base)
            written = dict(learning.patterns_of(connection, cycle.alias))
            if not settings.jobs.hands_keys:
                for task in learning.read_sealed_tasks(connection, cycle.alias):
                    written.pop(task, None)
        drawn = {task for pool in task_pools for task in pool.all_tasks}
        others = [task for task in written if task not in drawn]
        return plan_rounds(
            settings.training, settings.proposer, cycle=cycle.cycle, alias=cycle.alias,
            history=cycle.round, patterns=patterns, known=sources.filter_known(environment, others),
            aims=()
            if branch is None
            else [pool.name for pool in task_pools if pool.is_plain and not pool.replay],
        )  # fmt: skip


def _leave_out(
    followed: Mapping[str, Sequence[Source]], excluded: Mapping[str, str]
) -> dict[str, list[Source]]:
    """Return pattern -> its failed tasks, without the kinds that nothing is trained on."""
    return {
        pattern: [source for source in own if source.task.capability not in excluded]
        for pattern, own in followed.items()
    }
