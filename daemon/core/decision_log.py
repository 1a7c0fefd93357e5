"""Decisions: an event is appended, folded, and checked for its effect; one process at a time acts.

    with hold_serving_lock(home):                                   or HomeLockBusy
        cause = decisions.act(Act("ada", "it is better"), "adapters promote", {...})
        decisions.take(RouteChanged(...), "route", cause)   or DecisionRefusal

Guarantees: an event's id follows from its cause, so repeating it after a `kill -9` is no second
step. `take` returns when the tables hold the decision, and raises where they refused it because
another one came first. A refused decision may be taken again. Not covered: acting from two homes at
once (each fold refuses the second, but one home may unload what the other loads).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.reads import serving
from daemon.core.span_contexts import Contexts
from events.codec import encode
from events.envelope import Envelope, derive_id, new_id, utc_now
from events.errors import KintsugiError
from events.learning import Decision
from events.log import now_ms
from events.serving import OperatorActed
from producers.spans.trace_context import TraceContext

if TYPE_CHECKING:
    from daemon.core.app import App


class DecisionRefusal(KintsugiError):
    """The tables refused a decision because the state that it was based on had changed."""


@dataclass(frozen=True, slots=True)
class Act:
    """A request of a person, with its reason."""

    actor: str
    reason: str = ""


class Decisions:
    """The stream `learning` for processes that decide."""

    def __init__(self, app: "App", epoch: int | None = None) -> None:
        """`epoch` is the leader's epoch if a leader decides; None for any other process."""
        self._app = app
        self._epoch = epoch

    def act(self, act: Act, action: str, arguments: Mapping[str, str]) -> str:
        """Append a person's request; return its id. Events that follow name it as their cause."""
        event = OperatorActed(
            actor=act.actor, action=action, arguments=dict(arguments), reason=act.reason
        )
        cause = new_id()
        self._append({cause: event}, None)
        return cause

    def take(
        self,
        data: Decision,
        step: str,
        cause: str,
        origin: str | None = None,
        within: TraceContext | None = None,
    ) -> str:
        """Append a decision that follows from `cause` as its `step`; return its id once the tables
        have it. The id is computed from `origin` (default: the cause): for a decision that must
        happen once though it is requested twice, pass the same origin. `within` is its span
        (default: that of the cause, if spans are sent). Raises DecisionRefusal, LogError (nothing
        was appended), DatabaseUnavailable (the decision counts as soon as it is folded)."""
        event = derive_id(origin or cause, step)
        self.record({event: data}, cause, within)
        return event

    def take_all(
        self, steps: Mapping[str, Decision], cause: str, origin: str | None = None
    ) -> list[str]:
        """Append several decisions as `take` does, all or none, also after a kill. Return ids."""
        events = {derive_id(origin or cause, step): data for step, data in steps.items()}
        return self.record(events, cause)

    def record(
        self, events: Mapping[str, Decision], cause: str, within: TraceContext | None = None
    ) -> list[str]:
        """Append decisions by id, check that they took effect, and return the ids."""
        self._append(events, cause, within)
        for event in events:
            self._check_effect(event)
        return list(events)

    def _check_effect(self, event: str) -> None:
        with self._app.reading() as connection:
            steps = serving.steps_of(connection, event)
        if steps and all(step.refused is not None for step in steps):
            raise DecisionRefusal(
                f"{steps[-1].refused}; see what changed (kintsugi route show), then decide"
            )

    def _append(
        self, events: Mapping[str, Decision], cause: str | None, within: TraceContext | None = None
    ) -> None:
        # The span of a cause is read from the log, so only where traces are sent. A cycle's own
        # context is always written (`within`), so spans can be made later too.
        traced = bool(self._app.settings.tracing.endpoint)
        if within is None and cause is not None and traced:
            with self._app.reading() as connection:
                within = Contexts(connection, self._app.log).within(cause)
        header = None if within is None else within.header
        entries = []
        for event, data in events.items():
            envelope = Envelope(
                id=event, type=data.TYPE, version=data.VERSION, subject=data.key(),
                time=utc_now(), cause=cause, epoch=self._epoch, traceparent=header,
            )  # fmt: skip
            entries.append(encode(envelope, data, now_ms()).entry)
        self._app.append(entries)
        self._app.settle()
