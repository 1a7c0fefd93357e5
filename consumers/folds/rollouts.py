"""The folds: one short function per event type, from an event to rows.

A fold reads nothing but its event and the tables, no clock and no randomness (a test reads this
module's imports), so the same log gives the same rows on every machine. Folds of `rollouts` write
facts that merge in any order of partitions; what needs an order across partitions happens at an
event of `learning` (consumers/diagnosis/rounds.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from consumers.batch import Batch, Row, Staging
from consumers.diagnosis.labels import labelled_event
from consumers.diagnosis.rounds import close_round
from consumers.folds.adapters import (
    adapter_evaluated,
    adapter_moved,
    adapter_produced,
    adapter_staged,
    gate_decided,
    operator_acted,
    route_changed,
)
from consumers.folds.cycles import (
    PROPOSED,
    accepts_task,
    awaits_round,
    cycle_diagnosed,
    cycle_ended,
    cycle_started,
    directive_written,
    fenced,
    job_ended,
    job_requested,
    leader_claimed,
    task_rejected,
)
from consumers.folds.erasures import person_erased
from consumers.folds.record import Folding
from consumers.tables import Call, DeadLetter, Feedback, Rollout, SessionEnd, Task, TaskPattern
from events.canonical import exact_json
from events.envelope import derived_id
from events.errors import BadRecord
from events.learning import (
    CycleEnded,
    CycleStarted,
    DirectiveWritten,
    JobEnded,
    JobRequested,
    LeaderClaimed,
    PatternsDiagnosed,
    PersonErased,
    TaskProposed,
    TaskRejected,
)
from events.rollouts import (
    CallEnded,
    CallsGathered,
    CallStarted,
    ClosingFailed,
    FeedbackReceived,
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

Fact = Callable[[Folding, Any, Staging], None]
"""The fold of an event of `rollouts`: it reads no tables."""

Fold = Callable[[Folding, Any, Batch], None]
"""The fold of a decision: it reads what earlier ones made."""

CALLS: Final = 200_000
"""That one rollout may name."""


def rollout_ended(folding: Folding, data: RolloutEnded, batch: Staging) -> None:
    """A rollout, labelled; the calls that it is of, and the task it attempted."""
    if len(data.calls) + len(data.forks) > CALLS:
        named = len(data.calls) + len(data.forks)
        raise BadRecord(f"rollout {data.rollout} names {named:,} calls, one has at most {CALLS:,}")
    task = data.task
    found = labelled_event(folding.event, data)
    labels = found.labels
    batch.stage(
        Rollout,
        {
            "rollout": data.rollout,
            "alias": data.alias,
            "base": data.base,
            "policy": data.policy,
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
            "reward": data.reward,
            "termination": data.termination,
            "time": folding.time,
            **labels.model_dump(exclude={"categories", "pivot"}),
            "categories": exact_json(labels.categories),
            "pivot": labels.pivot if labels.category else None,
            "evidence": None if found.evidence is None else exact_json(found.evidence),
            "round": None,
            **folding.pointer(),
        },
    )
    _take_calls(folding, data, batch)
    if task is not None:
        # A rollout without a time sorts first, as everywhere; a proposal comes before rollouts.
        order = f"1|{folding.time or ''}|{data.rollout}"
        batch.stage(Task, _task_row(data.alias, task, "rollout", order))


def calls_gathered(folding: Folding, data: CallsGathered, batch: Staging) -> None:
    """The calls of a rollout that has too many for one event."""
    _take_calls(folding, data, batch)


def _take_calls(folding: Folding, data: RolloutEnded | CallsGathered, batch: Staging) -> None:
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


def closing_failed(folding: Folding, data: ClosingFailed, batch: Staging) -> None:
    """A session that waits for a person, among the events that do."""
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


def call_started(folding: Folding, data: CallStarted, batch: Staging) -> None:
    """The first half of a call."""
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
            "started": folding.time,
            **folding.pointer("started_"),
        },
    )


def call_ended(folding: Folding, data: CallEnded, batch: Staging) -> None:
    """The second half of a call."""
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


def session_ended(folding: Folding, data: SessionEnded, batch: Staging) -> None:
    """An end of a session, and the id of the rollout that it will be."""
    ended = folding.event.envelope.id
    batch.stage(
        SessionEnd,
        {
            "session_end": ended,
            "session": data.session,
            "because": data.because,
            "rollout": derived_id(ended, "rollout"),
            "time": folding.time,
            **folding.pointer(),
        },
    )


def feedback_received(folding: Folding, data: FeedbackReceived, batch: Staging) -> None:
    """A verdict or remark; the sender's idempotency key makes its id."""
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


def task_proposed(folding: Folding, data: TaskProposed, batch: Batch) -> None:
    """A task written for a pattern: from now on its rollouts count for that pattern."""
    if not accepts_task(folding, data, batch):
        return
    of_data = {"pattern", "source_rollout", "base", "cycle", "mode", "text_by"}
    batch.stage(
        Task,
        {
            **_task_row(data.alias, data.task, PROPOSED, f"0|{data.task.id}"),
            **data.model_dump(include=of_data),
            "verified": exact_json([one.model_dump() for one in data.verified]),
            "event": folding.event.envelope.id,
            "offset": folding.record.offset,
        },
    )
    batch.stage(
        TaskPattern,
        {
            "alias": data.alias,
            "base": data.base,
            "task_key": data.task.id,
            "pattern": data.pattern,
        },
    )


def patterns_diagnosed(folding: Folding, data: PatternsDiagnosed, batch: Batch) -> None:
    """A round closes: priorities move."""
    if awaits_round(data, batch):
        number = close_round(data, folding.time, folding.pointer(), batch)
        cycle_diagnosed(folding, data, number, batch)


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
        "order_key": order_key,
        "event": None,
        "offset": None,
    }


FACTS: Final[Mapping[str, Fact]] = {
    RolloutEnded.TYPE: rollout_ended,
    CallsGathered.TYPE: calls_gathered,
    ClosingFailed.TYPE: closing_failed,
    CallStarted.TYPE: call_started,
    CallEnded.TYPE: call_ended,
    SessionEnded.TYPE: session_ended,
    FeedbackReceived.TYPE: feedback_received,
}
"""Event type of `rollouts` -> its fold. Every type has one: an event that nothing reads is not
written."""

FOLDS: Final[Mapping[str, Fold]] = {
    LeaderClaimed.TYPE: leader_claimed,
    CycleStarted.TYPE: cycle_started,
    PatternsDiagnosed.TYPE: patterns_diagnosed,
    DirectiveWritten.TYPE: directive_written,
    TaskProposed.TYPE: task_proposed,
    TaskRejected.TYPE: task_rejected,
    JobRequested.TYPE: job_requested,
    JobEnded.TYPE: job_ended,
    CycleEnded.TYPE: cycle_ended,
    AdapterProduced.TYPE: adapter_produced,
    AdapterStaged.TYPE: adapter_staged,
    AdapterEvaluated.TYPE: adapter_evaluated,
    GateDecided.TYPE: gate_decided,
    RouteChanged.TYPE: route_changed,
    AdapterMoved.TYPE: adapter_moved,
    OperatorActed.TYPE: operator_acted,
    PersonErased.TYPE: person_erased,
}
"""Event type of `learning` -> its fold."""

READS_CONTENT: Final = frozenset({RolloutEnded.TYPE})
"""Types whose fold reads what was said; of the others only the head is decoded."""


def fold_decision(folding: Folding, batch: Batch) -> bool:
    """Stage what a decision makes of the tables; nothing, and False, for one of who does not
    lead."""
    data = folding.event.data
    if fenced(folding, batch):
        return False
    FOLDS[data.TYPE](folding, data, batch)
    return True
