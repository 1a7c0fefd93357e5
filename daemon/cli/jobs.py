"""`kintsugi jobs`: training jobs, requested and finished ones."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import AtMost, Cli, OnlyAgent, command, noun
from daemon.cli.output import facts, table
from daemon.cli.serving import ActorName, WhyNot, act_of, locate_files

if TYPE_CHECKING:
    from consumers.reads.learning import JobRow
    from events.jobs import TaskPool

group = noun("jobs", "Training runs.")

Named = Annotated[str, typer.Argument(metavar="ID", help="Its id, or how that begins.")]

_SHORT = 13
"""Characters of an id that a list shows; `jobs show` needs no more."""


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None, limit: AtMost = None) -> None:
    """List jobs, the newest first."""
    from consumers.reads import learning
    from consumers.reads.cycle_state import find_job_cancellations

    with cli.app() as app, app.reading() as connection:
        rows = learning.jobs(connection, alias, limit)
        called_off = find_job_cancellations(connection)
    if cli.out.json:
        cli.out.document([_line(cli, row, called_off) for row in rows])
    elif rows:
        cli.out.show(_build_table(rows, called_off))
    if not rows:
        cli.out.hint("no job was requested yet; a cycle requests one (kintsugi cycle ls)")


def _line(cli: Cli, row: "JobRow", called_off: dict[str, str]) -> dict[str, Any]:
    from consumers.reads.learning import list_fields

    return {
        **{name: value for name, value in list_fields(row).items() if name != "spec"},
        "adapter": locate_files(cli, row.adapter),
        "called_off": called_off.get(row.job),
    }


def _build_table(rows: "list[JobRow]", called_off: dict[str, str]) -> Any:
    cells = [
        [
            row.job[:_SHORT],
            row.alias,
            row.base,
            row.branch or row.teaches or row.capability,
            row.outcome or ("called off" if row.job in called_off else "open"),
            row.steps,
            row.rollouts,
            None if row.seconds is None else f"{row.seconds / 60:.1f}",
            row.requested,
            row.reason or called_off.get(row.job),
        ]
        for row in rows
    ]
    numbers = ["steps", "rollouts", "minutes"]
    columns = ["job", "alias", "base", "for", "came to", *numbers, "requested", "why"]
    return table(columns, cells, right=numbers, whole=("job", "came to"))


@command(group)
def show(cli: Cli, job: Named) -> None:
    """Show one job, with the spec that every attempt reads."""
    from consumers.reads import learning
    from consumers.reads.cycle_state import find_job_cancellations

    with cli.app() as app, app.reading() as connection:
        row = learning.find_job(connection, job)
        called_off = find_job_cancellations(connection)
    if cli.out.json:
        spec = row.spec.model_dump(mode="json")
        cli.out.document({**_line(cli, row, called_off), "spec": spec})
    else:
        cli.out.show(_about(cli, row, called_off.get(row.job)))


def _describe_aim(row: "JobRow") -> str:
    from events.learning import BRANCH

    if row.branch is not None:
        return f"the {BRANCH} {row.branch}"
    return f"the {row.teaches}" if row.teaches else row.capability or "any kind of task"


def _about(cli: Cli, row: "JobRow", called_off: str | None) -> Any:
    came = f"open, called off: {called_off}" if called_off else "open"
    if row.outcome is not None:
        came = "; ".join(filter(None, [f"{row.outcome}, {row.ended}", row.reason]))
    done = (
        f"{row.steps:,} steps, {row.rollouts:,} rollouts, {row.seconds / 60:.1f} minutes in "
        f"{row.attempts} attempts"
        if row.outcome is not None and row.seconds is not None
        else "not over"
    )
    return facts(
        {
            "job": row.job,
            "cycle": row.cycle or "none; a person asked for it",
            "for": f"{row.alias} on {row.base}, {_describe_aim(row)}",
            "requested": f"{row.requested}, for {row.minutes:g} minutes at most",
            "came to": came,
            "done": done,
            "adapter": locate_files(cli, row.adapter) or "none",
            "tasks": ", ".join(map(_describe_pool, row.spec.pools)),
            "spec": row.spec.model_dump_json(),
        }
    )


def _describe_pool(pool: "TaskPool") -> str:
    rewarded = "" if pool.reward == "verdict" else f" (reward {pool.reward})"
    return f"{len(pool.tasks):,} {pool.name}{rewarded}"


@command(group)
def cancel(cli: Cli, job: Named, actor: ActorName = None, reason: WhyNot = "") -> None:
    """Call a job off; the role work stops it, and its cycle ends."""
    from consumers.reads import learning
    from consumers.reads.cycle_state import JOBS_CANCEL
    from daemon.core.decision_log import Decisions
    from daemon.cycle.outlook import TooLate

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            row = learning.find_job(connection, job)
        if row.outcome is not None:
            raise TooLate(f"job {row.job} is over ({row.outcome}); see kintsugi jobs ls")
        acted = Decisions(app).act(act_of(actor, reason), JOBS_CANCEL, {"job": row.job})
    text = f"job {row.job} is called off; it stops when the role work looks"
    cli.out.report({"acted": acted, "job": row.job}, text)
