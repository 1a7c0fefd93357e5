"""The status page: seven stops out of one document, and what a browser makes of it."""

import asyncio
import copy
import html
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.status.page import Read, StatusPage, Unread, read, render
from daemon.status.stages import Mood, Stop, ago, stops
from ops.browser import BrowserUnavailable, dom, program
from producers.gateway.privacy.keys import hash_key
from tests.conftest import missing
from tests.consumers.deciding import routed
from tests.daemon.conftest import Kintsugi
from tests.daemon.gateway.program import Program, running
from tests.daemon.metrics.scene import ADAPTER, once_round, say, serve_panel, settings_of

NAMES = ("rollout", "event", "projection", "cycle", "job", "adapter", "route")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = "kg-watcher"
PATIENCE = 30.0
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A home in which the loop has been round once."""
    with App(settings_of(tmp_path / "home")) as made:
        once_round(made)
        yield made


@pytest.fixture
def found(app: App) -> Read:
    """What its page shows."""
    return read(app)


def stop(document: dict[str, Any], name: str) -> Stop:
    """One stop of a document."""
    return next(one for one in stops(document, NOW) if one.name == name)


def changed(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The document with other fields; those that are objects are changed within."""
    made = copy.deepcopy(document)
    for name, value in fields.items():
        made[name] = made[name] | value if isinstance(value, dict) and made[name] else value
    return made


def test_there_are_seven_stops_in_the_order_of_the_data(found: Read) -> None:
    made = stops(found.document, found.at)
    assert tuple(one.name for one in made) == NAMES
    assert not any(one.mood is Mood.ATTENTION for one in made)
    assert all(one.remedy is None for one in made)
    assert stop(found.document, "job").headline.startswith("trained ")
    assert stop(found.document, "adapter").headline == f"{ADAPTER}: canary"
    assert "watch" in stop(found.document, "cycle").headline


def test_a_home_without_anything_rests(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path / "empty")) as app:
        page = read(app)
    moods = {one.name: one.mood for one in stops(page.document, page.at)}
    assert set(moods.values()) <= {Mood.RESTS, Mood.WORKS}
    assert moods["job"] is moods["adapter"] is moods["route"] is moods["event"] is Mood.RESTS
    assert "0 rollouts" in render(page)


@pytest.mark.parametrize(
    ("name", "fields", "remedy"),
    [
        ("event", {"log": {"error": "broker:9092 is away"}, "streams": None, "lag": None},
         "kintsugi doctor"),
        ("projection", {"projection": {"halted": ["a later version"]}}, "kintsugi doctor"),
        ("projection", {"projection": {"gaps": ["a lacks 3"]}}, "kintsugi ship"),
        ("projection", {"dead_letters": 2}, "kintsugi dlq list"),
        ("cycle", {"leader": {"holder": "h", "epoch": 1, "seconds_left": -3.0}},
         "kintsugi schedule"),
        ("job", {"job": {"outcome": "failed", "reason": "no memory"}}, "kintsugi jobs show"),
    ],
)  # fmt: skip
def test_what_somebody_has_to_mend_says_so_and_how(
    found: Read, name: str, fields: dict[str, Any], remedy: str
) -> None:
    made = stop(changed(found.document, **fields), name)
    assert made.mood is Mood.ATTENTION
    assert made.remedy is not None
    assert made.remedy.startswith(remedy)


def test_an_open_job_and_a_leader_are_at_work(found: Read) -> None:
    fields = {
        "job": {"outcome": None, "ended": None},
        "leader": {"holder": "host:1", "epoch": 1, "seconds_left": 9.0},
    }
    document = changed(found.document, **fields)
    assert stop(document, "job").mood is Mood.WORKS
    assert "reward 0.300" in stop(document, "job").facts
    assert "led by host:1" in stop(document, "cycle").facts


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (None, "at an unknown time"),
        ("2026-05-01T11:59:30Z", "30 s ago"),
        ("2026-05-01T11:30:00Z", "30 min ago"),
        ("2026-05-01T02:00:00Z", "10 h ago"),
        ("2026-04-28T12:00:00Z", "3 d ago"),
        ("2026-05-01T12:00:09Z", "0 s ago"),
    ],
)
def test_ages_have_one_unit(time: str | None, said: str) -> None:
    assert ago(time, NOW) == said


def test_what_others_wrote_is_text(found: Read) -> None:
    evil = '<script>alert("x")</script>'
    document = changed(found.document, home=evil, cycle={"ended_because": evil, "outcome": "done"})
    for one in document["routes"]:
        one["reason"] = evil
    page = render(Read(document, found.patterns, found.at), trouble=evil)
    assert "<script" not in page
    assert html.escape(evil) in page.replace("&#34;", "&quot;")


def test_what_is_lacking_and_taught_and_who_won_what_is_in_status_and_on_the_page(
    app: App, kintsugi: Kintsugi
) -> None:
    serve_panel(app)
    told = " ".join(kintsugi("--home", app.settings.home, "status").out.split())
    assert f"taught of agent cancelling serving, {ADAPTER}" in told
    assert (
        f"members of panel-1 cancelling: {ADAPTER}, 50% of the last day's sessions, 1 of 2 judged "
        "passed, gate 50.0% to 75.0%; no skill: base, 50% of the last day's sessions, 0 of 1 "
        "judged passed"
    ) in told
    content = read(app)
    (skill,) = content.document["skills"]
    assert (skill["skill"], skill["taught"], skill["adapter"]) == ("cancelling", "serving", ADAPTER)
    page = re.sub(r"<[^>]+>|\s+", " ", render(content)).split("What it cannot do")[1]
    text = " ".join(page.split())
    assert "agent cancelling +0.50 30 % serving" in text
    assert (
        f"agent panel-1, promoted cancelling {ADAPTER} 2 50 % 1 of 2 judged 50.0 % 75.0 % "
        "agent panel-1, promoted none found base 2 50 % 0 of 1 judged"
    ) in text


def test_the_page_is_never_newer_than_it_says(tmp_path: Path) -> None:
    """A database that goes away leaves the last page, which says so."""
    home = tmp_path / "home"
    with App(settings_of(home)) as app:
        once_round(app)
    page = StatusPage(settings_of(home))

    async def twice() -> tuple[str, str]:
        first = await page.text()
        (home / "kintsugi.db").write_bytes(b"no database at all, and longer than a header" * 100)
        page._at = float("-inf")
        return first, await page.text()

    first, second = asyncio.run(twice())
    assert "This is what was read last" not in first
    assert "This is what was read last" in second
    assert ADAPTER in second


def test_a_page_that_never_was_is_no_page(tmp_path: Path) -> None:
    (tmp_path / "kintsugi.db").write_bytes(b"no database at all, and longer than a header" * 100)
    with pytest.raises(Unread, match="kintsugi doctor"):
        asyncio.run(StatusPage(Settings(home=tmp_path)).text())


@pytest.mark.processes
def test_with_keys_the_page_asks_for_one(tmp_path: Path) -> None:
    keys = "".join(
        f'[[gateway.keys]]\nname = "{name}"\nsha256 = "{hash_key(name)}"\nscopes = ["{scope}"]\n'
        for name, scope in ((KEY, "status"), ("kg-agent", "call"))
    )
    with running(tmp_path / "home", [NOWHERE], toml=keys) as gateway:
        url = f"{gateway.url}/status"
        refused = httpx2.get(url)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
        assert httpx2.get(url, headers=basic("kg-agent")).status_code == 403
        assert httpx2.get(url, headers={"authorization": "Basic !"}).status_code == 401
        assert httpx2.get(url, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        answer = httpx2.get(url, headers=basic(KEY))
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def basic(key: str) -> dict[str, str]:
    """What a browser sends that was given a key as the password."""
    return {"authorization": f"Basic {b64encode(f'me:{key}'.encode()).decode()}"}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.browser
def test_a_browser_shows_the_loop_as_it_moves(app: App) -> None:
    try:
        program()
    except BrowserUnavailable as error:
        missing(str(error))
    with running(app.settings.home, [NOWHERE]) as gateway:
        until = time.monotonic() + PATIENCE
        # Until the first reading is there, the page is an error of one line.
        while not (before := shown(gateway)):
            assert time.monotonic() < until
        assert tuple(before) == NAMES
        assert "agent-1: 25%" in before["route"]
        say(app, routed("promoted", {ADAPTER: 1.0}))
        until = time.monotonic() + PATIENCE
        while "agent-1: 100%" not in (after := shown(gateway))["route"]:
            assert time.monotonic() < until, after["route"]
    assert "agent-1: promoted" in after["adapter"]


def shown(gateway: Program) -> dict[str, str]:
    """The texts of the seven stops in a browser, by their names."""
    page = dom(f"{gateway.url}/status")
    assert "<script" not in page
    found = re.findall(r'<li class="\w+" id="(\w+)">(.*?)</li>', page, re.DOTALL)
    return {name: re.sub(r"<[^>]+>|\s+", " ", body) for name, body in found}
