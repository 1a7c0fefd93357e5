"""Erase a person: destroy their key, so that the data it sealed is unreadable in every copy.

    look        count the person's events in the log, and the adapters trained on them
    announce    append PersonErased, after which the key must not exist, and TaskRetired for each
                task that is made of the person's sessions
    destroy     delete the key
    sweep       delete keys that came back (a restored backup), and retire tasks that were made in
                between; the role `work` does this

The log records the erasure first, so the same command or the next sweep finishes an interrupted
one. Tables, jobs and exports never hold the person's words. Not covered: LIMITS, and events that
were recorded without a seal, which `look` counts.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.folds.erasures import (
    AdapterDependence,
    SealedTask,
    find_dependent_adapters,
    find_sealed_tasks,
    read_erasure_keys,
)
from consumers.folds.task_states import ERASED
from events.codec import decode, encode
from events.envelope import Envelope, derive_id, from_headers, utc_now
from events.errors import BadRecord, KintsugiError, SchemaAhead
from events.learning import Decision, PersonErased, TaskRetired
from events.log import EventLog, Record, now_ms, read_all
from events.rollouts import CallStarted, RolloutEnded, has_unknown_model
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from daemon.core.app import App

LIMITS: Final = (
    "the weights of adapters that were trained on the person's rollouts stay as they are",
    "copies of the key store open what they are beside until they are destroyed as well",
    "what engines, proxies and the agent itself keep of their traffic is not ours",
    "names that the client chose (sessions, tasks) and the counts and labels of rollouts stay",
)
"""Data that an erasure does not reach; docs/privacy.md has more."""


class NoSuchKey(KintsugiError):
    """The key is neither in the store nor in the log."""


@dataclass(slots=True)
class PersonData:
    """The log's data about one person."""

    keyid: str | None
    """Id of the person's key; None if the person has no key, or no longer has one."""
    events: int = 0
    """Number of events sealed with the person's key."""
    rollouts: list[str] = field(default_factory=list)
    unsealed: int = 0
    """Number of the person's events that are in the log unsealed."""
    trimmed: int = 0
    """Number of events of all persons that were trimmed from the log."""
    adapters: list[AdapterDependence] = field(default_factory=list)
    leaning: int = 0
    """Number of other persons' calls whose first messages are stored in calls of this person."""
    readable_names: int = 0
    """Number of sealed events with names of tools or of a client's model in the readable head."""
    tasks: list[SealedTask] = field(default_factory=list)
    """Tasks that are made of the person's sessions, sealed with the key."""
    announced: bool = False
    """Whether the log already records the erasure."""

    @property
    def live_tasks(self) -> list[SealedTask]:
        """Return the tasks that new jobs may draw."""
        return [task for task in self.tasks if task.is_live]


def look(app: "App", person: str | None, keyid: str | None = None) -> PersonData:
    """Read the whole log for data about a person, or the owner of key `keyid`. Raise NoSuchKey."""
    app.settle()
    wanted = keyid
    if keyid is None and person is not None:
        key = app.keys.find_in_store(person)
        keyid = None if key is None else key.id
    held = PersonData(keyid, trimmed=sum(app.log.start(ROLLOUTS.name)))
    lost: set[str] = set()
    for record in _rollout_events(app.log):
        _count(held, record, person, lost)
    with app.reading() as connection:
        held.tasks = find_sealed_tasks(connection, {keyid} if keyid else ())
        names = {task.task for task in held.tasks}
        held.adapters = find_dependent_adapters(connection, held.rollouts, names)
        held.announced = keyid is not None and keyid in read_erasure_keys(connection)
    sealed = held.events or held.tasks or held.announced
    if wanted is not None and not (sealed or wanted in app.keys.ids()):
        raise NoSuchKey(
            f"key {wanted!r} is not in the key store and sealed no event of the log; name one that "
            "kintsugi log verify names"
        )
    return held


def announce(app: "App", held: PersonData) -> None:
    """Append PersonErased unless it is recorded, and TaskRetired for each of the person's tasks."""
    if held.keyid is None:
        return
    events: dict[str, Decision] = {}
    if not held.announced:
        events[_name_erasure(held.keyid)] = PersonErased(
            keyid=held.keyid, events=held.events, rollouts=len(held.rollouts)
        )
    _append(app, events | _retire(held.live_tasks))


def erase(app: "App", held: PersonData) -> None:
    """Announce the erasure, destroy the key, and fold the announcement into the tables."""
    announce(app, held)
    if held.keyid is None:
        return
    app.keys.destroy(held.keyid)
    app.settle()
    _retire_rest(app, {held.keyid})


def sweep(app: "App") -> int:
    """Destroy restored keys of erased persons, and retire tasks made of their sessions; return the
    number of keys destroyed."""
    with app.reading() as connection:
        erased = read_erasure_keys(connection)
    # Without erased persons, no key store is created.
    if not erased:
        return 0
    destroyed = sum(app.keys.destroy(keyid) for keyid in sorted(erased & app.keys.ids()))
    _retire_rest(app, erased)
    return destroyed


def _retire_rest(app: "App", keyids: Collection[str]) -> None:
    """Retire tasks that were proposed during the erasure."""
    with app.reading() as connection:
        tasks = find_sealed_tasks(connection, keyids)
    events = _retire([task for task in tasks if task.is_live])
    if events:
        _append(app, events)
        app.settle()


def _retire(tasks: Collection[SealedTask]) -> dict[str, Decision]:
    return {
        derive_id("erase", task.keyid, task.alias, task.task): TaskRetired(
            alias=task.alias, task=task.task, reason=ERASED
        )
        for task in tasks
    }


def _name_erasure(keyid: str) -> str:
    return derive_id("erase", keyid)


def _append(app: "App", events: dict[str, Decision]) -> None:
    entries = []
    for event, data in events.items():
        envelope = Envelope(
            id=event, type=data.TYPE, version=data.VERSION, subject=data.key(), time=utc_now()
        )
        entries.append(encode(envelope, data, now_ms()).entry)
    if entries:
        app.append(entries)


def _rollout_events(log: EventLog) -> Iterator[Record]:
    ends = log.end(ROLLOUTS.name)
    for partition, start in enumerate(log.start(ROLLOUTS.name)):
        for page in read_all(log, ROLLOUTS.name, partition, start, ends[partition]):
            yield from page


def _count(held: PersonData, record: Record, person: str | None, lost: set[str]) -> None:
    """Add a record to the counts of `held`. `lost` collects the calls that need the key."""
    try:
        envelope = from_headers(record.headers)
        sealed = held.keyid is not None and envelope.keyid == held.keyid
        if envelope.type == CallStarted.TYPE and held.keyid is not None:
            _count_dependents(held, record, sealed, lost)
        if person is not None and envelope.person == person:
            held.unsealed += 1
        elif sealed:
            held.events += 1
            held.readable_names += _has_readable_names(record, envelope.type)
        else:
            return
        if envelope.type == RolloutEnded.TYPE:
            data = decode(record, content=False).data
            assert isinstance(data, RolloutEnded), "its envelope says so"
            held.rollouts.append(data.rollout)
    except (BadRecord, SchemaAhead):
        return  # a dead letter of the fold


def _has_readable_names(record: Record, kind: str) -> bool:
    """Return whether a sealed event has names in its readable head that newer events hide."""
    if kind not in (RolloutEnded.TYPE, CallStarted.TYPE):
        return False
    data = decode(record, content=False).data
    if isinstance(data, RolloutEnded):
        return bool(data.known_tools)
    assert isinstance(data, CallStarted), "its envelope says so"
    return has_unknown_model(data.base, data.policy)


def _count_dependents(held: PersonData, record: Record, sealed: bool, lost: set[str]) -> None:
    data = decode(record, content=False).data
    assert isinstance(data, CallStarted), "its envelope says so"
    if sealed:
        lost.add(data.call)
    elif data.parent in lost:
        lost.add(data.call)
        held.leaning += 1
