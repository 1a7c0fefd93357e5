"""Spans of the daemon's decisions: the stream `learning` (events, rows -> spans).

    cycle {agent}      from its trigger to its outcome, linked to the rollouts of its directive;
                       within it diagnose, direct and propose
    train {agent}      a job, from its request to its end
    stage {adapter}    from the adapter's step before until every replica had loaded it
    evaluate {adapter} from the adapter's step before until the gate had decided
    canary {adapter}   the time in which the adapter had a part of the sessions
    route {agent}      the moment at which the route changed

Spans are made of rows, so a repeated event makes the same span. An open cycle has no span yet, but
its ended job has one.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Row

from consumers.reads import spans
from daemon.core.span_contexts import Contexts
from daemon.tracing.calls import MOST_LINKS, PROVIDER
from daemon.tracing.spans import Span, SpanEvent
from events.codec import Event
from events.envelope import timestamp
from events.learning import CycleEnded, Directive, JobEnded
from events.serving import AdapterStaged, GateDecided, RouteChanged
from producers.spans import conventions as names
from producers.spans.trace_context import TraceContext, root

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

_FAILED: Final = ("failed", "cancelled", "rolled_back")
"""Outcomes that make a span an error; `rejected` is not among them."""


class DecisionSpans:
    """Makes spans of events of the stream `learning`, with rows of one moment of the tables."""

    def __init__(self, app: "App", connection: "Connection") -> None:
        self._connection = connection
        self._contexts = Contexts(connection, app.log)

    def of(self, events: Sequence[Event]) -> Iterator[Span]:
        """Yield the spans that end with these events."""
        for event in events:
            match event.data:
                case CycleEnded(cycle=cycle):
                    yield from self._cycle(cycle)
                case JobEnded(job=job):
                    yield from self._job(job)
                case AdapterStaged() | GateDecided():
                    yield from self._step(event)
                case RouteChanged():
                    yield from self._route(event, event.data)
                case _:
                    pass

    def _cycle(self, cycle: str) -> Iterator[Span]:
        row = spans.find_cycle(self._connection, cycle)
        if row is None or row.started is None or row.ended is None:
            return
        context, before = self._contexts.cycle(cycle), self._contexts.before_cycle(cycle)
        common = {"kintsugi.cycle": cycle, names.AGENT: row.alias, "kintsugi.base": row.base}
        job = None if row.job is None else spans.find_job(self._connection, row.job)
        stages = (
            ("diagnose", row.started, row.diagnosed),
            ("direct", row.diagnosed, row.directed),
            ("propose", row.directed, job.requested if job else row.ended),
        )
        for name, began, ended in stages:
            if began is not None and ended is not None:
                inner = context.child("cycle", cycle, name)
                yield Span(f"{name} {row.alias}", inner, context.span, began, ended, common)
        yield Span(
            name=f"cycle {row.alias}",
            context=context,
            parent=None if before is None else before.span,
            began=row.started,
            ended=row.ended,
            attributes={
                **common,
                "kintsugi.number": row.number,
                "kintsugi.environment": row.environment,
                "kintsugi.trigger": row.trigger,
                "kintsugi.reason": row.reason,
                "kintsugi.round": row.round,
                "kintsugi.tasks": row.accepted,
                "kintsugi.tasks.rejected": row.rejected,
                "kintsugi.job": row.job,
                "kintsugi.outcome": row.outcome,
                "kintsugi.outcome.reason": row.ended_because,
            },
            links=self._links(row, before),
            error=row.outcome if row.outcome in _FAILED else None,
        )

    def _links(self, row: Row[Any], before: TraceContext | None) -> tuple[TraceContext, ...]:
        """Return the contexts of the rollouts that a cycle's directive names as examples."""
        if row.directive is None:
            return ()
        quotas = Directive.model_validate(json.loads(row.directive)).quotas
        shown = dict.fromkeys(item for quota in quotas for item in quota.examples)
        contexts = (self._contexts.rollout(item) for item in list(shown)[:MOST_LINKS])
        return tuple(item for item in contexts if item is not None and item != before)

    def _job(self, job: str) -> Iterator[Span]:
        row = spans.find_job(self._connection, job)
        if row is None or row.requested is None or row.ended is None:
            return
        context = self._contexts.job(job)
        yield Span(
            name=f"train {row.alias}",
            context=context,
            parent=None if row.cycle is None else self._contexts.cycle(row.cycle).span,
            began=row.requested,
            ended=row.ended,
            attributes={
                names.AGENT: row.alias,
                "kintsugi.job": job,
                "kintsugi.cycle": row.cycle,
                "kintsugi.base": row.base,
                "kintsugi.capability": row.capability,
                "kintsugi.outcome": row.outcome,
                "kintsugi.outcome.reason": row.reason or None,
                "kintsugi.steps": row.steps,
                "kintsugi.rollouts": row.rollouts,
                "kintsugi.attempts": row.attempts,
                "kintsugi.seconds": row.seconds,
            },
            error=row.outcome if row.outcome in _FAILED else None,
        )

    def _step(self, event: Event) -> Iterator[Span]:
        for step, before in spans.read_adapter_steps(self._connection, event.envelope.id):
            staged = isinstance(event.data, AdapterStaged)
            yield self._of_adapter(event, "stage" if staged else "evaluate", step, before.time)

    def _route(self, event: Event, data: RouteChanged) -> Iterator[Span]:
        assert event.envelope.time is not None, "a decision says when"
        moment = timestamp(event.envelope.time)
        steps = list(spans.read_adapter_steps(self._connection, event.envelope.id))
        for step, before in steps:
            if before.state == "canary":
                yield self._of_adapter(event, "canary", step, before.time)
        about = (
            self._contexts.adapter(steps[0][0].subject)
            if steps
            else root("route", event.envelope.id)
        )
        adapters = [share.adapter or data.base for share in data.shares]
        yield Span(
            name=f"route {data.alias}",
            context=about.child("route", event.envelope.id),
            parent=about.span if steps else None,
            began=moment,
            ended=moment,
            attributes={
                names.AGENT: data.alias,
                "kintsugi.base": data.base,
                "kintsugi.route.policies": adapters,
                "kintsugi.route.shares": [f"{share.share:g}" for share in data.shares],
                "kintsugi.route.shadow": data.shadow,
                "kintsugi.route.why": data.why,
                "kintsugi.reason": data.reason or None,
            },
        )

    def _of_adapter(self, event: Event, name: str, step: Row[Any], began: str) -> Span:
        about = self._contexts.adapter(step.subject)
        row = spans.find_adapter(self._connection, step.subject)
        return Span(
            name=f"{name} {step.subject}",
            context=about.child(name, event.envelope.id, step.subject),
            parent=about.span,
            began=began,
            ended=step.time,
            attributes={
                names.PROVIDER: PROVIDER,
                "kintsugi.adapter": step.subject,
                "kintsugi.adapter.state": step.state,
                "kintsugi.job": None if row is None else row.job,
                "kintsugi.base": None if row is None else row.base,
                "kintsugi.reason": step.reason or None,
            },
            happened=tuple(self._read_evaluations(event, step)),
        )

    def _read_evaluations(self, event: Event, step: Row[Any]) -> Iterator[SpanEvent]:
        if not isinstance(event.data, GateDecided):
            return
        for row in spans.read_evaluations(self._connection, step.subject, step.time):
            attributes = {
                names.EVALUATION_NAME: "pass^1",
                names.EVALUATION_SCORE: row.candidate_pass,
                names.EVALUATION_LABEL: event.data.report.decision,
                "kintsugi.incumbent.pass": row.incumbent_pass,
                "kintsugi.tasks": row.tasks,
                "kintsugi.trials": row.trials,
            }
            yield SpanEvent(names.EVALUATION, row.time, attributes)
