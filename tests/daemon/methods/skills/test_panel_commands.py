"""`kintsugi panels`, and panels in the commands for adapters."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.status.doctor.serving import adapters as check_adapters
from daemon.status.page import read, render
from events.rollouts import MemberChoice, RolloutEnded, Task
from ops.random_adapters import Adapters
from producers.simulation import append_rollouts
from tests.daemon.conftest import Kintsugi
from tests.daemon.serving.homes import Restartable


@pytest.fixture
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restartable]:
    """An embedded engine, the one that the settings name."""
    engine = Restartable(Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT))
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", json.dumps([{"url": engine.url}]))
    yield engine
    engine.stop()


def record_rollout(app: App, panel: str, member: str) -> None:
    """A failed rollout of a trial, which a member of a panel played."""
    data = RolloutEnded(
        rollout="rollout-1", alias="agent", base="reference", policy=panel, source="trial",
        purpose="evaluate", task=Task(id="shop/return/1", capability="return"), success=False,
        member=MemberChoice(skill="refunds", adapter=member),
    )  # fmt: skip
    append_rollouts(app.spool, app.blobs, [data])
    app.settle()


@pytest.mark.long
def test_a_panel_is_composed_shown_served_and_exported(
    engine: Restartable, adapters: Adapters, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    first, second = (
        kintsugi("adapters", "push", adapters[name], "--json").json["adapter"]
        for name in ("v1", "v2")
    )
    words = ("panels", "compose", f"refunds={first}", "rest=base", "--router", second)
    undescribed = kintsugi(*words)
    assert (undescribed.code, "--describe refunds=TEXT" in undescribed.err) == (1, True)
    assert kintsugi(*words, "--describe", "refunds").code == 2
    described = (*words, "--describe", "refunds=pays money back", "--describe", "rest=anything")
    composed = kintsugi(*described, "--stage", "--json")
    assert composed.code == 0, composed.err
    name = composed.json["adapter"]
    assert (composed.json["state"], composed.json["path"]) == ("staged", "")
    assert [member["adapter"] for member in composed.json["panel"]["members"]] == [first, None]
    assert kintsugi(*described, "--json").json["adapter"] == name
    (line,) = kintsugi("panels", "ls", "--json").json
    assert (line["panel"], line["router"], line["calls"], line["doubts"]) == (name, second, 0, {})
    assert line["form"] == "labels"
    assert line["members"][0] == {"skill": "refunds", "adapter": first, "calls": 0, "share": None}
    alone = ("panels", "compose", f"refunds={first}", "--describe", "refunds=pays money back")
    waiting = kintsugi(*alone, "--json").json["adapter"]
    hints = kintsugi("panels", "ls").err
    assert f"give it up: kintsugi adapters retire {waiting}" in hints
    assert name not in hints, "it is staged"
    assert kintsugi("adapters", "retire", waiting).code == 0
    assert "give it up" not in kintsugi("panels", "ls").err
    shown = kintsugi("panels", "show", name[:12], "--json").json
    assert [option["label"] for option in shown["options"]] == ["A", "B", "C"]
    assert [step["state"] for step in shown["steps"]] == ["produced", "staged"]
    assert shown["rollouts"] == []
    with App(load()) as app:
        record_rollout(app, name, first)
    (share,) = kintsugi("panels", "show", name, "--json").json["rollouts"]
    assert (share["capability"], share["member"], share["skill"]) == ("return", first, "refunds")
    assert (share["rollouts"], share["judged"], share["passed"]) == (1, 1, 0)
    assert "return" in kintsugi("panels", "show", name).out
    assert kintsugi("panels", "show", first).code == 2
    promoted = kintsugi("adapters", "promote", name, "--override", "--reason", "tried", "--json")
    (route,) = promoted.json["route"]
    assert (route["adapter"], route["members"]) == (name, {"refunds": first, "rest": None})
    for command in (("panels", "ls"), ("panels", "show", name), ("adapters", "ls"),
                    ("adapters", "show", name), ("route", "show"), ("status",),
                    ("explain", "agent")):  # fmt: skip
        told = kintsugi(*command)
        assert (told.code, name in told.out) == (0, True), (command, told.err)
    assert f"refunds: {first}" in kintsugi("route", "show").out
    with App(load()) as app:
        assert check_adapters(app)[1].startswith("2 answer and are whole")
        assert f"refunds: {first}" in render(read(app))
    merged = kintsugi("adapters", "merge", name, first)
    assert (merged.code, "has no files to be merged; name its members" in merged.err) == (1, True)
    exported = kintsugi("adapters", "export", name, "--out", str(tmp_path / "out"), "--json")
    assert exported.code == 0, exported.err
    files = exported.json["files"]
    assert {f"{part}/adapter/adapter_config.json" for part in (first, second)} <= files.keys()
    document = json.loads((tmp_path / "out" / "panel.json").read_bytes())
    assert (document["panel"], document["router"]["adapter"]) == (name, second)
    assert (
        f"| refunds | `{first}` | pays money back |" in (tmp_path / "out" / "README.md").read_text()
    )
    assert kintsugi("adapters", "rollback").code == 0
    engine.restart()
    assert kintsugi("work", "--once").json["troubles"] == []
    assert kintsugi("rebuild", "--json").json["equal"] is True
