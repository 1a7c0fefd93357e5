"""`kintsugi log trim`: nothing goes that an archive does not hold, or that is still to be read."""

from datetime import timedelta
from pathlib import Path

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from events.envelope import utc_now
from events.streams import ROLLOUTS
from ops.mix import PERIOD, mix
from tests.daemon.conftest import Kintsugi

SESSIONS = 3
LATER = utc_now() + timedelta(days=1)
END = LATER.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def talked(home: Path) -> Path:
    """A home with sessions of eight calls, none of which has ended, and rollouts."""
    with App(load()) as app:
        app.append(list(mix(SESSIONS * len(PERIOD))))
        app.settle()
    return home


def ended(home: Path) -> None:
    """Have all sessions become rollouts."""
    with App(load(home=home)) as app:
        assert close_sessions(app, LATER).rollouts == SESSIONS


def starts(home: Path) -> tuple[int, ...]:
    with App(load(home=home)) as app:
        return app.readable_log.start(ROLLOUTS.name)


def test_what_an_archive_holds_is_dropped_and_read_from_there(
    talked: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    ended(talked)
    live = kintsugi("rebuild", "--json").json
    archive = tmp_path / "kept"
    kintsugi("log", "export", archive)
    order = ("log", "trim", "--archive", archive, "--before", END, "--json")
    planned = kintsugi(*order, "--dry-run").json
    assert (planned["dropped"], sum(starts(talked))) == (0, 0)
    done = kintsugi(*order).json
    assert done["dropped"] == planned["would_drop"] == sum(starts(talked)) > 0
    assert {one["kept_for"] for one in done["partitions"]} == {None}
    assert kintsugi("rebuild").code == 4
    again = kintsugi("rebuild", "--archive", archive, "--json").json
    assert (again["hash"], again["equal"]) == (live["hash"], True)
    assert kintsugi("log", "verify").code == 0
    assert kintsugi(*order).json["dropped"] == 0

    kintsugi("diagnose")
    assert kintsugi("log", "export", archive).code == 0, "it goes on where it ended"
    assert "were dropped" in kintsugi("log", "trim", "--archive", archive, "--before", END).out


def test_an_open_session_keeps_its_calls(talked: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    kintsugi("log", "export", tmp_path / "kept")
    found = kintsugi(
        "log", "trim", "--archive", tmp_path / "kept", "--before", END, "--json"
    ).json["partitions"]  # fmt: skip
    held = [one for one in found if one["kept_for"] == "sessions"]
    assert held
    kept = starts(talked)
    ended(talked)  # reads every call from the log
    with App(load()) as app:
        for one in held:
            records = app.spool.read(ROLLOUTS.name, one["partition"], kept[one["partition"]], 1)
            assert dict(records[0].headers)["ce_type"] == b"CallStarted"


def test_what_came_after_the_export_stays(talked: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    ended(talked)
    kintsugi("log", "export", tmp_path / "kept")
    with App(load()) as app:
        before = app.spool.end(ROLLOUTS.name)
        app.append(list(mix(PERIOD.index("feedback") + 4, start=SESSIONS * len(PERIOD))))
        app.settle()
    ended_again = kintsugi("log", "trim", "--archive", tmp_path / "kept", "--before", END, "--json")
    reasons = {one["kept_for"] for one in ended_again.json["partitions"]}
    assert "archive" in reasons or "sessions" in reasons
    assert all(at <= end for at, end in zip(starts(talked), before, strict=True))


def test_an_archive_that_is_another_logs_or_damaged_drops_nothing(
    talked: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    ended(talked)
    kintsugi("log", "export", tmp_path / "kept")
    other = tmp_path / "other"
    with App(load(home=other)) as app:
        app.append(list(mix(len(PERIOD))))
        app.settle()
    foreign = kintsugi(
        "log", "trim", "--home", other, "--archive", tmp_path / "kept", "--before", END
    )
    assert (foreign.code, "is an archive of log" in foreign.err) == (4, True)
    segment = sorted((tmp_path / "kept" / "segments").iterdir())[-1]
    segment.write_bytes(segment.read_bytes()[:-9])
    damaged = kintsugi("log", "trim", "--archive", tmp_path / "kept", "--before", END)
    assert (damaged.code, segment.name in damaged.err) == (4, True)
    assert sum(starts(talked)) == sum(starts(other)) == 0
