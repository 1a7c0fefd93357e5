"""`kintsugi adapters` and `kintsugi route` as scripts and people meet them."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.replica import Replica
from events.codec import decode
from events.files import UNFINISHED
from events.serving import AdapterProduced, AdapterStaged, OperatorActed, RouteChanged
from ops.random_adapters import Adapters
from tests.daemon.commands import environment, start
from tests.daemon.conftest import Kintsugi
from tests.daemon.serving.homes import Restartable


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restartable]:
    """An embedded engine, the one that the settings name."""
    started = Restartable(Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT))
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", json.dumps([{"url": started.url}]))
    yield started
    started.stop()


def decided() -> list[Any]:
    with App(load()) as app:
        return [decode(record).data for record in app.spool.read("learning", 0, 0)]


def loaded(engine: Restartable) -> list[str]:
    with Replica(engine.url) as replica:
        return sorted(replica.list_models().adapters)


def test_without_an_adapter_there_is_a_hint_of_how_to_get_one(
    home: Path, kintsugi: Kintsugi
) -> None:
    found = kintsugi("adapters", "ls", "--json")
    assert (found.code, found.json) == (0, [])
    assert "kintsugi adapters push" in found.err
    assert kintsugi("route", "show", "--json").json == []
    assert kintsugi("adapters", "show", "x").err.startswith("kintsugi: there is no adapter 'x'")


def test_from_a_folder_to_a_route_and_back(
    engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    who = ("--actor", "ada", "--reason", "tried by hand")
    pushed = kintsugi("adapters", "push", adapters["v1"], "--capability", "cancel", "--json", *who)
    assert pushed.code == 0, pushed.err
    name = pushed.json["adapter"]
    refused = kintsugi("adapters", "promote", name)
    assert (refused.code, "passed no gate" in refused.err) == (1, True)
    promoted = kintsugi("adapters", "promote", name, "--override", "--json", *who)
    assert promoted.code == 0, promoted.err
    assert promoted.json["gateways"] == {"live": 0, "behind": 0}
    (line,) = kintsugi("route", "show", "--json").json
    assert set(line) >= {"alias", "adapter", "share", "since", "cause"}
    assert (line["alias"], line["adapter"], line["share"]) == ("agent", name, 1.0)
    (row,) = kintsugi("adapters", "ls", "--json").json
    assert list(row)[:6] == ["adapter", "state", "base", "capability", "job", "gate"]
    assert (row["state"], row["base"], row["capability"]) == ("promoted", "reference", "cancel")
    status = kintsugi("status", "--json").json
    assert (status["routes"], status["adapters"]) == ([line], [row])
    rolled = kintsugi("adapters", "rollback", "--json", *who)
    assert rolled.code == 0, rolled.err
    assert [part["adapter"] for part in rolled.json["route"]] == [None]
    shown = kintsugi("adapters", "show", name[:10], "--json").json
    assert [step["state"] for step in shown["steps"]] == [
        "produced", "staged", "promoted", "rolled_back",
    ]  # fmt: skip
    acts = [data for data in decided() if isinstance(data, OperatorActed)]
    assert [act.action for act in acts] == [
        "adapters push", "adapters promote", "adapters rollback",
    ]  # fmt: skip
    assert {(act.actor, act.reason) for act in acts} == {("ada", "tried by hand")}
    for command in (("adapters", "ls"), ("adapters", "show", name), ("route", "show"), ("status",)):
        told = kintsugi(*command)
        assert (told.code, name[:10] in told.out or "reference" in told.out) == (0, True)


def test_shares_that_are_no_route_are_wrong_usage(home: Path, kintsugi: Kintsugi) -> None:
    for shares in (["a=0.5"], ["a=0.5", "base=0.6"], ["a"], ["a=x"], ["a=-1", "base=2"]):
        found = kintsugi("route", "set", "agent", *shares)
        assert found.code == 2, shares
    assert kintsugi("adapters", "promote", "a", "--share", "1.5").code == 2


def test_a_route_by_hand_names_the_base_as_base(
    engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    name = kintsugi("adapters", "push", adapters["v1"], "--json").json["adapter"]
    found = kintsugi("route", "set", "agent", f"{name}=0.5", "base=0.5", "--json")
    assert found.code == 0, found.err
    assert {part["adapter"]: part["share"] for part in found.json["route"]} == {
        name: 0.5, None: 0.5,
    }  # fmt: skip


def test_an_engine_that_is_away_makes_it_unavailable(
    engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    name = kintsugi("adapters", "push", adapters["v1"], "--json").json["adapter"]
    engine.stop()
    assert kintsugi("adapters", "stage", name).code == 4
    assert kintsugi("adapters", "push", adapters["v2"]).code == 4


def test_work_reconciles_and_says_what_it_did(
    engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    name = kintsugi("adapters", "push", adapters["v1"], "--json").json["adapter"]
    kintsugi("adapters", "promote", name, "--override", "--reason", "it is good")
    engine.restart()
    done = kintsugi("work", "--once").json
    assert (done["loaded"], done["ended"]) == ([name], 0)
    engine.stop()
    told = kintsugi("work", "--once")
    assert "cannot be reached" in told.err
    assert told.json["troubles"]


def start_here(*arguments: str) -> "subprocess.Popen[str]":
    """A command in a process of its own, with the settings in force here."""
    return start(arguments, os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.long
@pytest.mark.processes
def test_a_command_that_is_killed_anywhere_ends_where_one_would_that_was_not(
    home: Path, engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    """Killed when the lock is taken, then ever later, while it copies, loads, proves, decides."""
    command = ("adapters", "push", str(adapters["v1"]), "--name", "v1", "--json")
    promote = ("adapters", "promote", "v1", "--override", "--reason", "it is good", "--json")
    for words in (command, promote):
        for later in (0.0, 0.02, 0.05, 0.1, 0.2):
            kill_in_the_middle(home, words, later)
        last = start_here(*words)
        out, err = last.communicate(timeout=120)
        assert last.returncode == 0, err
        assert json.loads(out)
    kintsugi("work", "--once")
    events = decided()
    assert sum(isinstance(data, AdapterProduced) for data in events) == 1
    routes = [data for data in events if isinstance(data, RouteChanged)]
    assert {tuple((p.adapter, p.share) for p in data.shares) for data in routes} == {(("v1", 1.0),)}
    assert {data.adapter for data in events if isinstance(data, AdapterStaged)} == {"v1"}
    assert loaded(engine) == ["v1"]
    assert not list((home / "adapters").glob(f"{UNFINISHED}*"))
    (row,) = kintsugi("adapters", "ls", "--json").json
    assert row["state"] == "promoted"
    assert kintsugi("rebuild", "--json").json["equal"] is True


def kill_in_the_middle(home: Path, words: tuple[str, ...], later: float) -> None:
    """SIGKILL so many seconds after it began to act, if it is not done before."""
    lock = home / "serving.lock"
    lock.unlink(missing_ok=True)
    process = start_here(*words)
    while process.poll() is None and not lock.exists():
        time.sleep(0.002)
    time.sleep(later)
    process.send_signal(signal.SIGKILL)
    process.communicate()


FULL = """
import resource, sys
from pathlib import Path
from daemon.adapters.adoption import adopt

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
adopt(Path(sys.argv[1]), Path(sys.argv[2]), None)
"""


@pytest.mark.processes
def test_a_disk_that_refuses_leaves_nothing_of_an_adapter(
    tmp_path: Path, adapters: Adapters
) -> None:
    """Files may not grow beyond 2,000 bytes, so the weights do not fit."""
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(adapters["v1"]), str(store)],
        env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "nothing of it was left behind" in done.stderr
    assert list(store.iterdir()) == []


def test_where_the_log_refuses_nothing_is_loaded(
    home: Path, engine: Restartable, adapters: Adapters, kintsugi: Kintsugi
) -> None:
    name = kintsugi("adapters", "push", adapters["v1"], "--json").json["adapter"]
    before, unlimited = decided(), resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited))
    try:
        refused = kintsugi("adapters", "stage", name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    assert refused.code == 4, refused.err
    assert (loaded(engine), decided()) == ([], before)
    assert kintsugi("adapters", "stage", name).code == 0


def test_while_the_database_is_away_nothing_is_decided(
    home: Path,
    engine: Restartable,
    adapters: Adapters,
    kintsugi: Kintsugi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = kintsugi("adapters", "push", adapters["v1"], "--json").json["adapter"]
    before = decided()
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    for words in (("promote", name, "--override", "--reason", "now"), ("rollback",)):
        assert kintsugi("adapters", *words).code == 4
    monkeypatch.delenv("KINTSUGI_DATABASE_URL")
    assert (loaded(engine), decided()) == ([], before)
