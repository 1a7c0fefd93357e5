"""Skills over recorded rollouts of shop: by a person's command, and in cycles."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.reads import read_comparisons
from consumers.reads import learning
from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import Agent, Improve, Log, Model, Models, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.skills.discovery import contrast_skills
from envs.task import TaskDefinition
from events.learning import JobEnded
from producers.simulation import Provenance, append_rollouts, build_rollout_event
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import SHOP, attempted, is_forgotten
from tests.daemon.cycle.test_planner import QUIET

HEALTHY = 2**24 + 100
"""Seeds of tasks of the weak kinds in which nothing is forgotten."""


def draw(first: int = 0) -> list[TaskDefinition]:
    weak = [
        SHOP.generate(kind, 2**24 + first + n) for kind in ("cancel", "fallback") for n in range(6)
    ]
    return weak + [
        SHOP.generate(kind, HEALTHY + first + n)
        for kind in ("cancel", "fallback", "question")
        for n in range(5)
    ]


def forgets(task: TaskDefinition) -> bool:
    return is_forgotten(task) and int(task.id.rpartition("/")[2]) < HEALTHY


def record(app: App, first: int = 0, names: Mapping[str, str] | None = None) -> None:
    """Rollouts of an agent that forgets the last call in the weak ones; `names`: kind -> what it is
    called instead, in ids too."""
    provenance = Provenance("agent", "base", "base", "live")
    for number, task in enumerate(draw(first)):
        kind = (names or {}).get(task.capability, task.capability)
        name = task.id.replace(f"/{task.capability}/", f"/{kind}/")
        renamed = task.model_copy(update={"id": name, "capability": kind})
        event = build_rollout_event(
            replace(attempted(task, forgets), task=renamed), SHOP, provenance,
            f"rollout-{first + number:03}",
        )  # fmt: skip
        append_rollouts(app.spool, app.blobs, [event])


@contextmanager
def opened(folder: Path, analyzer: str = "", **improve: Any) -> Iterator[App]:
    settings = Settings(
        home=folder, log=Log(durability="process"), scheduler=QUIET, improve=Improve(**improve),
        agents=(Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        models=Models(analyzer=Model(url=analyzer, model="big")),
    )  # fmt: skip
    with App(settings) as app:
        yield app


def run_cycle(app: App, leader: Leader, first: int) -> None:
    """A cycle over new rollouts, whose job fails."""
    record(app, first)
    app.settle()
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    assert leader.tick().troubles == []
    with app.reading() as connection:
        cycle = learning.open_cycle(connection, "agent")
    assert cycle is not None
    assert cycle.job is not None
    Decisions(app).take(JobEnded(job=cycle.job, outcome="failed"), "ended", cycle.job)
    leader.tick()


def test_a_person_finds_lists_and_shows_skills(home: Path, kintsugi: Kintsugi) -> None:
    with opened(home) as app:
        record(app)
        app.diagnose("diagnose")
    assert kintsugi("skills", "ls", "--json").json == []
    assert "kintsugi skills find" in kintsugi("skills", "ls").err
    found = kintsugi("skills", "find", "--actor", "ada", "--json")
    assert found.code == 0
    assert "compared 12 failures and 15 successes of agent, rounds 0 to 0" in found.err
    assert found.json == kintsugi("skills", "ls", "--alias", "agent", "--json").json
    by_name = {line["skill"]: line for line in found.json}
    assert set(by_name["cancel_order"]) == {
        "skill", "alias", "delta", "coverage", "selected", "of", "state", "taught", "why",
        "job", "adapter", "base",
    }  # fmt: skip
    assert {name: line["state"] for name, line in by_name.items()} == {
        "missing_write_action": "selected", "cancel_order": "contained",
        "exchange_item": "contained",
    }  # fmt: skip
    shown = kintsugi("skills", "show", "cancel_order", "--json").json
    assert shown["patterns"] == ["missing_write_action|cancel_order"]
    assert (shown["failures"], shown["successes"]) == (6, 5)
    assert kintsugi("rollouts", "show", shown["examples"][0]).code == 0
    assert "missing_write_action|cancel_order" in kintsugi("skills", "show", "cancel_order").out
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_wrong_input_is_a_sentence(home: Path, kintsugi: Kintsugi) -> None:
    nothing = kintsugi("skills", "find")
    assert (nothing.code, "no round is closed yet" in nothing.err) == (1, True)
    with opened(home) as app:
        record(app)
        app.settle()
    early = kintsugi("skills", "find")
    assert (early.code, "no round is closed yet" in early.err) == (1, True)
    with opened(home) as app:
        app.diagnose("diagnose")
    assert kintsugi("skills", "find").code == 0
    unknown = kintsugi("skills", "show", "flying")
    assert (unknown.code, "cancel_order" in unknown.err) == (2, True)
    for command in ("find", "ls"):
        other = kintsugi("skills", command, "--alias", "nobody")
        assert (other.code, "there are: agent" in other.err) == (2, True)
    elsewhere = kintsugi("skills", "show", "cancel_order", "--base", "other")
    assert (elsewhere.code, "no skill is called" in elsewhere.err) == (2, True)


def test_what_does_not_fail_any_more_is_absent(home: Path, kintsugi: Kintsugi) -> None:
    provenance = Provenance("agent", "base", "base", "live")
    with opened(home) as app:
        record(app)
        app.diagnose("diagnose")
    assert {line["state"] for line in kintsugi("skills", "find", "--json").json} == {
        "selected", "contained",
    }  # fmt: skip
    with opened(home) as app:
        for number in range(5):
            task = SHOP.generate("cancel", HEALTHY + 50 + number)
            event = build_rollout_event(
                attempted(task, forgets), SHOP, provenance, f"later-{number}"
            )
            append_rollouts(app.spool, app.blobs, [event])
        app.diagnose("diagnose")
    result = kintsugi("skills", "find", "--rounds", "1")
    assert "compared 0 failures and 5 successes of agent, rounds 1 to 1" in result.err
    assert {line["state"] for line in kintsugi("skills", "ls", "--json").json} == {"absent"}
    assert "lacks none, as of round 1" in " ".join(kintsugi("status").out.split())


def test_unjudged_rollouts_are_nothing_to_compare(home: Path, kintsugi: Kintsugi) -> None:
    provenance = Provenance("agent", "base", "base", "live")
    task = SHOP.generate("question", HEALTHY)
    with opened(home) as app:
        event = build_rollout_event(attempted(task), SHOP, provenance, "rollout-1")
        event = event.model_copy(update={"success": None, "reward": None})
        append_rollouts(app.spool, app.blobs, [event])
        app.diagnose("diagnose")
    result = kintsugi("skills", "find")
    assert (result.code, "no rollout of agent was judged until round 0" in result.err) == (1, True)


def test_a_cycle_compares_once_in_so_many_rounds(tmp_path: Path, kintsugi: Kintsugi) -> None:
    with opened(tmp_path, skills="watch", skills_rounds=2) as app:
        leader = Leader(app, CyclePlanner(app), Leadership(app))
        spans = []
        for first in (0, 30, 60, 90):
            run_cycle(app, leader, first)
            with app.reading() as connection:
                line = read_comparisons(connection).get(Pair("agent", "base"))
            spans.append(line and (line.since, line.round, line.failures))
    assert spans == [None, (0, 1, 24), (0, 1, 24), (2, 3, 24)]
    document = kintsugi("--home", tmp_path, "status", "--json").json
    (practice,) = document["improve"]["skills"]
    assert (practice["alias"], practice["setting"]) == ("agent", "off"), "that of this process"
    assert practice["lacking"] == ["missing_write_action"]
    assert practice["says"].startswith("off; lacks missing_write_action (contrast ")


def test_labels_of_the_environment_make_no_skill(tmp_path: Path) -> None:
    """Kinds that change names, among each other and to that of another kind, change no figure."""
    permuted = {"cancel": "question", "question": "fallback", "fallback": "return"}
    events = []
    for place, names in enumerate((None, permuted)):
        with opened(tmp_path / str(place)) as app:
            record(app, names=names)
            app.diagnose("diagnose")
            events.append(contrast_skills(app, Pair("agent", "base"), 0, 0))
    assert events[0] is not None
    assert events[0] == events[1]
    assert {item.skill for item in events[0].skills} >= {"cancel_order", "exchange_item"}


@pytest.mark.parametrize("setting", ["off", "watch"])
def test_status_says_what_is_found_or_why_nothing(
    tmp_path: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    with opened(tmp_path) as app:
        record(app)
        app.diagnose("diagnose")
    monkeypatch.setenv("KINTSUGI_IMPROVE__SKILLS", setting)
    told = kintsugi("--home", tmp_path, "status").out
    expected = {"off": "off; kintsugi skills find", "watch": "nothing was compared yet"}
    assert expected[setting] in " ".join(told.split())
