"""What a person sees and says of the loop: status, cycles, jobs, explain."""

from pathlib import Path

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from tests.consumers.cycling import PATTERN, cycle_id, job_over, requested
from tests.consumers.folding import at, ended
from tests.daemon.conftest import Kintsugi
from tests.daemon.written import REJECTED, TASKS, Fixed

JOB = requested().job


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which an agent with an environment failed twice."""
    monkeypatch.setenv("KINTSUGI_AGENTS", '[{"alias":"agent","environment":"shop"}]')
    monkeypatch.setenv("KINTSUGI_LOG__DURABILITY", "process")
    with App(load()) as app:
        app.append([ended("fails", at(1)), ended("fails-too", at(2))])
        app.settle()
    return home


@pytest.fixture
def begun(agent: Path, kintsugi: Kintsugi) -> Path:
    """The same, in a cycle whose job is wanted."""
    assert kintsugi("cycle", "start", "agent", "--actor", "ada").code == 0
    lead()
    return agent


def lead() -> None:
    """One look of a leader."""
    with App(load()) as app:
        leadership = Leadership(app)
        Leader(app, Fixed(), leadership).tick()
        leadership.resign()


def test_status_says_in_numbers_what_the_next_cycle_waits_for(
    agent: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SCHEDULER__MAX_AGE_SECONDS", "1e9")  # its failures are old
    expected = kintsugi("status", "--json").json["next_cycle"]
    assert expected["due"] is False
    failures, rollouts = expected["missing"]
    assert failures == "7 more failures, of 8", "both failed in the same way"
    assert rollouts.startswith("198 more rollouts, of 200, or ")
    (one,) = expected["agents"]
    assert (one["alias"], one["base"], one["cycle"], one["step"]) == ("agent", "base", None, None)
    assert "198 more rollouts" in kintsugi("status").out
    assert (one["rollouts"], one["failures"], one["patterns"], one["last_minutes"]) == (
        2,
        1,
        [],
        [],
    )
    assert "2 new rollouts, 1 new failures; patterns of the last round: none" in (
        kintsugi("status").out
    )


def test_of_an_empty_home_rollouts_are_missing(home: Path, kintsugi: Kintsugi) -> None:
    assert kintsugi("status", "--json").json["next_cycle"]["missing"] == [
        "rollouts: none is recorded"
    ]


def test_of_several_agents_each_sentence_says_whose_it_is(
    agent: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_AGENTS", '[{"alias":"agent"},{"alias":"new"}]')
    expected = kintsugi("status", "--json").json["next_cycle"]
    assert [one["alias"] for one in expected["agents"]] == ["agent", "new"]
    first, second = expected["missing"]
    assert first.startswith("agent: agent has no executable environment")
    assert second == "new: rollouts of new: none is recorded"


def test_a_person_asks_for_a_cycle_and_sees_it(begun: Path, kintsugi: Kintsugi) -> None:
    (line,) = kintsugi("cycle", "ls", "--json").json
    assert (line["cycle"], line["trigger"], line["step"]) == (cycle_id(), "operator", "train")
    assert (line["accepted"], line["rejected"], line["outcome"]) == (TASKS, REJECTED, None)
    shown = kintsugi("cycle", "show", cycle_id()[:8], "--json").json
    assert (shown["cycle"], shown["job"]) == (cycle_id(), JOB)
    assert [one["check"] for one in shown["rejections"]] == ["leak"]
    assert "needs train next" in kintsugi("cycle", "show", cycle_id()).out
    directive = kintsugi("cycle", "show", cycle_id()).out
    assert f"- {TASKS} tasks for {PATTERN} (new). It forgets." in directive
    assert "Cause: It takes a yes for the end." in directive
    assert cycle_id()[:13] in kintsugi("cycle", "ls").out
    status = kintsugi("status", "--json").json
    assert (status["cycle"]["cycle"], status["cycle"]["step"]) == (cycle_id(), "train")
    assert status["cycle"]["round"] == 0
    assert status["next_cycle"]["missing"] == ["a cycle of agent is running"]


def test_a_job_is_listed_shown_and_explained(begun: Path, kintsugi: Kintsugi) -> None:
    (line,) = kintsugi("jobs", "ls", "--json").json
    assert (line["job"], line["cycle"], line["outcome"]) == (JOB, cycle_id(), None)
    assert "spec" not in line
    shown = kintsugi("jobs", "show", JOB[:8], "--json").json
    assert shown["spec"]["job"] == JOB
    assert JOB in kintsugi("jobs", "show", JOB).out
    assert JOB[:13] in kintsugi("jobs", "ls").out
    explained = kintsugi("explain", JOB, "--json").json
    assert (explained["kind"], explained["because"][0]["node"]) == ("job", cycle_id())


def test_a_cycle_that_is_called_off_takes_its_job_with_it(begun: Path, kintsugi: Kintsugi) -> None:
    told = kintsugi("cycle", "cancel", "agent", "--actor", "ada", "--reason", "no", "--json").json
    assert told["cycle"] == cycle_id()
    (line,) = kintsugi("jobs", "ls", "--json").json
    assert line["called_off"] == "ada called it off: no"
    assert "called off" in kintsugi("jobs", "ls").out


def test_a_job_that_is_called_off_is_named_to_the_worker(begun: Path, kintsugi: Kintsugi) -> None:
    assert kintsugi("jobs", "cancel", JOB[:8], "--actor", "ada", "--json").json["job"] == JOB
    assert kintsugi("jobs", "show", JOB, "--json").json["called_off"] == "ada called it off"


def test_what_is_over_is_not_called_off(begun: Path, kintsugi: Kintsugi) -> None:
    with App(load()) as app:
        Decisions(app).take(job_over(outcome="failed"), "over", "job")
    lead()
    over = kintsugi("jobs", "cancel", JOB)
    assert (over.code, over.out) == (1, "")
    assert "is over (failed)" in over.err
    none = kintsugi("cycle", "cancel", "agent")
    assert (none.code, none.out) == (1, "")
    assert "no open cycle" in none.err
    (line,) = kintsugi("cycle", "ls", "--json").json
    assert (line["outcome"], line["step"]) == ("failed", None)


def test_a_finished_cycle_says_what_it_cost_and_status_how_long_it_took(
    begun: Path, kintsugi: Kintsugi
) -> None:
    assert kintsugi("cycle", "show", "1", "--json").json["cost"] is None
    with App(load()) as app:
        Decisions(app).take(job_over(outcome="failed", seconds=90.0), "over", "job")
    lead()
    cost = kintsugi("cycle", "show", "1", "--json").json["cost"]
    (line,) = kintsugi("cycle", "ls", "--json").json
    assert line["cost"] == cost
    assert (cost["job_hours"], cost["gpu_hours"]) == (0.025, None)
    assert cost["rollouts"] == {"probe": 0, "training": 64, "evaluation": 0, "total": 64}
    assert cost["without_gain"] == "it ended failed, so nothing that answers was gained"
    assert cost["minutes"]["evaluate"] is None
    shown = kintsugi("cycle", "show", "1").out
    assert "training 64" in shown
    assert "none; it ended failed" in shown
    (agent,) = kintsugi("status", "--json").json["next_cycle"]["agents"]
    assert agent["last_minutes"] == [pytest.approx(cost["total_minutes"])]
    assert "the last cycles took 0.0 minutes" in kintsugi("status").out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("cycle", "start", "nobody"), 1, "'nobody'"),
        (("cycle", "show", "nothing"), 1, "'nothing'"),
        (("jobs", "show", "nothing"), 1, "'nothing'"),
    ],
)
def test_what_nobody_knows_is_named(
    agent: Path, kintsugi: Kintsugi, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = kintsugi(*arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_no_cycle_begins_without_an_environment(
    agent: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINTSUGI_AGENTS")
    result = kintsugi("cycle", "start", "agent")
    assert (result.code, result.out) == (2, "")
    assert "no executable environment" in result.err
