"""`kintsugi cycle`: the cycles of an agent, and an operator's decisions about them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import AtMost, Cli, OnlyAgent, command, noun
from daemon.cli.output import Columns, facts, table
from daemon.cli.serving import ActorName, WhyNot, act_of

if TYPE_CHECKING:
    from consumers.reads.learning import CycleRow, JobRoundRow, RejectionRow
    from daemon.cycle.cost import CycleCost
    from daemon.cycle.outlook import Outlook

group = noun("cycle", "From failures to a better adapter, round by round.")

OfAgent = Annotated[str, typer.Argument(metavar="ALIAS", help="The agent's public name.")]

_SHORT = 13
"""Characters of an id that a list shows; `cycle show` needs no more."""


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None, limit: AtMost = None) -> None:
    """List cycles, the newest first."""
    from consumers.reads import learning
    from daemon.cycle.cost import read_cost
    from daemon.cycle.views import read_step

    with cli.app() as app, app.reading() as connection:
        rows = learning.cycles(connection, alias, limit)
        lines = [
            line(
                row,
                read_step(connection, app.settings, row),
                read_cost(connection, app.settings, row),
            )
            for row in rows
        ]
    cli.out.show_rows(
        lines,
        _COLUMNS,
        nothing="no cycle has begun yet; kintsugi status says what the next one waits for",
        describe=dict,
    )


def line(row: "CycleRow", step: str | None, cost: "CycleCost | None") -> dict[str, Any]:
    """Return a cycle as one entry of the JSON that `cycle ls` prints."""
    return {**_FIELDS.document(row), "step": step, "cost": _cost(cost)}


def _cost(cost: "CycleCost | None") -> dict[str, Any] | None:
    if cost is None:
        return None
    return {**asdict(cost), "rollouts": {**asdict(cost.rollouts), "total": cost.rollouts.total}}


_FIELDS: Final = Columns(
    "cycle", "alias", "base", "number", "environment", "trigger", "reason", "round", "accepted",
    "rejected", "job", "outcome", "ended_because", "started", "ended",
)  # fmt: skip

_COLUMNS: Final = Columns(
    ("cycle", lambda cycle: cycle["cycle"][:_SHORT]),
    "number",
    "alias",
    "base",
    ("by", "trigger"),
    ("came to", lambda cycle: cycle["outcome"] or cycle["step"]),
    ("tasks", "accepted"),
    "rejected",
    ("began", "started"),
    ("hours", "cost.hours:.2f"),
    ("hours/point", "cost.hours_per_point.target:.3f"),
    ("why", lambda cycle: cycle["ended_because"] or cycle["reason"]),
    right=("number", "tasks", "rejected", "hours", "hours/point"),
    whole=("cycle", "came to"),
)


@command(group)
def show(
    cli: Cli,
    cycle: Annotated[
        str, typer.Argument(metavar="ID", help="Its id, how that begins, or its number.")
    ],
) -> None:
    """Show one cycle: why it began, its directive, what was written in vain, what came of it and
    what it cost.

    `kintsugi explain ID` goes back to the rollouts, `kintsugi cycle account ID` says where its gain
    went.
    """
    from consumers.reads import learning
    from consumers.reads.cycle_state import read_cycle_state
    from daemon.cli.cycle_account import describe_limit
    from daemon.cli.methods import read_cycle_sections
    from daemon.cycle.account.account import build_document
    from daemon.cycle.account.read import read_account
    from daemon.cycle.cost import read_cost
    from daemon.cycle.methods import describe_branches
    from daemon.cycle.views import read_step

    with cli.app() as app, app.reading() as connection:
        row = learning.find_cycle(connection, cycle)
        step = read_step(connection, app.settings, row)
        rejected = learning.rejections_of(connection, row.cycle)
        jobs = learning.list_cycle_jobs(connection, row.cycle)
        rounds = [item for job in jobs for item in learning.job_rounds(connection, job.job)]
        branches = describe_branches(connection, app.settings, read_cycle_state(connection, row))
        cost = read_cost(connection, app.settings, row)
        account = read_account(connection, row)
        sections = read_cycle_sections(connection, row)
    if cli.out.json:
        document = _document(row, step, rejected)
        job_rounds = [_describe_round(item) for item in rounds]
        accounted = None if account is None else build_document(account)
        cli.out.document(
            {
                **document,
                "jobs": branches,
                "job_rounds": job_rounds,
                **{name: section.document for name, section in sections.items()},
                "cost": _cost(cost),
                "account": accounted,
            }
        )
        return
    more = {name: section.text for name, section in sections.items() if section.text}
    if account is not None:
        more["limited by"] = describe_limit(account)
    cli.out.show(_about(row, step, cost, more))
    _show_parts(cli, row, branches, rounds, rejected)


def _show_parts(
    cli: Cli,
    row: "CycleRow",
    branches: list[dict[str, str | None]],
    rounds: "list[JobRoundRow]",
    rejected: "list[RejectionRow]",
) -> None:
    from daemon.controller.directive import describe_directive, describe_mode

    if branches:
        cli.out.show("", _build_job_table(branches))
    if row.directive is not None and row.directive.quotas:
        quotas = [[item.pattern, item.tasks, f"{item.priority:.3g}", item.status]
                  for item in row.directive.quotas]  # fmt: skip
        columns = ["pattern", "tasks", "priority", "status"]
        cli.out.show("", table(columns, quotas, right=("tasks", "priority"), whole=("pattern",)))
        cli.out.show("", describe_directive(row.directive))
    for item in rounds:
        cli.out.show("", *_show_round(item))
    if rejected:
        refused = [
            [item.pattern, describe_mode(item.mode, item.plan, item.plan_revision), item.check,
             item.reason]
            for item in rejected
        ]  # fmt: skip
        cli.out.show("", table(["rejected for", "mode", "check", "why"], refused))


def _build_job_table(branches: list[dict[str, str | None]]) -> Any:
    from events.jobs import CHOOSER
    from events.learning import BRANCH

    cells = [
        [job[BRANCH] or CHOOSER, (job["job"] or "")[:_SHORT],
         job["outcome"] or ("open" if job["job"] else "none"), job["adapter"], job["state"],
         job["reason"]]
        for job in branches
    ]  # fmt: skip
    columns = [BRANCH, "job", "came to", "adapter", "state", "why"]
    return table(columns, cells, whole=(BRANCH, "job", "came to"))


def _document(row: "CycleRow", step: str | None, rejected: "list[RejectionRow]") -> dict[str, Any]:
    from consumers.reads.learning import list_fields

    directive = None if row.directive is None else row.directive.model_dump(mode="json")
    findings = [item.model_dump(mode="json") for item in row.findings]
    return {
        **list_fields(row),
        "directive": directive,
        "findings": findings,
        "step": step,
        "rejections": [asdict(item) for item in rejected],
    }


def _describe_round(row: "JobRoundRow") -> dict[str, Any]:
    directive = row.directive.model_dump(mode="json")
    pools = [pool.model_dump(mode="json") for pool in row.pools]
    return {**asdict(row), "directive": directive, "pools": pools}


def _show_round(row: "JobRoundRow") -> list[Any]:
    quotas = ", ".join(f"{item.pattern} {item.tasks}" for item in row.directive.quotas)
    text = (
        f"round {row.number} of the job: {row.failures} failures in {row.rollouts} rollouts; "
        f"tasks: {len(row.tasks)} written, {row.rejected} rejected; quotas: {quotas or 'none'}"
    )
    pools = [
        [pool.pool, f"{pool.before:.1%}", f"{pool.share:.1%}", pool.tasks,
         f"{pool.passes} of {pool.attempts}"]
        for pool in row.pools
    ]  # fmt: skip
    columns = ["pool", "share before", "share", "tasks", "passed of their last 16"]
    return [text, table(columns, pools, right=columns[1:], whole=("pool",))]


def _about(
    row: "CycleRow", step: str | None, cost: "CycleCost | None", more: dict[str, str]
) -> Any:
    from events.learning import VERSION

    return facts(
        {
            "cycle": f"{row.cycle}, number {row.number} of {row.alias} on {row.base}",
            "began": f"{row.started} by {row.trigger}: {row.reason}",
            "round": "none yet" if row.round is None else row.round,
            "said": row.summary or "",
            "analyzer": "; ".join(filter(None, [row.analyzer or "none", row.trouble])),
            "tasks": f"{row.accepted:,} written, {row.rejected:,} rejected",
            "job": row.job or "none",
            **({} if row.version is None else {VERSION: row.version}),
            "came to": f"needs {step} next"
            if row.outcome is None
            else f"{row.outcome}, {row.ended}: {row.ended_because}",
            **({} if cost is None else _describe_cost(cost)),
            **more,
        }
    )


def _describe_cost(cost: "CycleCost") -> dict[str, str]:
    minutes = ", ".join(
        f"{stage} {spent:.1f}" for stage, spent in cost.minutes.items() if spent is not None
    )
    counts = cost.rollouts
    gains = [f"{points:+.1f} {where}" for where, points in cost.gain.items() if points is not None]
    prices = [
        f"{price:.3f} {where}" for where, price in cost.hours_per_point.items() if price is not None
    ]
    values = {
        "minutes": f"{cost.total_minutes:.1f}: {minutes}",
        "rollouts": f"{counts.total:,}: probes {counts.probe:,}, training {counts.training:,}, "
        f"evaluation {counts.evaluation:,}",
        "points gained": ", ".join(gains) or "not measured",
        "hours per point": ", ".join(prices) or f"none; {cost.without_gain}",
    }
    if cost.job_hours is not None:
        gpus = "" if cost.gpu_hours is None else f", {cost.gpu_hours:.2f} GPU-hours"
        values["job hours"] = f"{cost.job_hours:.2f}{gpus}"
    return values


@command(group)
def start(cli: Cli, alias: OfAgent, actor: ActorName = None, reason: WhyNot = "") -> None:
    """Have a cycle begin at the leader's next look, cool-down or not."""
    from consumers.reads.scheduling import CYCLE_START
    from daemon.core.decision_log import Decisions
    from daemon.cycle.outlook import read_outlook
    from events.envelope import utc_now

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            _check_trainable(alias, read_outlook(connection, app.settings, alias, utc_now()))
        acted = Decisions(app).act(act_of(actor, reason), CYCLE_START, {"alias": alias})
        with app.reading() as connection:
            next_cycle = read_outlook(connection, app.settings, alias, utc_now())
    assert next_cycle is not None, "it was there a moment ago"
    when = f"later: {'; '.join(next_cycle.missing)}"
    if next_cycle.due:
        when = "at the leader's next look (kintsugi schedule)"
    cli.out.report({"acted": acted, **asdict(next_cycle)}, f"a cycle of {alias} begins {when}")


def _check_trainable(alias: str, outlook: "Outlook | None") -> None:
    from consumers.reads.learning import UnknownId
    from daemon.config.settings import ConfigurationError

    if outlook is None:
        raise UnknownId(
            f"nothing of {alias!r} was recorded, so there is nothing to learn from; see kintsugi "
            "status for the agents that are known"
        )
    if outlook.environment is None:
        raise ConfigurationError(f"no cycle of {alias} can begin: {outlook.missing[0]}")


@command(group)
def cancel(cli: Cli, alias: OfAgent, actor: ActorName = None, reason: WhyNot = "") -> None:
    """Call off the open cycle of an agent; its job is stopped."""
    from consumers.reads import learning
    from consumers.reads.cycle_state import CYCLE_CANCEL
    from daemon.core.decision_log import Decisions
    from daemon.cycle.outlook import TooLate
    from daemon.cycle.state_machine import Step
    from daemon.cycle.views import read_step

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            row = learning.open_cycle(connection, alias)
            step = None if row is None else read_step(connection, app.settings, row)
        if row is None:
            raise learning.UnknownId(f"{alias} has no open cycle; see kintsugi cycle ls")
        if step == Step.WATCH:
            raise TooLate(
                f"the adapter of {row.cycle} answers sessions already; take it back with kintsugi "
                f"adapters rollback {alias}"
            )
        acted = Decisions(app).act(act_of(actor, reason), CYCLE_CANCEL, {"cycle": row.cycle})
    text = f"cycle {row.number} of {alias} is called off; it ends when the leader looks"
    cli.out.report({"acted": acted, "cycle": row.cycle, "alias": alias}, text)
