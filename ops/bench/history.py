"""What a longer history costs the reads of every tick and of a status page.

    python -m ops.bench.history [--rollouts 20000]

Method. Rollouts of the mix of ops/mix.py, and as many closed sessions of one call, are folded into
two homes on SQLite, all of them and a tenth, and a person closes a round over each. Each question
is asked ASKED times of both, in turn, and the cheapest answer counts, in processor time: `ms` of
all rollouts, and `all_over_tenth`, 1 where a longer history costs nothing more and 10 where all of
it is read.

    agents       which agents there are and on which base (role `schedule`, every tick)
    newest       the time of their newest rollouts (role `schedule`, every scrape)
    unread       what the scheduler decides on, of an agent none of whose rollouts a cycle has read
    situation    `kintsugi status` and the status page, of the same
    sessions     which sessions are to be closed (role `work`, every two seconds); here none is
    scheduling   what the scheduler decides on once a cycle has read them, and has NEW more
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from consumers.position import position
from consumers.reads import agents
from consumers.reads.scheduling import scheduling
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.sessions.closing import SOURCE, close_sessions
from daemon.status.snapshot import situation
from events.codec import encode
from events.envelope import Envelope, derive_id, new_id, utc_now
from events.learning import CycleStarted, Decision, LeaderClaimed, PatternsDiagnosed
from events.log import Entry, now_ms
from events.rollouts import CallEnded, CallStarted, EventData, RolloutEnded, SessionEnded
from ops.mix import PERIOD, event

ASKED: Final = 5
NEW: Final = 100
_APPENDED: Final = 2_000


def home(folder: Path, rollouts: int) -> App:
    """A home whose tables hold so many rollouts, counted by one round that a person closed."""
    agent = {"alias": "agent", "environment": "shop"}
    settings = {"home": folder, "log": {"durability": "process"}, "agents": [agent]}
    app = App(Settings.model_validate(settings))
    _append(app, range(rollouts))
    app.diagnose("diagnose")
    return app


def read_by_a_cycle(app: App, rollouts: int) -> None:
    """Have a cycle read the so many rollouts of a home, and NEW come after it."""
    with app.reading() as connection:
        reached = position(connection)
        (pair,) = agents.present(connection)
    cycle = derive_id("cycle", *pair, "1")
    started = CycleStarted(
        cycle=cycle, alias=pair.alias, base=pair.base, number=1, environment="shop",
        trigger="rollouts", reason=f"{rollouts} new rollouts", position=reached,
    )  # fmt: skip
    read = PatternsDiagnosed(trigger="schedule", position=reached, cycle=cycle)
    claim = LeaderClaimed(epoch=1, holder="bench")
    app.append([_entry(data, epoch=1) for data in (claim, started, read)])
    _append(app, range(rollouts, rollouts + NEW))
    app.settle()


def _append(app: App, rollouts: range) -> None:
    place = PERIOD.index("rollout")
    for start in range(0, len(rollouts), _APPENDED):
        part = rollouts[start : start + _APPENDED]
        app.append([event(number * len(PERIOD) + place).entry for number in part])
        app.append([entry for number in part for entry in _session_entries(number)])


def _session_entries(number: int) -> Iterator[Entry]:
    """A session of one call, as it is when the role `work` has closed it."""
    session, call = f"closed-{number}", f"closed-{number}-call"
    ended = derive_id("ended", session)
    yield _entry(CallStarted(call=call, session=session, alias="agent", base="base", policy="base"))
    yield _entry(CallEnded(call=call, session=session, outcome="completed", finish_reason="stop"))
    yield _entry(SessionEnded(session=session, because="asked"), ended)
    yield _entry(
        RolloutEnded(
            rollout=derive_id(ended, "rollout"), alias="agent", base="base", policy="base",
            source=SOURCE, session=session, termination="asked", calls=(call,),
        )
    )  # fmt: skip


def _entry(data: EventData | Decision, name: str | None = None, epoch: int | None = None) -> Entry:
    named = new_id() if name is None else name
    envelope = Envelope(named, data.TYPE, data.VERSION, data.key(), utc_now(), epoch=epoch)
    return encode(envelope, data, now_ms()).entry


def present(app: App) -> object:
    """Read which agents there are."""
    with app.reading() as connection:
        return agents.present(connection)


def newest(app: App) -> object:
    """The times of their newest rollouts."""
    with app.reading() as connection:
        return agents.newest_rollouts(connection)


def numbers(app: App) -> object:
    """What the scheduler decides on."""
    with app.reading() as connection:
        (pair,) = agents.present(connection)
        return scheduling(connection, *pair, utc_now())


def sessions(app: App) -> object:
    """Close the sessions that are due."""
    return close_sessions(app, utc_now())


QUESTIONS: Final[dict[str, Callable[[App], object]]] = {
    "agents": present,
    "newest": newest,
    "unread": numbers,
    "situation": situation,
    "sessions": sessions,
}


def measure(folder: Path, rollouts: int) -> dict[str, Any]:
    """The benchmark as one document."""
    counts = rollouts // 10, rollouts
    with ExitStack() as opened:
        tenth, whole = (opened.enter_context(home(folder / str(count), count)) for count in counts)
        costs = {name: _cheapest(what, tenth, whole) for name, what in QUESTIONS.items()}
        for app, count in zip((tenth, whole), counts, strict=True):
            read_by_a_cycle(app, count)
        costs["scheduling"] = _cheapest(numbers, tenth, whole)
    return {
        "benchmark": "history",
        "rollouts": rollouts,
        "ms": {name: round(1000 * more, 2) for name, (_, more) in costs.items()},
        "all_over_tenth": {name: round(more / less, 2) for name, (less, more) in costs.items()},
    }


def _cheapest(what: Callable[[App], object], tenth: App, whole: App) -> tuple[float, float]:
    taken = [
        (_processor_seconds(what, tenth), _processor_seconds(what, whole)) for _ in range(ASKED)
    ]
    return min(less for less, _ in taken), min(more for _, more in taken)


def _processor_seconds(what: Callable[[App], object], app: App) -> float:
    began = time.process_time()
    what(app)
    return time.process_time() - began


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        print(json.dumps(measure(Path(folder), options.rollouts), indent=2))


if __name__ == "__main__":
    main()
