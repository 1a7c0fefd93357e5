"""Erasing a person: their key is destroyed, so nobody can read what it sealed, in any copy.

    look        what the log holds of a person, and what was learnt from it
    announce    PersonErased is in the log: from now on the key must not be there
    destroy     the key is gone
    sweep       keys that came back (a restored backup) go again; the role `work` does this

The log is told first, so whatever is killed in between is finished by the same command, or by the
next sweep. Nothing else has to be taken out: tables, jobs and exports never held what was said.

Not covered: events that were recorded before they were sealed, which `look` counts, and what
LIMITS names.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.folds.erasures import AdapterDependence, find_dependent_adapters, read_erasure_keys
from events.codec import decode, encode
from events.envelope import Envelope, derive_id, from_headers, utc_now
from events.errors import BadRecord, KintsugiError, SchemaAhead
from events.learning import PersonErased
from events.log import EventLog, Record, now_ms, read_all
from events.rollouts import CallStarted, RolloutEnded
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from daemon.core.app import App

LIMITS: Final = (
    "the weights of adapters that were trained on the person's rollouts stay as they are",
    "copies of the key store open what they are beside until they are destroyed as well",
    "what engines, proxies and the agent itself keep of their traffic is not ours",
    "names that the client chose (sessions, tasks) and the counts and labels of rollouts stay",
)
"""What an erasure does not reach; docs/privacy.md has more."""


class NoSuchKey(KintsugiError):
    """A key that is nowhere: neither in the store nor in the log."""


@dataclass(slots=True)
class PersonData:
    """What there is of a person."""

    keyid: str | None
    """None where nothing of them is sealed, or not any more."""
    events: int = 0
    """That their key sealed."""
    rollouts: list[str] = field(default_factory=list)
    unsealed: int = 0
    """Events of theirs that stand in the log as they were said."""
    trimmed: int = 0
    """Events that the log held once, whosever they were."""
    adapters: list[AdapterDependence] = field(default_factory=list)
    leaning: int = 0
    """Calls of others that were stored as what they add to calls of this person."""
    announced: bool = False
    """Whether the log says already that they were erased."""


def look(app: "App", person: str | None, keyid: str | None = None) -> PersonData:
    """What the log holds of a person, or of whoever has this key. Reads all of it. Raises
    NoSuchKey."""
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
        held.adapters = find_dependent_adapters(connection, held.rollouts)
        held.announced = keyid is not None and keyid in read_erasure_keys(connection)
    if wanted is not None and not (held.events or held.announced or wanted in app.keys.ids()):
        raise NoSuchKey(
            f"key {wanted!r} is not in the key store and sealed no event of the log; name one that "
            "kintsugi log verify names"
        )
    return held


def announce(app: "App", held: PersonData) -> None:
    """Have the log say that this key must not be there; once."""
    if held.keyid is None or held.announced:
        return
    data = PersonErased(keyid=held.keyid, events=held.events, rollouts=len(held.rollouts))
    envelope = Envelope(
        id=derive_id("erase", held.keyid),
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=utc_now(),
    )
    app.append([encode(envelope, data, now_ms()).entry])


def erase(app: "App", held: PersonData) -> None:
    """Announce, destroy, and bring the tables up to it."""
    announce(app, held)
    if held.keyid is not None:
        app.keys.destroy(held.keyid)
    app.settle()


def sweep(app: "App") -> int:
    """Destroy keys of erased persons that are there again; how many were."""
    with app.reading() as connection:
        erased = read_erasure_keys(connection)
    # Nobody was erased: a home without persons gets no key store from this.
    if not erased:
        return 0
    return sum(app.keys.destroy(keyid) for keyid in sorted(erased & app.keys.ids()))


def _rollout_events(log: EventLog) -> Iterator[Record]:
    ends = log.end(ROLLOUTS.name)
    for partition, start in enumerate(log.start(ROLLOUTS.name)):
        for page in read_all(log, ROLLOUTS.name, partition, start, ends[partition]):
            yield from page


def _count(held: PersonData, record: Record, person: str | None, lost: set[str]) -> None:
    """Count an event; `lost` are the calls before it in its session that nobody can read whole."""
    try:
        envelope = from_headers(record.headers)
        sealed = held.keyid is not None and envelope.keyid == held.keyid
        if envelope.type == CallStarted.TYPE and held.keyid is not None:
            _count_dependents(held, record, sealed, lost)
        if person is not None and envelope.person == person:
            held.unsealed += 1
        elif sealed:
            held.events += 1
        else:
            return
        if envelope.type == RolloutEnded.TYPE:
            data = decode(record, content=False).data
            assert isinstance(data, RolloutEnded), "its envelope says so"
            held.rollouts.append(data.rollout)
    except (BadRecord, SchemaAhead):
        return  # a dead letter of the fold


def _count_dependents(held: PersonData, record: Record, sealed: bool, lost: set[str]) -> None:
    data = decode(record, content=False).data
    assert isinstance(data, CallStarted), "its envelope says so"
    if sealed:
        lost.add(data.call)
    elif data.parent in lost:
        lost.add(data.call)
        held.leaning += 1
