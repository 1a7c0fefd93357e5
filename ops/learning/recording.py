"""Rollouts of this process in a log, with their calls and exact tokens, as a gateway records them.

record_rollouts(app, player.play(...), environment, provenance, origin)
"""

from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from daemon.solver.sampling.local import Rollout
from envs.environment import Environment
from events.codec import Arrays, encode
from events.envelope import Envelope, derive_id
from events.log import Entry, now_ms
from events.rollouts import CallEnded, CallStarted
from ops.learning.arms import convert_rollout
from producers.simulation import Provenance, build_rollout_event

if TYPE_CHECKING:
    from daemon.core.app import App

_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the first recorded event; each one is a second later."""


def record_rollouts(
    app: "App",
    rollouts: Iterable[Rollout],
    environment: Environment,
    provenance: Provenance,
    origin: str,
    begin: datetime = _BEGIN,
) -> datetime:
    """Append the rollouts, all of them or none, each as a session of its own; return the time after
    the last event. Ids follow from `origin` and the rollout's task."""
    entries: list[Entry] = []
    for rollout in rollouts:
        name = derive_id(origin, rollout.attempt.task.id)
        calls = list(_record_calls(rollout, provenance, name))
        ended = build_rollout_event(convert_rollout(rollout), environment, provenance, name)
        names = tuple(dict.fromkeys(data.call for data, _ in calls))
        ended = ended.model_copy(update={"session": name, "calls": names})
        for number, (data, arrays) in enumerate([*calls, (ended, {})]):
            envelope = Envelope(
                id=derive_id(name, str(number)), type=data.TYPE, version=data.VERSION,
                subject=data.key(), time=begin + timedelta(seconds=len(entries)),
            )  # fmt: skip
            event = encode(envelope, data, now_ms(), arrays)
            if event.blob is not None:
                app.blobs.put(event.blob)
            entries.append(event.entry)
    app.spool.append(entries)
    return begin + timedelta(seconds=len(entries))


def _record_calls(
    rollout: Rollout, provenance: Provenance, name: str
) -> Iterator[tuple[CallStarted | CallEnded, Arrays]]:
    for number, turn in enumerate(rollout.trajectory.turns):
        call = f"{name}/{number}"
        yield (
            CallStarted(
                call=call, session=name, alias=provenance.alias, base=provenance.base,
                policy=provenance.policy, task=rollout.attempt.task.id,
            ),
            {},
        )  # fmt: skip
        arrays: Arrays = {
            "prompt_token_ids": array("i", turn.prompt_ids),
            "token_ids": array("i", turn.completion_ids),
            "logprobs": array("f", turn.logprobs),
        }
        yield CallEnded(call=call, session=name, outcome="completed", trainable=True), arrays
