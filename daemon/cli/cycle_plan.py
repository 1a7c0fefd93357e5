"""`kintsugi cycle plan`: a preview of an agent's next cycle."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import facts, table
from daemon.cli.serving import EngineUrls

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.cycle.plan import CyclePlan
    from daemon.proposer.probe import Engine
    from events.learning import JobRequested, TaskProposed, TaskRejected

_SHORT: Final = 48
"""Most characters of a task's id that a terminal shows."""

_PATTERN_FIELDS: Final = (
    "pattern", "priority", "status", "failures", "attempts", "pass_rate", "operator",
)  # fmt: skip


def register(group: typer.Typer) -> None:
    """Register the command with the group `kintsugi cycle`."""
    command(group)(plan)


def plan(
    cli: Cli,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The agent's public name.")],
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Have the policy that answers play no task.")
    ] = False,
    upstream: EngineUrls = None,
) -> None:
    """Show what the next cycle would read, write, train and take; nothing is trained or recorded.

    The tasks are written and checked as in a cycle. What a cycle reads later may differ.
    """
    from daemon.cycle.plan import plan_cycle

    with cli.app() as app:
        engines = [] if no_probe else _list_engines(app.settings, upstream)
        planned = plan_cycle(app, alias, engines)
        why = _explain_unprobed(app.settings, no_probe)
        model = app.settings.models.proposer
    plans = [
        *(data.plan for data in planned.accepted),
        *(data.plan for data in planned.rejected),
    ]
    if model.url and any(plans):
        cli.out.hint(
            f"the proposer {model.model} was not asked: tasks by plans are those that rules and "
            "templates would write, and the cycle's own will differ"
        )
    if cli.out.json:
        cli.out.document({**build_document(planned), "not_probed": None if planned.probed else why})
        return
    _show(cli, planned)
    if not planned.probed:
        cli.out.hint(f"the policy that answers was not asked about the tasks: {why}")


def _list_engines(settings: "Settings", urls: list[str] | None) -> "list[Engine]":
    from daemon.config.upstreams import key_of
    from daemon.proposer.probe import Engine

    named = urls or [upstream.url for upstream in settings.upstreams]
    return [Engine(url.rstrip("/"), key_of(settings, url.rstrip("/"))) for url in named]


def _explain_unprobed(settings: "Settings", no_probe: bool) -> str:
    if no_probe:
        return "--no-probe"
    if not settings.proposer.probe:
        return "the setting proposer.probe is off"
    return (
        "no engine is named, neither by --upstream nor in the setting upstreams (kintsugi up has "
        f"its own at http://127.0.0.1:{settings.engine.port}/v1)"
    )


def build_document(planned: "CyclePlan") -> dict[str, Any]:
    """Return the plan as a JSON document."""
    outlook, unread = planned.outlook, planned.unread
    return {
        "alias": outlook.alias,
        "base": outlook.base,
        "environment": outlook.environment,
        "cycle": planned.cycle,
        "number": planned.number,
        "due": outlook.due,
        "missing": outlook.missing,
        "open": None if outlook.cycle is None else {"cycle": outlook.cycle, "step": outlook.step},
        "reads": {
            "rollouts": unread.rollouts, "judged": unread.judged, "failures": unread.failed,
            "unusable": [asdict(line) for line in planned.outlook.unusable],
        },
        "round": planned.round,
        "patterns": [
            {name: getattr(line, name) for name in _PATTERN_FIELDS} for line in planned.patterns
        ],
        "directive": planned.directive.directive.model_dump(mode="json"),
        "trouble": planned.directive.trouble,
        "probed": planned.probed,
        "tasks": [
            {
                "task": data.task.id,
                "pattern": data.pattern,
                "mode": data.mode,
                "plan": None if data.plan is None else data.plan.model_dump(),
                "source_rollout": data.source_rollout,
                "checks": {check.check: check.note for check in data.verified},
            }
            for data in planned.accepted
        ],
        "rejected": [
            {
                "pattern": data.pattern,
                "mode": data.mode,
                "check": data.check,
                "reason": data.reason,
                "plan": None if data.plan is None else data.plan.model_dump(),
                "source_rollout": data.source_rollout,
            }
            for data in planned.rejected
        ],
        "job": None if planned.job is None else _build_job(planned, planned.job),
        "jobs": [_build_job(planned, job) for job in planned.jobs],
        "untaught": dict(planned.untaught),
        "retrained": dict(planned.retrained),
        "lacking": planned.lacking,
        "estimate": asdict(planned.estimate),
        "seconds": planned.seconds,
    }  # fmt: skip


def _build_job(planned: "CyclePlan", job: "JobRequested") -> dict[str, Any]:
    from daemon.cli.methods import describe_pool
    from events.learning import BRANCH

    spec = job.spec
    algorithm = spec.algorithm.model_dump(mode="json")
    return {
        "job": job.job,
        BRANCH: job.branch,
        "capability": job.capability,
        "parent": spec.parent,
        "rollouts": spec.sampler.rollouts,
        "minutes": job.minutes,
        "device": spec.device,
        "preset": planned.preset,
        "algorithm": algorithm,
        "pools": [
            {
                "pool": pool.name,
                "share": pool.share,
                "tasks": len(pool.tasks),
                "references": len(pool.references),
                "replay": pool.replay,
                "environment": pool.environment or spec.environment,
                "user": None if pool.user is None else pool.user.simulator,
                "reward": pool.reward,
                **describe_pool(pool),
            }
            for pool in spec.pools
        ],
    }


def _show(cli: Cli, planned: "CyclePlan") -> None:
    from daemon.controller.directive import describe_modes

    cli.out.show(_summarize(planned))
    if planned.patterns:
        quotas = {quota.pattern: quota.tasks for quota in planned.directive.directive.quotas}
        chosen = {
            quota.pattern: describe_modes(quota) for quota in planned.directive.directive.quotas
        }
        rows = [
            [line.pattern, f"{line.priority:.3g}", line.operator or line.status, line.failures,
             quotas.get(line.pattern, 0), chosen.get(line.pattern)]
            for line in planned.patterns
        ]  # fmt: skip
        columns = ["pattern", "priority", "status", "failures", "tasks", "of them"]
        right = ("priority", "failures", "tasks")
        cli.out.show("", table(columns, rows, right=right, whole=("pattern",)))
    if planned.accepted:
        rows = [
            [data.task.id[:_SHORT], data.pattern, _describe_mode(data), _find_pass_rate(data)]
            for data in planned.accepted
        ]
        cli.out.show("", table(["would write", "for", "mode", "passed now"], rows))
    if planned.rejected:
        rows = [
            [data.pattern, _describe_mode(data), data.check, data.reason]
            for data in planned.rejected
        ]
        cli.out.show("", table(["would reject for", "mode", "check", "why"], rows))
    for job in planned.jobs:
        rows = [
            [pool.name, f"{pool.share:.1%}", len(pool.tasks), "yes" if pool.replay else "",
             pool.reward]
            for pool in job.spec.pools
        ]  # fmt: skip
        whose = "the job" if job.branch is None else f"the job for {job.branch}"
        columns = [f"pool of {whose}", "share", "tasks", "replay", "reward"]
        cli.out.show("", table(columns, rows, right=("share", "tasks"), whole=(columns[0],)))


def _describe_mode(data: "TaskProposed | TaskRejected") -> str | None:
    from daemon.controller.directive import describe_mode

    plan = data.plan
    if plan is None:
        return data.mode
    return describe_mode(data.mode, plan.plan, plan.revision)


def _find_pass_rate(data: "TaskProposed") -> str | None:
    notes = {check.check: check.note for check in data.verified}
    return notes.get("informative")


def _summarize(planned: "CyclePlan") -> Any:
    from daemon.cli.methods import count_modes

    outlook, unread = planned.outlook, planned.unread
    values = {
        "cycle": f"{planned.number} of {outlook.alias} on {outlook.base}",
        "due": "now" if outlook.due else f"not yet; {'; '.join(outlook.missing)}",
    }
    if outlook.cycle is not None:
        values["open"] = (
            f"{outlook.cycle} needs {outlook.step} next; this is the plan of the one after it, as "
            "if it began now"
        )
    values["would read"] = (
        f"{unread.rollouts:,} rollouts, {unread.judged:,} of them judged, {unread.failed:,} "
        "different failures"
    )
    counts = [
        f"{count:,} of them {name}"
        for name, count in count_modes(planned.accepted).items()
        if count
    ]
    of_them = f" ({', '.join(counts)})" if counts else ""
    values["tasks"] = (
        f"{len(planned.accepted):,} would be written{of_them}, {len(planned.rejected):,} rejected"
    )
    if not planned.jobs:
        values["job"] = f"none; {planned.lacking}"
    for job in planned.jobs:
        parent = "the base" if job.spec.parent is None else job.spec.parent
        preset = "" if planned.preset is None else f", by the preset {planned.preset}"
        values["job" if job.branch is None else f"job for {job.branch}"] = (
            f"{job.spec.sampler.rollouts:,} rollouts at most, for {job.capability or 'any kind'}, "
            f"on from {parent}{preset}"
        )
    for branch, reason in planned.retrained.items():
        values[f"why {branch}"] = reason
    for branch, reason in planned.untaught.items():
        values[f"no job for {branch}"] = reason
    return facts({**values, **_describe_estimate(planned)})


def _describe_estimate(planned: "CyclePlan") -> dict[str, str]:
    estimate = planned.estimate
    parts = {
        "writing": estimate.writing_minutes,
        "training": estimate.training_minutes,
        "evaluation": estimate.evaluation_minutes,
    }
    minutes = ", ".join(
        f"{name} {'unknown' if value is None else f'{value:.1f}'}" for name, value in parts.items()
    )
    of = {"agent": "of this agent", "home": "of other agents", None: ""}[estimate.basis]
    rests = f" ({estimate.cycles} cycles {of}, {estimate.jobs} jobs)" if estimate.cycles else ""
    total = estimate.rollouts.total
    counts = {
        "probes": estimate.rollouts.probe,
        "training": estimate.rollouts.training,
        "evaluation": estimate.rollouts.evaluation,
    }
    played = ", ".join(
        f"{name} {'unknown' if value is None else f'{value:,}'}" for name, value in counts.items()
    )
    values = {
        "minutes": f"{minutes}{rests}",
        "rollouts": played if total is None else f"{total:,}: {played}",
    }
    if estimate.gpu_hours is not None:
        values["GPU-hours"] = f"{estimate.gpu_hours:.2f}"
    if estimate.unknown:
        values["unknown"] = "; ".join(estimate.unknown)
    return values
