"""The folds: one short function per event type, from an event to rows.

Guarantee: a fold reads only its event and the tables. It uses no clock and no randomness, so the
same log gives the same rows on every machine. Folds of the stream `rollouts` write facts that merge
in any order of partitions. Steps that need an order happen at an event of `learning`, which has one
partition (diagnosis/rounds.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import select

from consumers.batch import Batch, Row, Staging
from consumers.diagnosis.anchors import select_tools
from consumers.diagnosis.kinds import find_kind
from consumers.diagnosis.labels import label_event
from consumers.diagnosis.rounds import close_round
from consumers.diagnosis.rule_versions import read_rules
from consumers.folds.adapters import (
    fold_adapter_evaluation,
    fold_adapter_move,
    fold_adapter_production,
    fold_adapter_staging,
    fold_gate_decision,
    fold_operator_action,
    fold_route_change,
)
from consumers.folds.cycles import (
    PROPOSED,
    accepts_task,
    awaits_round,
    fold_cycle_end,
    fold_cycle_start,
    fold_directive,
    fold_job_end,
    fold_job_request,
    fold_leader_claim,
    fold_pool_shift,
    fold_task_rejection,
    is_stale_epoch,
    store_cycle_round,
)
from consumers.folds.erasures import fold_person_erasure
from consumers.folds.record import Fold, FoldInput
from consumers.folds.task_states import (
    fold_task_retirement,
    keep_body,
    name_plan,
    restore_task,
    takes_body,
)
from consumers.methods.folds import METHOD_FOLDS, count_try
from consumers.tables import (
    SKIPPED,
    Call,
    DeadLetter,
    Feedback,
    Repair,
    Rollout,
    SessionEnd,
    Task,
    TaskPattern,
)
from events.canonical import exact_json
from events.envelope import derive_id
from events.errors import BadRecord
from events.learning import (
    OPERATOR,
    CycleEnded,
    CycleStarted,
    DirectiveWritten,
    JobEnded,
    JobRequested,
    LeaderClaimed,
    PatternsDiagnosed,
    PersonErased,
    PoolsShifted,
    RepairSearched,
    TaskProposed,
    TaskRejected,
    TaskRetired,
)
from events.rollouts import (
    CallEnded,
    CallsGathered,
    CallStarted,
    ClosingFailed,
    FeedbackReceived,
    Labels,
    MemberChoice,
    RolloutEnded,
    SessionEnded,
)
from events.rollouts import Task as TaskData
from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    GateDecided,
    OperatorActed,
    RouteChanged,
)

Fact = Callable[[FoldInput, Any, Staging], None]
"""The fold of an event of the stream `rollouts`; it reads no tables."""

CALLS: Final = 200_000
"""Most calls of one rollout."""


def fold_rollout(folding: FoldInput, data: RolloutEnded, batch: Staging) -> None:
    """Store a rollout with its labels, its calls and its task."""
    if len(data.calls) + len(data.forks) > CALLS:
        named = len(data.calls) + len(data.forks)
        raise BadRecord(f"rollout {data.rollout} names {named:,} calls, one has at most {CALLS:,}")
    task = data.task
    result = label_event(folding.event, data)
    labels = result.labels
    batch.stage(
        Rollout,
        {
            "rollout": data.rollout,
            "alias": data.alias,
            "base": data.base,
            "policy": data.policy,
            **_member_columns(data.member, data.base),
            "source": data.source,
            "purpose": data.purpose,
            "session": data.session,
            "task": task.id if task else None,
            "task_key": task.id if task else f"rollout:{data.rollout}",
            "environment": task.environment if task else None,
            "capability": task.capability if task else None,
            "trial": data.trial,
            "seed": data.seed,
            "success": data.success,
            "rules": read_rules(data) if data.success is not None else None,
            "reward": data.reward,
            "verdicts": exact_json([line.model_dump() for line in data.verdicts])
            if data.verdicts
            else None,
            "termination": data.termination,
            "time": folding.time,
            **labels.model_dump(exclude={"categories", "pivot", "tools", "words"}),
            **_neighbour_columns(data, labels),
            "categories": exact_json(labels.categories),
            "pivot": labels.pivot if labels.category else None,
            "evidence": None if result.evidence is None else exact_json(result.evidence),
            "round": None,
            "outdated": None,
            **folding.pointer(),
        },
    )
    _take_calls(folding, data, batch)
    if task is not None:
        # A rollout without a time sorts first. Proposals ("0|") sort before rollouts ("1|").
        order = f"1|{folding.time or ''}|{data.rollout}"
        batch.stage(Task, _task_row(data.alias, task, "rollout", order))


def _member_columns(member: MemberChoice | None, base: str) -> Row:
    if member is None:
        return {"member": None, "skill": None}
    return {"member": member.adapter or base, "skill": member.skill}


def _neighbour_columns(data: RolloutEnded, labels: Labels) -> Row:
    task = data.task
    gold = (task.gold_actions or ()) if task else ()
    kind = find_kind(task.id) if task else None
    expected = [action.name for action in gold if action.requestor == "assistant"]
    return {
        "kind": kind,
        "tools": exact_json(select_tools([*expected, *labels.tools])),
        "words": labels.words if kind is None else None,
    }


def fold_call_list(folding: FoldInput, data: CallsGathered, batch: Staging) -> None:
    """Store the calls of a rollout that has too many for one event."""
    _take_calls(folding, data, batch)


def _take_calls(folding: FoldInput, data: RolloutEnded | CallsGathered, batch: Staging) -> None:
    for call in (*data.calls, *data.forks):
        batch.stage(
            Call,
            {
                "call": call,
                "session": data.session,
                "rollout": data.rollout,
                "partition": folding.record.partition,
                "event_source": folding.record.source,
            },
        )


def fold_close_failure(folding: FoldInput, data: ClosingFailed, batch: Staging) -> None:
    """Store a dead letter for a session that could not be closed and waits for a person."""
    batch.stage(
        DeadLetter,
        {
            "stream": folding.record.stream,
            "type": data.TYPE,
            "reason": f"session {data.session}: {data.reason}",
            "rollout": data.rollout,
            **folding.pointer(),
        },
    )


def fold_call_start(folding: FoldInput, data: CallStarted, batch: Staging) -> None:
    """Store the columns of a call that are known at its start."""
    batch.stage(
        Call,
        {
            "call": data.call,
            "session": data.session,
            "alias": data.alias,
            "base": data.base,
            "policy": data.policy,
            "task": data.task,
            "parent": data.parent,
            "parent_messages": data.parent_messages,
            "stream": data.stream,
            "sampling": exact_json(data.sampling),
            "endpoint": data.endpoint,
            "attribution": data.attribution,
            "client": data.client,
            "purpose": data.purpose,
            "routed": data.routed,
            "shares": None if data.shares is None else exact_json(data.shares),
            "holdout": None if data.holdout is None else data.holdout.share,
            "held_out": None if data.holdout is None else data.holdout.held_out,
            **_member_columns(data.member, data.base),
            "router_doubt": None if data.member is None else data.member.doubt,
            "router_ms": None if data.member is None else data.member.router_ms,
            "started": folding.time,
            **folding.pointer("started_"),
        },
    )


def fold_call_end(folding: FoldInput, data: CallEnded, batch: Staging) -> None:
    """Store the columns of a call that are known at its end."""
    batch.stage(
        Call,
        {
            "call": data.call,
            "session": data.session,
            "outcome": data.outcome,
            "finish_reason": data.finish_reason,
            "prompt_tokens": data.prompt_tokens,
            "completion_tokens": data.completion_tokens,
            "duration_ms": data.duration_ms,
            "trainable": data.trainable,
            "untrainable_because": data.untrainable_because,
            "invalid_tool_calls": data.invalid_tool_calls,
            "error": data.error,
            "status": data.status,
            "upstream": data.upstream,
            "ended": folding.time,
            **folding.pointer("ended_"),
        },
    )


def fold_session_end(folding: FoldInput, data: SessionEnded, batch: Staging) -> None:
    """Store the end of a session, and the id that its rollout will have."""
    ended = folding.event.envelope.id
    batch.stage(
        SessionEnd,
        {
            "session_end": ended,
            "session": data.session,
            "because": data.because,
            "rollout": derive_id(ended, "rollout"),
            "time": folding.time,
            **folding.pointer(),
        },
    )


def fold_repair(folding: FoldInput, data: RepairSearched, batch: Batch) -> None:
    """Store the result of a search for the proven label of a failed rollout. Of the events of one
    version of the rules, only the first that could replay the rollout counts."""
    batch.flush()
    table = Repair.table()
    query = select(table.c.rules, table.c.outcome).where(table.c.rollout == data.rollout)
    row = batch.connection.execute(query).first()
    if row is not None and row.rules == data.rules and row.outcome != SKIPPED:
        return
    edits = [edit.model_dump(mode="json", exclude_defaults=True) for edit in data.edits]
    batch.stage(
        Repair,
        {
            **data.model_dump(exclude={"edits"}),
            "edits": exact_json(edits),
            "time": folding.time,
            **folding.place(),
        },
    )


def fold_feedback(folding: FoldInput, data: FeedbackReceived, batch: Staging) -> None:
    """Store feedback on a session or call. Its id comes from the sender's idempotency key."""
    batch.stage(
        Feedback,
        {
            "feedback": folding.event.envelope.id,
            "session": data.session,
            "call": data.call,
            "score": data.score,
            "success": data.success,
            "tags": exact_json(data.tags),
            "verified": data.verified,
            "time": folding.time,
            **folding.pointer(),
        },
    )


def fold_task_proposal(folding: FoldInput, data: TaskProposed, batch: Batch) -> None:
    """Store a proposed task, unless its body is wrong. Tag it with its pattern, if it has one."""
    if not takes_body(folding, data, batch) or not accepts_task(folding, data, batch):
        return
    keep_body(folding, data, batch)
    restore_task(folding, data, batch)
    of_data = {"pattern", "source_rollout", "base", "cycle", "mode", "text_by"}
    batch.stage(
        Task,
        {
            **_task_row(data.alias, data.task, PROPOSED, f"0|{data.task.id}"),
            **data.model_dump(include=of_data),
            "verified": exact_json([check.model_dump() for check in data.verified]),
            **name_plan(data.plan),
            "event": folding.event.envelope.id,
            "offset": folding.record.offset,
        },
    )
    count_try(data.plan, batch, accepted=True)
    if data.pattern == OPERATOR:
        return
    batch.stage(
        TaskPattern,
        {
            "alias": data.alias,
            "base": data.base,
            "task_key": data.task.id,
            "pattern": data.pattern,
        },
    )


def fold_rejection(folding: FoldInput, data: TaskRejected, batch: Batch) -> None:
    """Store a rejected task or try, and count the try for its plan."""
    if fold_task_rejection(folding, data, batch):
        count_try(data.plan, batch, accepted=False)


def fold_diagnosis(folding: FoldInput, data: PatternsDiagnosed, batch: Batch) -> None:
    """Close a round, update the priorities, and store the round with its cycle."""
    if awaits_round(data, batch):
        number = close_round(data, folding.time, folding.pointer(), batch)
        store_cycle_round(folding, data, number, batch)


def _task_row(alias: str, task: TaskData, origin: str, order_key: str) -> Row:
    gold = task.gold_actions
    return {
        "alias": alias,
        "task": task.id,
        "environment": task.environment,
        "capability": task.capability,
        "instruction": task.instruction,
        "gold_actions": None
        if gold is None
        else exact_json([action.model_dump(mode="json", exclude_defaults=True) for action in gold]),
        "outputs": exact_json(task.outputs),
        "reward_basis": exact_json(task.reward_basis),
        "definition": task.definition,
        "origin": origin,
        "pattern": None,
        "source_rollout": None,
        "base": None,
        "cycle": None,
        "mode": None,
        "verified": None,
        "text_by": None,
        **name_plan(None),
        "order_key": order_key,
        "event": None,
        "offset": None,
    }


FACTS: Final[Mapping[str, Fact]] = {
    RolloutEnded.TYPE: fold_rollout,
    CallsGathered.TYPE: fold_call_list,
    ClosingFailed.TYPE: fold_close_failure,
    CallStarted.TYPE: fold_call_start,
    CallEnded.TYPE: fold_call_end,
    SessionEnded.TYPE: fold_session_end,
    FeedbackReceived.TYPE: fold_feedback,
}
"""Event type of the stream `rollouts` -> its fold. Every type of the stream has a fold."""

FOLDS: Final[Mapping[str, Fold]] = {
    LeaderClaimed.TYPE: fold_leader_claim,
    CycleStarted.TYPE: fold_cycle_start,
    PatternsDiagnosed.TYPE: fold_diagnosis,
    DirectiveWritten.TYPE: fold_directive,
    TaskProposed.TYPE: fold_task_proposal,
    TaskRejected.TYPE: fold_rejection,
    TaskRetired.TYPE: fold_task_retirement,
    JobRequested.TYPE: fold_job_request,
    PoolsShifted.TYPE: fold_pool_shift,
    JobEnded.TYPE: fold_job_end,
    CycleEnded.TYPE: fold_cycle_end,
    AdapterProduced.TYPE: fold_adapter_production,
    AdapterStaged.TYPE: fold_adapter_staging,
    AdapterEvaluated.TYPE: fold_adapter_evaluation,
    GateDecided.TYPE: fold_gate_decision,
    RouteChanged.TYPE: fold_route_change,
    AdapterMoved.TYPE: fold_adapter_move,
    OperatorActed.TYPE: fold_operator_action,
    PersonErased.TYPE: fold_person_erasure,
    RepairSearched.TYPE: fold_repair,
    **METHOD_FOLDS,
}
"""Event type of the stream `learning` -> its fold."""

READS_CONTENT: Final = frozenset({RolloutEnded.TYPE})
"""Event types whose fold reads the content. For other types, only the head is decoded."""


def fold_decision(folding: FoldInput, batch: Batch) -> bool:
    """Stage the rows of an event of `learning`. Return False without rows if its epoch is stale."""
    data = folding.event.data
    if is_stale_epoch(folding, batch):
        return False
    FOLDS[data.TYPE](folding, data, batch)
    return True
