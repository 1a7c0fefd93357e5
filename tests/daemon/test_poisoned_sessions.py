"""Sessions that cannot become rollouts stop no other one, and nothing else."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from consumers.batch import Staging
from consumers.folds import rollouts
from consumers.folds.record import FoldInput
from daemon.config.settings import Environments, Privacy, Settings, load
from daemon.core.app import App
from daemon.core.isolation import PARTS, Breaks
from daemon.roles.worker import Worker
from daemon.serving.fleet import open_fleet
from daemon.sessions.closing import CloseResult, close_sessions, failure
from events.errors import LogUnavailable
from events.log import Entry
from events.privacy.keys import KeysUnavailable
from ops.faults.session_poison import (
    KINDS,
    LARGE,
    START,
    Talk,
    good,
    incomplete,
    noise,
    restore,
    session_with_bad_environment,
)
from tests.daemon.conftest import Kintsugi
from tests.envs.test_registry import write_environment

LATER = START + timedelta(hours=1)


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(Settings(home=home)) as opened:
        yield opened


def letters(kintsugi: Kintsugi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kintsugi("dlq", "list", "--json").json
    return found


def events(kintsugi: Kintsugi, kind: str) -> list[dict[str, Any]]:
    lines = kintsugi("log", "cat", "rollouts", "--json").out.rstrip().split("\n")
    return [one for one in map(json.loads, lines) if one["type"] == kind]


@pytest.mark.parametrize(
    "kind",
    [one for one in KINDS if one is not session_with_bad_environment],
    ids=lambda one: one.__name__,
)
def test_a_session_that_cannot_be_closed_is_a_dead_letter_and_stops_no_other(
    app: App, kintsugi: Kintsugi, kind: Callable[[App, str], list[Entry]]
) -> None:
    app.append([*good(app, "before"), *kind(app, "bad"), *good(app, "after", 1)])
    closed = close_sessions(app, LATER)
    assert closed.rollouts == 2
    assert [(one.session, one.error) for one in closed.failures] == [("bad", KINDS[kind])]
    app.append(good(app, "later", 10))
    again = close_sessions(app, LATER)
    assert (again.rollouts, again.failures, again.troubles) == (1, (), ())
    (letter,) = letters(kintsugi)
    assert (letter["stream"], letter["type"]) == ("rollouts", "ClosingFailed")
    assert letter["reason"].startswith("session bad: ")
    assert len(events(kintsugi, "ClosingFailed")) == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_session_is_closed_once_its_cause_was_mended(app: App, kintsugi: Kintsugi) -> None:
    """One whose key came back with a backup; the other one stays what it is."""
    talk = Talk(app, "sealed", person="ada")
    app.append([*talk.call("a", 0), *talk.over(5), *incomplete(app, "bad")])
    held = app.keys.find_in_store("ada")
    assert held is not None
    app.keys.destroy(held.id)
    assert len(close_sessions(app, LATER).failures) == 2
    assert kintsugi("dlq", "retry", "--json").code == 1, "nothing was mended"
    assert len(letters(kintsugi)) == 2
    restore(app, held)
    retried = kintsugi("dlq", "retry", "--json")
    assert retried.code == 3, retried.err
    assert [(one["foldable"], one["recorded"]) for one in retried.json] in (
        [(True, True), (False, False)], [(False, False), (True, True)],
    )  # fmt: skip
    (left,) = letters(kintsugi)
    assert left["reason"].startswith("session bad: ")
    (made,) = events(kintsugi, "RolloutEnded")
    assert made["data"]["calls"] == ["sealed/a"]
    assert kintsugi("dlq", "retry", "--json").code == 1
    assert len(events(kintsugi, "RolloutEnded")) == 1
    assert kintsugi("status", "--json").json["dead_letters"] == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_what_is_said_after_a_session_was_set_aside_is_a_rollout_of_its_own(
    app: App, kintsugi: Kintsugi
) -> None:
    app.append(incomplete(app, "bad"))
    close_sessions(app, LATER)
    talk = Talk(app, "bad")
    app.append([*talk.call("b", 20), *talk.over(25)])
    assert close_sessions(app, LATER).rollouts == 1
    assert close_sessions(app, LATER).failures == ()
    (made,) = events(kintsugi, "RolloutEnded")
    assert (made["data"]["calls"], made["data"]["forks"]) == (["bad/b"], [])


def test_where_the_key_store_is_away_sealed_sessions_wait_and_others_do_not(
    app: App, kintsugi: Kintsugi, home: Path
) -> None:
    sealed = [Talk(app, f"sealed {number}", person="ada") for number in range(3)]
    for talk in sealed:
        app.append([*talk.call("a", 0), *talk.over(5)])
    app.append(good(app, "open", 1))
    url = f"sqlite:///{home / 'away'}"
    (home / "away").mkdir()
    with App(Settings(home=home, privacy=Privacy(keys_url=url))) as away:
        closed = close_sessions(away, LATER)
        assert (closed.rollouts, closed.failures) == (1, ())
        (trouble,) = closed.troubles
        assert trouble.startswith("3 sessions wait: the key store")
    assert letters(kintsugi) == []
    assert close_sessions(app, LATER).rollouts == len(sealed)


def test_where_the_folder_of_all_blobs_is_away_its_sessions_wait(
    app: App, kintsugi: Kintsugi
) -> None:
    talk = Talk(app, "large")
    app.append([*talk.call("a", 0, noise(LARGE, "large")), *talk.over(5), *good(app, "small", 1)])
    blobs = app.home / "blobs"
    blobs.rename(app.home / "elsewhere")
    closed = close_sessions(app, LATER)
    assert (closed.rollouts, closed.failures) == (1, ())
    assert "check that the folder is there" in closed.troubles[0]
    blobs.mkdir()  # where a disk is mounted when it is there
    closed = close_sessions(app, LATER)
    assert (closed.rollouts, closed.failures) == (0, ())
    blobs.rmdir()
    (app.home / "elsewhere").rename(blobs)
    assert close_sessions(app, LATER).rollouts == 1
    assert letters(kintsugi) == []


@pytest.mark.parametrize("setting", ["environments", "benchmarks"])
def test_where_a_folder_of_the_settings_is_empty_what_names_a_task_waits(
    app: App, kintsugi: Kintsugi, home: Path, tmp_path: Path, setting: str
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    settings = {
        "environments": Settings(home=home, environments=Environments(paths=(mount,))),
        "benchmarks": Settings(home=home, benchmarks=mount),
    }
    talk = Talk(app, "visitor")
    app.append([*talk.call("a", 0, task="retail/base/0"), *talk.over(5), *good(app, "open", 1)])
    with App(settings[setting]) as waits:
        closed = close_sessions(waits, LATER)
        assert (closed.rollouts, closed.failures) == (1, ())
        assert f"{mount}" in closed.troubles[0]
    assert letters(kintsugi) == []
    assert close_sessions(app, LATER).rollouts == 1


def test_a_rollout_that_cannot_be_folded_is_appended_once(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = rollouts.FACTS["RolloutEnded"]

    def breaks(folding: FoldInput, data: Any, batch: Staging) -> None:
        if data.session == "bad":
            raise ValueError("a defect of ours")
        fold(folding, data, batch)

    monkeypatch.setitem(cast(dict[str, Any], rollouts.FACTS), "RolloutEnded", breaks)
    app.append([*good(app, "bad"), *good(app, "well", 1)])
    assert close_sessions(app, LATER).rollouts == 1
    assert close_sessions(app, LATER) == CloseResult(ended=0, rollouts=0)
    made = [one["data"]["session"] for one in events(kintsugi, "RolloutEnded")]
    assert sorted(made) == ["bad", "well"]
    (letter,) = letters(kintsugi)
    assert letter["type"] == "RolloutEnded"
    monkeypatch.undo()
    monkeypatch.setenv("KINTSUGI_HOME", str(app.home))
    assert kintsugi("dlq", "retry", "--json").json[0]["foldable"] is True


@pytest.mark.parametrize("what", ["file", "file and name", "folder"])
def test_a_path_in_the_task_of_a_call_runs_nothing(
    app: App, kintsugi: Kintsugi, tmp_path: Path, what: str
) -> None:
    folder, ran = tmp_path / "theirs", tmp_path / "ran"
    folder.mkdir()
    file = write_environment(folder / "x.py", "theirs", f"open({str(ran)!r}, 'w').close()\n")
    task = {"file": f"{file}", "file and name": f"{file}:theirs", "folder": f"{folder}"}[what]
    talk = Talk(app, "visitor")
    # All before the first slash names the environment, so a client may write the rest in many ways.
    for number, name in enumerate((task, task.replace("/", "\\"), "x.py", "../x.py", ".")):
        app.append([*talk.call(f"{number}", 10 * number, task=name), *talk.over(10 * number + 5)])
    monkey = Path.cwd()
    (monkey / "x.py").write_text(file.read_text())
    closed = close_sessions(app, LATER)
    assert (closed.rollouts, closed.failures) == (5, ())
    assert not ran.exists()
    assert {one["data"]["success"] for one in events(kintsugi, "RolloutEnded")} == {None}


def test_a_broken_environment_makes_dead_letters_of_those_who_name_its_tasks(
    home: Path, kintsugi: Kintsugi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise RuntimeError('half of it is written')\n")
    monkeypatch.setenv("KINTSUGI_ENVIRONMENTS__PATHS", str(file))
    with App(load(home=home)) as app:
        talk = Talk(app, "named")
        entries = [*talk.call("a", 0, task="mine/read/000000000000000001"), *talk.over(5)]
        app.append([*entries, *good(app, "open", 1)])
        closed = close_sessions(app, LATER)
        assert closed.rollouts == 1
        assert [one.error for one in closed.failures] == ["EnvironmentBroken"]
        (letter,) = letters(kintsugi)
        assert "half of it is written" in letter["reason"]
        write_environment(file, "mine")
        assert kintsugi("dlq", "retry", "--json").code == 0
        assert letters(kintsugi) == []
        file.rename(tmp_path / "away.py")
        app.append([*Talk(app, "again").call("a", 10, task="mine/read/1"), *good(app, "b", 11)])
        app.append(Talk(app, "again").over(16))
        waiting = close_sessions(app, LATER)
        assert (waiting.rollouts, waiting.failures) == (1, ())
        assert "environments.paths is not there" in waiting.troubles[0]


def test_errors_of_other_code_are_not_quoted(app: App, kintsugi: Kintsugi) -> None:
    """Their text may hold what a person said."""
    with pytest.raises(ValueError, match="Ada") as raised:
        int("the order #W0001 of Ada")
    failed = failure("s", raised.value)
    assert failed.error == "ValueError"
    assert "Ada" not in failed.reason
    assert "line" in failed.reason


def test_a_part_that_breaks_keeps_no_other_from_its_turn(app: App) -> None:
    """A key store that is away stops the sweep of erased persons' keys, and nothing else."""
    with open_fleet(app.settings) as fleet:
        worker = Worker(app, fleet)
        turns: list[str] = []
        breaks = Breaks()
        for name in PARTS:
            breaks.attempt(name, partial(turn, turns, name))
        assert turns == list(PARTS)
        assert breaks.failed == ["sessions", "keys"]
        assert "broke off" in breaks.troubles[0]
        app.append([*incomplete(app, "bad"), *good(app, "well")])
        worked = worker.work()
        worker.close()
    assert (worked.rollouts, worked.set_aside, worked.failed) == (1, ["SessionIncomplete"], [])
    assert "kintsugi dlq retry" in worked.troubles[0]


def turn(turns: list[str], name: str) -> None:
    turns.append(name)
    if name == "sessions":
        raise TypeError("a defect")
    if name == "keys":
        raise KeysUnavailable("the key store is away")


def test_what_is_wrong_with_the_log_is_raised() -> None:
    with pytest.raises(LogUnavailable):
        Breaks().attempt("sessions", away)


def away() -> None:
    raise LogUnavailable("the broker is down")
