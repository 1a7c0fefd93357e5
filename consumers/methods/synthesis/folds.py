"""The folds of the data engine: plans, the results of their tasks, faults, and user gates. A plan's
counts are of its present revision. A kept revision begins with the tries by which it was judged.
Only the first event counts for each set, each round, and the verdict on each rollout. The folds
read only their event and tables that `learning` alone fills.
"""

from typing import Final

from sqlalchemy import select

from consumers.batch import Batch, Row
from consumers.folds.adapters import (
    find_adapter,
    move_adapter,
    note_step,
    refuse_step,
    step_adapter,
)
from consumers.folds.cycles import find_row
from consumers.folds.record import FoldInput
from consumers.tables import (
    Adapter,
    PlanChange,
    PlanLine,
    PlanSet,
    TrajectoryVerdict,
)
from events.canonical import exact_json
from events.learning import PlanName
from events.lifecycle import State
from events.serving import UserEvaluated
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import PlanRevision, PlansRevised, PlansWritten

_FAULTS: Final = {"task": "task_faults", "user": "user_faults", "trajectory": "trajectory_faults"}
"""Fault of a rollout -> column of the table `plans` that counts it."""


def fold_plans(folding: FoldInput, data: PlansWritten, batch: Batch) -> None:
    """Store a new set of plans."""
    batch.flush()
    if _find_set(batch, data.plans) is not None:
        return
    whose = data.model_dump(
        include={"plans", "alias", "base", "environment", "cycle", "overlap", "writer", "trouble"}
    )
    lists = {
        name: exact_json(list(getattr(data, name))) for name in ("patterns", "uncovered", "refused")
    }
    place = {"time": folding.time, **folding.place()}
    batch.stage(PlanSet, {**whose, **lists, "round": 0, "stopped": "", **place})
    for number, plan in enumerate(data.entries):
        batch.stage(
            PlanLine,
            {
                "plans": data.plans,
                "plan": plan.plan,
                "number": number,
                "revision": 0,
                "definition": plan.model_dump_json(),
                **dict.fromkeys(("tries", "accepted", "disagreements", *_FAULTS.values()), 0),
                **place,
            },
        )


def fold_plan_revisions(folding: FoldInput, data: PlansRevised, batch: Batch) -> None:
    """Close the next round of revisions of a set; ignore an event of any other round."""
    batch.flush()
    row = _find_set(batch, data.plans)
    if row is None or data.round != row["round"] + 1 or row["stopped"]:
        return
    batch.stage(PlanSet, {**row, "round": data.round, "stopped": data.stopped})
    for revision in data.revisions:
        _revise(folding, data, revision, batch)


def _revise(folding: FoldInput, data: PlansRevised, revision: PlanRevision, batch: Batch) -> None:
    name = revision.before
    row = _find_plan(batch, name)
    if row is None or name.plans != data.plans or row["revision"] != name.revision:
        return
    place = {"time": folding.time, **folding.place()}
    batch.stage(
        PlanChange,
        {
            "plans": name.plans,
            "plan": name.plan,
            "round": data.round,
            "revision": name.revision,
            "definition": revision.plan.model_dump_json(),
            "failures": exact_json(list(revision.failures)),
            "writer": data.writer,
            **revision.model_dump(
                include={
                    "reason", "tries_before", "accepted_before", "tries", "accepted", "kept",
                }
            ),
            **place,
        },
    )  # fmt: skip
    if revision.kept:
        counts = dict.fromkeys(("disagreements", *_FAULTS.values()), 0)
        own = {"tries": revision.tries, "accepted": revision.accepted, **counts}
        changed = {"revision": name.revision + 1, "definition": revision.plan.model_dump_json()}
        batch.stage(PlanLine, {**row, **changed, **own, **place})


def count_try(plan: PlanName | None, batch: Batch, *, accepted: bool) -> None:
    """Count a try for a plan's present revision. The caller excludes repeated events."""
    row = None if plan is None else _find_plan(batch, plan)
    if plan is None or row is None or row["revision"] != plan.revision:
        return
    counts = {"tries": row["tries"] + 1, "accepted": row["accepted"] + accepted}
    batch.stage(PlanLine, {**row, **counts})


def fold_trajectory_verdict(folding: FoldInput, data: TrajectoryVerified, batch: Batch) -> None:
    """Store the verdict on a rollout of a written task."""
    batch.flush()
    verdicts = TrajectoryVerdict.table().c
    if find_row(batch, TrajectoryVerdict, verdicts.rollout == data.rollout) is not None:
        return
    opinion = data.opinion
    plan = {"plans": None, "plan": None} if data.plan is None else data.plan.model_dump()
    plan.pop("revision", None)
    batch.stage(
        TrajectoryVerdict,
        {
            **data.model_dump(
                include={"rollout", "alias", "base", "cycle", "task", "fault", "rule", "reason"}
            ),
            **plan,
            "opinion_by": None if opinion is None else opinion.model,
            "opinion": None if opinion is None else opinion.fault,
            "opinion_reason": None if opinion is None else opinion.reason,
            "agrees": data.agrees,
            "trouble": data.trouble,
            "siblings": exact_json(list(data.siblings)),
            "time": folding.time,
            **folding.place(),
        },
    )
    row = None if data.plan is None else _find_plan(batch, data.plan)
    if data.plan is None or row is None or row["revision"] != data.plan.revision:
        return
    changes: Row = {"disagreements": row["disagreements"] + (data.agrees is False)}
    if data.fault is not None:
        column = _FAULTS[data.fault]
        changes[column] = row[column] + 1
    batch.stage(PlanLine, {**row, **changes})


def fold_user_evaluation(folding: FoldInput, data: UserEvaluated, batch: Batch) -> None:
    """Store the result of an adapter's gate as a user. If it passed, retire the earlier users."""
    row = find_adapter(batch, data.adapter)
    if row is not None and row["role"] != "user":
        refused = f"{data.adapter} is an agent's, and was measured as a user"
        refuse_step(folding, batch, "adapter", data.adapter, refused, data.reason)
        return
    others = [] if row is None or not data.passed else _list_users(batch, row)
    gate = {"user_gate": data.model_dump_json()}
    if not step_adapter(folding, data, batch, gate, data.reason):
        return
    for other in others:
        reason = f"{data.adapter} plays users in its place"
        move_adapter(folding, batch, other, State.DRAINING, reason)
        note_step(folding, batch, "adapter", other["adapter"], State.DRAINING, reason)


def _list_users(batch: Batch, row: Row) -> list[Row]:
    adapters = Adapter.table()
    query = (
        select(adapters)
        .where(
            adapters.c.role == "user",
            adapters.c.alias == row["alias"],
            adapters.c.base == row["base"],
            adapters.c.state == State.GATED.value,
            adapters.c.adapter != row["adapter"],
        )
        .order_by(adapters.c.adapter)
    )
    return [dict(other) for other in batch.connection.execute(query).mappings()]


def _find_set(batch: Batch, plans: str) -> Row | None:
    return find_row(batch, PlanSet, PlanSet.table().c.plans == plans)


def _find_plan(batch: Batch, name: PlanName) -> Row | None:
    batch.flush()
    plans = PlanLine.table().c
    return find_row(batch, PlanLine, (plans.plans == name.plans) & (plans.plan == name.plan))
