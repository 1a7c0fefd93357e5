"""Connect cycles and the status with the methods. Leader, planner, worker, views and status
document use the packages in daemon/methods only through this module.

Each function imports the package that it calls, so a role loads only the methods that it uses.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from consumers.diagnosis.round_counts import Pair
from daemon.cycle.proposal import FreeRequest, Study

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Connection

    from consumers.reads.cycle_state import CycleState
    from consumers.reads.learning import BufferTask, CycleRow, RejectionRow
    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Agent, Settings
    from daemon.core.app import App
    from daemon.cycle.branches import BranchChoice
    from daemon.cycle.estimate import JobBudget
    from daemon.jobs.runner import JobRunner
    from daemon.methods.lessons.after_error import HeldOutLessons
    from daemon.methods.skills.panel_parts import Composer, RouterTeacher
    from daemon.methods.skills.retraining import Retraining
    from daemon.methods.synthesis.quotas import FilledQuotas, MakeParts
    from daemon.methods.synthesis.review import Review
    from daemon.methods.synthesis.users.worker import UserWorker
    from daemon.proposer.buffer import PoolEntry
    from daemon.proposer.proposer import ProposalRequest
    from daemon.proposer.task_writer import TaskWriter
    from daemon.serving.fleet import Fleet
    from envs.environment import Environment
    from envs.task import TaskDefinition
    from events.jobs import JobSpec, ModelUser, TaskPool
    from events.learning import JobRequested

    ChooserTeacher = RouterTeacher
    PartsMaker = MakeParts
    Renewal = Retraining
    VersionComposer = Composer


class CycleMethods:
    """The methods as one planner uses them. It remembers failed studies and spent budgets."""

    def __init__(
        self,
        app: "App",
        stopping: Callable[[], bool],
        *,
        asks_models: bool,
        teach_chooser: "ChooserTeacher | None",
        make_parts: "PartsMaker | None",
    ) -> None:
        """`asks_models` tells whether the review of written tasks may ask a model. The other
        arguments are as in `CyclePlanner`."""
        from daemon.methods.skills.discovery import SkillStudy
        from daemon.methods.synthesis.quotas import CycleParts, choose_parts
        from daemon.methods.synthesis.review import CycleReviews

        self._app = app
        self._teach_chooser = teach_chooser
        self._study = SkillStudy(app, stopping)
        self._parts = CycleParts(make_parts or partial(choose_parts, stopping=stopping))
        self._reviews = CycleReviews(app, asks_models=asks_models)

    def study_round(self, cycle: "CycleRow") -> Study | None:
        """Return the comparison of failed and passed rollouts before a cycle's directive; None if
        none is due. Raise Skip."""
        return self._study.compare(cycle)

    def choose_branches(self, connection: "Connection", pair: Pair) -> "BranchChoice":
        """Return the branches of an agent's next cycle; an empty choice means a single job."""
        from daemon.methods.skills.choice import read_skill_histories

        return read_skill_histories(connection, self._app.settings, pair)

    def choose_planned(
        self,
        patterns: Sequence[str],
        written: "Sequence[BufferTask]",
        rejected: "Sequence[RejectionRow]",
    ) -> dict[str, str]:
        """Return pattern -> why its tasks are planned first, judged by the last cycle's tasks."""
        from daemon.methods.synthesis.choice import choose_patterns, count_tries

        setting = self._app.settings.improve.synthesis
        return choose_patterns(setting, patterns, count_tries(written, rejected))

    def find_branch_parent(
        self,
        connection: "Connection",
        cycle: "CycleRow",
        branch: str,
        incumbent: "AdapterRow | None",
    ) -> "tuple[AdapterRow | None, str | None]":
        """Return the adapter that a branch trains on from (None: the base). Return also the reason
        if that adapter is no current member, else None."""
        from daemon.methods.skills.choice import find_member_parent

        return find_member_parent(connection, cycle, branch, incumbent)

    def read_retraining(self, connection: "Connection", cycle: "CycleRow") -> "Renewal":
        """Return the branches of earlier bases that this cycle trains again."""
        from daemon.methods.skills.retraining import read_retraining

        pair = Pair(cycle.alias, cycle.base)
        return read_retraining(connection, self._app.settings, pair, cycle.cycle)

    def draw_retraining(
        self,
        cycle: "CycleRow",
        environment: "Environment",
        retraining: "Renewal",
        budget: "JobBudget",
        sampler: "Callable[[TaskDefinition], int] | None",
    ) -> "tuple[dict[str, tuple[TaskPool, ...]], dict[str, str]]":
        """Return branch -> pools to train it again, and branch -> why not. Raise CannotSample."""
        from daemon.methods.skills.retraining import choose_members

        pair = Pair(cycle.alias, cycle.base)
        return choose_members(self._app, pair, environment, retraining.waiting, budget, sampler)

    def request_chooser(self, cycle: "CycleRow", agent: "Agent") -> "JobRequested":
        """Return the job that trains the version's chooser. Raise RetryLater, NotTrainable."""
        from daemon.methods.skills.panel_parts import request_router

        return request_router(self._app, cycle, agent, self._teach_chooser)

    def review_tasks(self, environment: "Environment", cycle: "CycleRow") -> "Review":
        """Return the review of written tasks whose rollouts mostly fail."""
        return self._reviews.review(environment, cycle)

    def fill_quotas(
        self,
        environment: "Environment",
        cycle: "CycleRow",
        wanted: "ProposalRequest",
        bodies: MutableMapping[str, str],
    ) -> "FilledQuotas":
        """Write the tasks that come before all others in the quotas. Raise CannotSample."""
        from daemon.methods.synthesis.quotas import fill_quotas

        make = self._parts.bind(cycle)
        return fill_quotas(self._app, environment, cycle, wanted, bodies, make)

    def open_writers(
        self, environment: "Environment", cycle: "CycleRow"
    ) -> "tuple[TaskWriter, ...]":
        """Return the methods' writers for the directive's modes. Raise EnvironmentBroken."""
        from daemon.methods.lessons.task_writer import open_writer

        directive = cycle.directive
        assert directive is not None, "a cycle is directed first"
        modes = [choice.mode for quota in directive.quotas for choice in quota.modes]
        if not self._practises or "repair" not in modes:
            return ()
        sealed = self._app.settings.jobs.hands_keys
        return (
            open_writer(self._app, environment, cycle.alias, cycle.cycle, directive, sealed=sealed),
        )

    def read_pool_entries(self, connection: "Connection", cycle: "CycleRow") -> "list[PoolEntry]":
        """Return the agent's written tasks, without those that no job may draw."""
        from daemon.methods.lessons.task_writer import read_own_pools
        from daemon.proposer.sources import read_pool_entries

        return read_pool_entries(
            connection,
            cycle.alias,
            cycle.base,
            repairs=read_own_pools(connection, cycle.alias) if self._practises else None,
            sealed=self._app.settings.jobs.hands_keys,
        )

    @property
    def _practises(self) -> bool:
        return self._app.settings.improve.lessons != "off"


def find_user(
    connection: "Connection", settings: "Settings", alias: str, base: str
) -> "ModelUser | None":
    """Return the model that plays an agent's users; None for the environment's own user."""
    from daemon.methods.synthesis.users import players

    return players.find_user(connection, settings, alias, base)


def open_user_trials(settings: "Settings") -> "JobRunner":
    """Return the runner of the jobs that test adapters which play users."""
    from daemon.methods.synthesis.users.worker import user_trials_of

    return user_trials_of(settings)


def build_user_worker(
    app: "App", fleet: "Fleet", runner: "JobRunner", clock: Callable[[], datetime]
) -> "UserWorker":
    """Return the worker that stages adapters that play users and runs their gates."""
    from daemon.methods.synthesis.users.worker import UserWorker

    return UserWorker(app, fleet, runner, clock)


def find_free_request(app: "App", pair: Pair, now: datetime) -> FreeRequest | None:
    """Return a job that is due beside cycles and within the day's budget, or None. Raise Skip."""
    from daemon.methods.synthesis.users.spec import find_due_request

    return find_due_request(app, pair, now)


def list_late_versions(connection: "Connection", alias: str) -> "list[tuple[AdapterRow, CycleRow]]":
    """Return the versions that were composed after their cycle's end, each with its cycle."""
    from consumers.methods.skills.panel_reads import list_late_panels

    return list_late_panels(connection, alias)


def find_chooser_obstacle(connection: "Connection", state: "CycleState") -> str | None:
    """Return why no job can train a chooser among the version's members; None if one can."""
    from daemon.methods.skills.panel_parts import find_router_obstacle

    return find_router_obstacle(connection, state)


def compose_version(
    app: "App", state: "CycleState", compose: "VersionComposer | None"
) -> Iterator[str]:
    """Compose a cycle's version and yield sentences. Raise VersionRefusal, KintsugiError."""
    from daemon.methods.skills import panel_parts

    return panel_parts.compose_version(app, state, compose)


def bind_composer(fleet: "Fleet") -> "VersionComposer":
    """Return a function that composes versions and stages them on the replicas of `fleet`."""
    from daemon.methods.skills.panel_makers import compose_panel

    return partial(compose_panel, fleet=fleet)


def bind_teacher(urls: Sequence[str]) -> "ChooserTeacher":
    """Return a maker of choosers' jobs. `urls` of replicas replace those in the settings."""
    from daemon.methods.skills.panel_makers import teach_router

    return partial(teach_router, urls=urls)


def bind_rule_parts() -> "PartsMaker":
    """Return a function that builds the data engine by rules alone, without models."""
    from daemon.methods.synthesis.quotas import make_rule_parts

    return make_rule_parts


def hold_out_slice() -> "HeldOutLessons":
    """Return the source of held-out lessons, a slice of the gate beside the traffic's tasks."""
    from daemon.methods.lessons.after_error import HeldOutLessons

    return HeldOutLessons()


def read_documents(app: "App", connection: "Connection", now: datetime) -> dict[str, Any]:
    """Return what the status shows of the methods: their practice for each agent, the models that
    play users, the answering versions with members, and the trained skills."""
    from daemon.methods.lessons.practice import read_practices
    from daemon.methods.skills.practice import (
        read_panel_states,
        read_skill_practices,
        read_taught_skills,
    )
    from daemon.methods.synthesis.practice import read_synthesis_practices
    from daemon.methods.synthesis.users.practice import read_user_documents

    practices: dict[str, Sequence[DataclassInstance]] = {
        "lessons": read_practices(connection, app.settings),
        "skills": read_skill_practices(connection, app.settings),
        "synthesis": read_synthesis_practices(connection, app.settings),
    }
    return {
        "improve": {name: [asdict(item) for item in items] for name, items in practices.items()},
        "skills": read_taught_skills(app, connection),
        "users": read_user_documents(app, connection),
        "panels": [asdict(panel) for panel in read_panel_states(connection, now)],
    }


def describe_branches(
    connection: "Connection", settings: "Settings", state: "CycleState"
) -> list[dict[str, str | None]]:
    """Return the jobs of a cycle with branches, and their results."""
    from daemon.methods.skills.choice import describe_jobs

    return describe_jobs(connection, settings, state)


def describe_job(spec: "JobSpec") -> dict[str, Any]:
    """Return the fields that methods add to the description of a job."""
    return {"lessons": sum(pool.repair_count for pool in spec.pools)}


def list_member_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> a line about the members of each answering version."""
    from daemon.methods.skills import practice

    return practice.list_member_lines(document)


def list_branch_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> a line about each skill that is trained."""
    from daemon.methods.skills import practice

    return practice.list_skill_lines(document)
