"""The lift wherever it is shown: status, page, doctor, metrics and the demo's report."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.core.app import App
from daemon.metrics import loop
from daemon.metrics.families import Sheet
from daemon.metrics.recent import Recent
from daemon.serving.lift import read_lifts
from daemon.status.doctor.serving import holdout
from daemon.status.page import read, render
from daemon.status.snapshot import situation
from daemon.status.stages import Mood, stops
from events.envelope import utc_now
from events.log import Entry
from events.rollouts import CallStarted, HoldoutDraw, RolloutEnded, Task
from ops.demo.report import lift_section
from tests.consumers.deciding import passed, routed
from tests.consumers.folding import entry
from tests.daemon.metrics.scene import labelled, say, series, settings_of


def session(number: int, held_out: bool, began: datetime, verdict: bool | None) -> list[Entry]:
    """A session that ended a minute after its draw."""
    name, policy = f"s{number}", "base" if held_out else "a"
    started = CallStarted(
        call=f"call-{name}", session=name, alias="agent", base="base", policy=policy,
        routed="drawn", holdout=HoldoutDraw(share=0.1, held_out=held_out),
    )  # fmt: skip
    over = RolloutEnded(
        rollout=f"rollout-{name}", alias="agent", base="base", policy=policy, source="live",
        session=name, success=verdict, task=Task(id="t"),
    )  # fmt: skip
    return [
        entry(started, started.call, began),
        entry(over, over.rollout, began + timedelta(minutes=1)),
    ]


def home(folder: Path, every: int, judged: bool = True) -> App:
    """A home that promoted, and in which each `every`-th session is held out: it succeeds in half
    of the cases, the others always. `judged`: whether held-out sessions are judged."""
    app = App(settings_of(folder))
    say(app, *passed("a"), routed("promoted", {"a": 1.0}, holdout=0.1))
    later = utc_now() + timedelta(seconds=1)
    entries = list[Entry]()
    for number in range(400):
        held_out = number % every == 0
        verdict = (number // every) % 2 == 0 if held_out else True
        began = later + timedelta(seconds=number)
        entries += session(number, held_out, began, verdict if judged or not held_out else None)
    app.append(entries)
    app.settle()
    return app


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with home(tmp_path_factory.mktemp("right") / "home", every=10) as app:
        yield app


def metrics(app: App) -> dict[Any, float]:
    sheet = Sheet(loop.LOOP)
    loop.read(app, sheet)
    return series(sheet.metrics())


def test_status_says_what_was_won_for_each_agent(right: App) -> None:
    (lift,) = situation(right)["lift"]
    assert lift["alias"] == "agent"
    assert (lift["holdout"]["sessions"], lift["holdout"]["success"]) == (40, 0.5)
    assert (lift["loop"]["sessions"], lift["loop"]["judged"], lift["loop"]["success"]) == (
        360, 360, 1,
    )  # fmt: skip
    assert lift["difference"] == 0.5
    assert 0 < lift["low"] < 0.5 < lift["high"] < 1
    assert lift["shares_ok"]
    assert lift["judged_ok"]


def test_a_route_shows_the_shares_of_all_sessions_with_those_held_out(right: App) -> None:
    parts = [
        (line["adapter"], line["share"], line["holdout"]) for line in situation(right)["routes"]
    ]
    assert parts == [("a", 0.9, False), (None, 0.1, True)]
    found = metrics(right)
    weights = {
        slot: found[labelled("kintsugi_route_weight_ratio", alias="agent", slot=slot)]
        for slot in ("base", "promoted")
    }
    assert weights == {"base": 0.1, "promoted": 0.9}


def test_page_doctor_metrics_and_the_demos_report_say_the_same(right: App) -> None:
    content = read(right)
    route = stops(content.document, utc_now())[-1]
    assert route.mood is Mood.WORKS
    assert "base: 10% held out" in route.facts
    sentence = next(fact for fact in route.facts if fact.startswith("lift of agent since"))
    assert "+50.0 points of success" in sentence
    assert "What was won since the first promotion" in render(content)
    ok, detail = holdout(right)
    assert (ok, detail) == (True, sentence)
    found = metrics(right)
    assert found[labelled("kintsugi_lift_ratio", alias="agent", bound="difference")] == 0.5
    assert found[labelled("kintsugi_holdout_sessions", alias="agent", arm="holdout")] == 40
    assert found[labelled("kintsugi_holdout_mismatch", alias="agent", of="sessions")] < 100
    assert sentence in lift_section({"lift": content.document["lift"][0]})
    assert lift_section({"lift": None}) == ""


@pytest.mark.parametrize(
    ("every", "judged", "of", "why"),
    [
        (40, True, "sessions", "10 of 400 sessions of agent were held out where 10.0% should be"),
        (10, False, "judged", "0 of 34 held-out sessions of agent are judged, and 306 of 306"),
    ],
    ids=["shares are off", "judged shares are off"],
)
def test_shares_that_are_off_are_told_everywhere(
    tmp_path: Path, every: int, judged: bool, of: str, why: str
) -> None:
    with home(tmp_path / "home", every, judged) as app:
        ok, detail = holdout(app)
        assert not ok
        assert why in detail
        route = stops(situation(app), utc_now())[-1]
        assert (route.mood, route.remedy) == (Mood.ATTENTION, "kintsugi doctor")
        mismatch = metrics(app)[labelled("kintsugi_holdout_mismatch", alias="agent", of=of)]
        assert mismatch >= 100


def test_without_a_holdout_nothing_is_said(tmp_path: Path) -> None:
    with App(settings_of(tmp_path / "home")) as app:
        say(app, *passed("a"), routed("promoted", {"a": 1.0}))
        assert situation(app)["lift"] == []
        assert holdout(app) == (True, "none")
        assert "What was won" not in render(read(app))


def test_metrics_read_the_lift_anew_after_a_minute(tmp_path: Path) -> None:
    now = 0.0
    lifts = Recent(read_lifts, lambda: now)
    with home(tmp_path / "home", every=10) as app:
        with app.reading() as connection:
            (before,) = lifts.read(connection)
        app.append(session(400, held_out=True, began=utc_now() + timedelta(hours=1), verdict=True))
        app.settle()
        with app.reading() as connection:
            assert lifts.read(connection) == [before]
            now = 60.0
            (after,) = lifts.read(connection)
    assert after.holdout.sessions == before.holdout.sessions + 1
