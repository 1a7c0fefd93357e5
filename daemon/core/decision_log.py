"""Deciding: an event is appended, folded, and seen to have counted; one process at a time acts.

    with hold_serving_lock(home):                                   or HomeLockBusy
        cause = decisions.act(Actor("ada"), "adapters promote", {...}, "it is better")
        decisions.take(RouteChanged(...), "route", cause)   or DecisionRefusal

Guarantees: what follows from something has an id that follows from it, so doing it again after a
`kill -9` is no second step; `take` returns when the tables hold the decision, and raises where they
refused it, which happens when another one came first. What was refused may be asked for again, and
counts once nothing stands against it. Not covered: acting from two homes at once (each fold refuses
what came second, but what one loads the other may unload).
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
    """The tables did not take a decision: what it rests on had changed."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who wants something, and why."""

    actor: str
    reason: str = ""


class Decisions:
    """The stream `learning` as those who decide see it."""

    def __init__(self, app: "App", epoch: int | None = None) -> None:
        """`epoch`: that of the leader that decides; None for any other process."""
        self._app = app
        self._epoch = epoch

    def act(self, act: Act, action: str, arguments: Mapping[str, str]) -> str:
        """Record what a person asked for; its id is the cause of what follows."""
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
        """Append what follows from `cause` as its `step`, and see it in the tables; its id.

        The id follows from `origin`, by default the cause: what is to happen once, although it may
        be asked for twice, needs an origin that is the same both times. `within` is the span in
        which it is written, by default that of the cause, where spans are sent.

        Raises DecisionRefusal, LogError (nothing was appended), DatabaseUnavailable (it counts as
        soon as it is folded).
        """
        event = derive_id(origin or cause, step)
        self.record({event: data}, cause, within)
        return event

    def take_all(
        self, steps: Mapping[str, Decision], cause: str, origin: str | None = None
    ) -> list[str]:
        """Append several decisions as `take` does, all of them or none, also after a kill; return
        their ids."""
        events = {derive_id(origin or cause, step): data for step, data in steps.items()}
        return self.record(events, cause)

    def record(
        self, events: Mapping[str, Decision], cause: str, within: TraceContext | None = None
    ) -> list[str]:
        """Append decisions whose ids are known (id -> decision), and check that they took effect;
        return the ids."""
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
        self,
        events: Mapping[str, Decision],
        cause: str | None,
        within: TraceContext | None = None,
    ) -> None:
        # To know the span of a cause the log is read: done where traces are sent. A cycle's own
        # context is always written (`within`), so spans are made later as well.
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
