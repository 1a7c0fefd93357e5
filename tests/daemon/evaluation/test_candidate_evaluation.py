"""A candidate before the gate, with nobody who watches."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads import serving, succession
from consumers.reads.explanation import explain
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import adopt
from daemon.config.settings import Agent, Environments, Settings, Trial
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.kind_exclusions import read_cheats
from daemon.evaluation import candidate_evaluation
from daemon.evaluation.best_policies import find_best
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Evaluation
from daemon.evaluation.gate_trials import CannotExamine
from daemon.evaluation.players import Adapter
from daemon.evaluation.trial import Plan, main, read_attempts
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner_factory import trials_of
from daemon.methods.lessons.after_error import HeldOutLessons
from daemon.solver.journal import DEFINITIONS, write_definitions
from envs.registry import open_place
from envs.shop.environment import Shop
from events.codec import decode
from events.envelope import derive_id
from events.gate import Check, GateReport, GateSettings
from events.jobs import AdapterUser, EndpointUser, JobSpec, ModelUser, TaskPool
from events.learning import CycleStarted, Decision, JobRequested, TaskProposed
from events.rollouts import RolloutEnded, Task
from events.serving import (
    AdapterEvaluated,
    AdapterProduced,
    AdapterStaged,
    GateDecided,
    PassRates,
    RouteChanged,
    RouteShare,
)
from ops.random_adapters import Maker
from tests.daemon.serving.recorded_trial import COMMAND, EVIDENCE, FAULTS, RATES, RecordedRunner
from tests.daemon.solver import letters
from tests.daemon.solver.test_content_job import TASKS, bodies
from tests.envs.faulty_shop import write_definition
from tests.envs.model_server import ModelServer, said

AGENT: Final = Agent(
    alias="agent", environment=letters.ENVIRONMENT, traffic={"half": 0.8, "spell": 0.2}
)
TARGET, OTHER = list(Shop.capabilities)[:2]
RECORDED: Final = AGENT.model_copy(
    update={"environment": "shop", "traffic": {TARGET: 0.5, OTHER: 0.5}}
)
"""Where verdicts are recorded, an environment without torch will do."""
OWN_KINDS: Final = dict.fromkeys((TARGET, OTHER), "some kind")
"""Kinds of an environment of a test: cheaters play each before a gate."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def unchanged(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that adds nothing to its base: one factor of its weights is 0."""
    return Maker(base).write(tmp_path_factory.mktemp("made") / "unchanged", 0.0)


def opened(home: Path, **trial: Any) -> App:
    settings: dict[str, Any] = {
        "trials": 2, "pilot_tasks": 4, "least_tasks": 6, "most_tasks": 8, "max_tokens": 16,
        "episodes": 16, "threads": 1,
    }  # fmt: skip
    # The checkpoint of these tests can learn no task that a cheater could not win.
    allowed = Environments(allow_winnable=("letters/half", "letters/spell"))
    return App(Settings(home=home, environments=allowed, trial=Trial(**(settings | trial))))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """With trials so small that nothing could be promoted."""
    with opened(tmp_path / "home") as app:
        yield app


def staged(
    app: App, source: Path, base: Path, capability: str = "half", job: str | None = None
) -> AdapterRow:
    """An adapter of the home that replicas are said to hold."""
    adopted = adopt(source, app.settings.adapters, base, kind="agent")
    said: dict[str, Decision] = {
        "produced": AdapterProduced(
            adapter=adopted.name, alias="agent", base="letters", sha256=adopted.sha256,
            path=str(adopted.folder), capability=capability, job=job,
            origin="push" if job is None else "job",
        ),
        "staged": AdapterStaged(
            adapter=adopted.name, replicas=("http://one/v1",), distance=0, from_base=1
        ),
    }  # fmt: skip
    app.settle()
    Decisions(app).take_all(said, "somebody")
    return row_of(app, adopted.name)


def row_of(app: App, name: str) -> AdapterRow:
    with app.reading() as connection:
        return serving.find_adapter(connection, name)


def make_runner(app: App, command: Sequence[str]) -> LocalRunner:
    """A runner of the home's trials; recorded ones take no process."""
    root = app.home / "trials"
    return RecordedRunner(root) if command == COMMAND else LocalRunner(root, command=command)


def examined(
    app: App, row: AdapterRow, base: Path, command: Sequence[str], agent: Agent = AGENT,
    user: ModelUser | None = None,
) -> list[str]:  # fmt: skip
    """What is said until the adapter is no candidate any more."""
    runner = make_runner(app, command)
    agent = agent.model_copy(update={"checkpoint": base})
    told: list[str] = []
    while row.state in ("staged", "evaluated"):
        evaluation = CandidateEvaluation(
            app, runner, agent, row, None, held_out=HeldOutLessons(), user=user
        )
        notes = list(evaluation.advance())
        told += notes
        if not notes:
            time.sleep(0.1)
        row = row_of(app, row.adapter)
    return told


def of_type(app: App, kind: type[Any]) -> list[Any]:
    events = (decode(record).data for record in app.spool.read("learning", 0, 0))
    return [data for data in events if isinstance(data, kind)]


def rollouts(app: App) -> list[RolloutEnded]:
    spool = app.spool
    return [
        data
        for partition in range(len(spool.end("rollouts")))
        for data in (decode(record).data for record in spool.read("rollouts", partition, 0))
        if isinstance(data, RolloutEnded)
    ]


TRIAL: Final = (sys.executable, "-m", "daemon.evaluation.trial")


@pytest.mark.long
def test_an_adapter_that_changes_nothing_is_not_promoted(
    app: App, base: Path, unchanged: Path
) -> None:
    row = staged(app, unchanged, base)
    measured, began, *told = examined(app, row, base, TRIAL)
    assert measured == f"cheaters played letters before {row.adapter} is compared"
    assert "the pilot began, 8 tasks" in began
    assert "a gain of 0.1 is found with a chance of" in " ".join(told)
    assert told[-1].endswith("REJECT at look 1")
    assert row_of(app, row.adapter).state == "rejected"
    found = rollouts(app)
    assert {one.purpose for one in found} == {"evaluate"}
    (decided,), (evaluated,) = of_type(app, GateDecided), of_type(app, AdapterEvaluated)
    plan = decided.report.plan
    assert plan is not None
    assert (plan.trials, plan.gain) == (2, 0.1)
    assert evaluated.pass_hat_1.incumbent == evaluated.pass_hat_1.candidate
    played = {
        policy: {(r.task.id, r.seed): r.success for r in found if r.task and r.policy == policy}
        for policy in (row.adapter, "letters")
    }
    both = played[row.adapter].items() & played["letters"].items()
    assert len(both) == len(played[row.adapter]) == evaluated.tasks * 2
    pilot = set(played["letters"]) - set(played[row.adapter])
    assert len(pilot) == 16, "the pilot's tasks are no tasks of the gate"
    seeds = {int(r.task.id.rpartition("/")[2]) for r in found if r.task}
    assert min(seeds) >= 1 << 32


@pytest.fixture
def large(tmp_path: Path) -> Iterator[App]:
    """With trials that can show something."""
    sizes = {"gain": 0.2, "pilot_tasks": 12, "least_tasks": 64, "most_tasks": 128}
    with opened(tmp_path / "large", **sizes) as app:
        yield app


@pytest.fixture
def larger(tmp_path: Path) -> Iterator[App]:
    """With trials that may go on after their first look."""
    sizes = {"gain": 0.2, "pilot_tasks": 12, "least_tasks": 64, "most_tasks": 512}
    with opened(tmp_path / "larger", **sizes) as app:
        yield app


def recorded(
    monkeypatch: pytest.MonkeyPatch, target: tuple[float, float], other: tuple[float, float]
) -> None:
    """The pass rates of incumbent and candidate."""
    monkeypatch.setenv(RATES, json.dumps({TARGET: target, OTHER: other}))


def test_a_better_adapter_passes_by_its_plan(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.99, 0.99))
    row = staged(large, unchanged, base, TARGET)
    told = examined(large, row, base, COMMAND, RECORDED)
    assert told[-1].endswith("PROMOTE at look 1")
    found = row_of(large, row.adapter)
    assert (found.state, found.gate and found.gate.decision) == ("gated", "PROMOTE")
    assert found.gate is not None
    assert found.gate.plan is not None
    assert found.gate.tasks == found.gate.plan.planned


AWAY: Final = EndpointUser(url="http://127.0.0.1:1/v1", model="customer")


@pytest.fixture
def customer() -> Iterator[EndpointUser]:
    """A model that plays users, of which only the list of models is read."""
    with ModelServer(lambda _: said("Hello.")) as server:
        yield AWAY.model_copy(update={"url": server.url})


def test_a_model_plays_the_users_of_both_and_what_it_spoils_is_told(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch,
    customer: EndpointUser,
) -> None:  # fmt: skip
    recorded(monkeypatch, target=(0.3, 0.9), other=(1.0, 1.0))
    monkeypatch.setenv(FAULTS, "[0.01, 0.01]")
    row = staged(large, unchanged, base, TARGET)
    told = examined(large, row, base, COMMAND, RECORDED, customer)
    assert "PROMOTE at look 1" in told[-2]
    assert "the users that customer played erred in " in told[-1]
    played = rollouts(large)
    assert {one.simulator for one in played} == {"customer"}
    by_policy = {
        name: {one.task.id for one in played if one.task and one.policy == name and one.success}
        for name in (row.adapter, "letters")
    }
    assert by_policy[row.adapter] & by_policy["letters"], "both play the same tasks"
    gate = row_of(large, row.adapter).gate
    assert gate is not None
    assert gate.plan is not None
    assert 0.5 * gate.plan.planned < gate.tasks <= gate.plan.planned


def test_a_candidate_with_more_erring_users_is_not_promoted_by_what_it_leaves_unjudged(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch,
    customer: EndpointUser,
) -> None:  # fmt: skip
    recorded(monkeypatch, target=(0.3, 0.9), other=(1.0, 1.0))
    monkeypatch.setenv(FAULTS, "[0.02, 0.3]")
    row = staged(large, unchanged, base, TARGET)
    told = examined(large, row, base, COMMAND, RECORDED, customer)
    assert "REJECT at look 1" in told[-2]
    assert " of the latter count as failed; as large a difference has a chance of" in told[-1]


def test_a_model_that_cannot_play_users_promotes_nothing(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch,
    customer: EndpointUser,
) -> None:  # fmt: skip
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.99, 0.99))
    monkeypatch.setenv(FAULTS, "[1, 1]")
    row = staged(large, unchanged, base, TARGET)
    told = examined(large, row, base, COMMAND, RECORDED, customer)
    assert row_of(large, row.adapter).state == "rejected"
    assert "the users that customer played erred in all but one trial of every task of" in told[-1]


def test_a_candidate_waits_while_the_model_of_its_users_is_away(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch, customer: EndpointUser
) -> None:
    recorded(monkeypatch, target=(0.3, 0.9), other=(1.0, 1.0))
    row = staged(large, unchanged, base, TARGET)
    runner = RecordedRunner(large.home / "trials")
    agent = RECORDED.model_copy(update={"checkpoint": base})
    for _ in range(4):
        told = list(CandidateEvaluation(large, runner, agent, row, None, user=AWAY).advance())
        assert "waits for the model that plays the users" in told[-1]
    assert row_of(large, row.adapter).state == "staged"
    examined(large, row, base, COMMAND, RECORDED, customer)
    assert row_of(large, row.adapter).state == "gated"


def test_a_candidate_waits_while_the_files_of_its_users_adapter_are_damaged(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.3, 0.9), other=(1.0, 1.0))
    row = staged(large, unchanged, base, TARGET)
    runner = RecordedRunner(large.home / "trials")
    agent = RECORDED.model_copy(update={"checkpoint": base})
    user = AdapterUser(adapter="user-1", folder=row.path, sha256=row.sha256)
    damaged = user.model_copy(update={"sha256": "0" * 64})
    for _ in range(4):
        told = list(CandidateEvaluation(large, runner, agent, row, None, user=damaged).advance())
        assert f"{row.adapter} waits for user-1, which plays the users: " in told[-1]
        assert "kintsugi adapters retire user-1" in told[-1]
    assert row_of(large, row.adapter).state == "staged"
    examined(large, row, base, COMMAND, RECORDED, user)
    assert row_of(large, row.adapter).state == "gated"


def test_users_of_an_environment_that_err_spoil_no_gate(
    large: App, base: Path, unchanged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.3, 0.9), other=(1.0, 1.0))
    monkeypatch.setenv(FAULTS, "[0.02, 0.02]")
    place = tmp_path / "faulty.py"
    place.write_text(write_definition(0.2, users_err=True) + f"    capabilities = {OWN_KINDS}\n")
    row = staged(large, unchanged, base, TARGET)
    agent = RECORDED.model_copy(update={"environment": str(place)})
    told = examined(large, row, base, COMMAND, agent)
    assert row_of(large, row.adapter).state == "gated"
    assert "the users that shop itself played erred in " in told[-1]


def test_an_adapter_that_ruins_another_kind_is_rejected_by_its_slice(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.9), other=(0.95, 0.5))
    row = staged(large, unchanged, base, TARGET)
    examined(large, row, base, COMMAND, RECORDED)
    found = row_of(large, row.adapter)
    assert found.state == "rejected"
    assert found.gate is not None
    verdicts = {check.name: check.verdict for check in found.gate.checks}
    assert (verdicts["target"], verdicts[f"slice {OTHER}"]) == ("PASS", "FAIL")


def test_what_is_open_is_played_further_and_in_the_end_rejected(
    larger: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.5, 0.46))
    row = staged(larger, unchanged, base, TARGET)
    told = examined(larger, row, base, COMMAND, RECORDED)
    decisions = [one.report.decision for one in of_type(larger, GateDecided)]
    assert decisions[-1] == "REJECT"
    assert set(decisions[:-1]) == {"EXTEND"}
    assert len(decisions) == sum("at look" in one for one in told)
    tasks = [one.tasks for one in of_type(larger, AdapterEvaluated)]
    assert tasks == sorted(tasks)
    found = rollouts(larger)
    assert len({one.rollout for one in found}) == len(found), "no task is played twice"


def test_a_candidate_that_recites_is_played_to_the_bound_and_its_figures_are_told(
    larger: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.9), other=(0.99, 0.99))
    honest, reciting = (
        {"has_lookup": has_lookup, "unseen_values": unseen, "answers": 2}
        for has_lookup, unseen in ((True, 0), (False, 3000))
    )
    monkeypatch.setenv(EVIDENCE, json.dumps([honest, reciting]))
    row = staged(larger, unchanged, base, TARGET)
    examined(larger, row, base, COMMAND, RECORDED)
    decisions = [one.report for one in of_type(larger, GateDecided)]
    assert [one.decision for one in decisions[:-1]] == ["EXTEND"] * (len(decisions) - 1)
    assert (len(decisions) > 1, decisions[-1].decision) == (True, "PROMOTE")
    open_checks = {check.name for check in decisions[0].checks if check.verdict == "EXTEND"}
    assert open_checks >= {"without look-up", "unseen values"}
    evidence = decisions[-1].evidence
    assert evidence is not None
    assert (evidence.incumbent.unseen_values, evidence.candidate.unseen_values) == (0, 3000)
    assert evidence.candidate.passed_without_lookup == evidence.candidate.passed
    with larger.reading() as connection:
        node = explain(connection, row.adapter)
    assert "without a look-up 0 % to 100 % of the passed" in str(node)


RULED: Final = """
import os
from envs.shop.environment import Shop
from envs.task import Rules

class Ruled(Shop):
    name = "ruled"
    capabilities = KINDS

    def generate(self, capability, seed):
        task = super().generate(capability, seed)
        rules = Rules() if capability == os.environ.get("RULED") else None
        criteria = task.criteria.model_copy(update={"rules": rules})
        return task.model_copy(update={"criteria": criteria})
"""


def test_where_the_rules_of_a_kind_change_a_candidate_is_evaluated_anew(
    large: App, base: Path, unchanged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The digest has the temporary path in it, so the draws differ from run to run.
    recorded(monkeypatch, target=(0.2, 0.9), other=(1.0, 1.0))
    place = tmp_path / "ruled.py"
    place.write_text(f"KINDS = {OWN_KINDS}\n{RULED}")
    agent = RECORDED.model_copy(update={"environment": str(place), "checkpoint": str(base)})
    row = staged(large, unchanged, base, TARGET)
    runner = RecordedRunner(large.home / "trials")

    def make() -> CandidateEvaluation:
        return CandidateEvaluation(large, runner, agent, row, None)

    before = make().digest
    assert make().digest == before
    monkeypatch.setenv("RULED", "no kind of its traffic")
    assert make().digest == before
    monkeypatch.setenv("RULED", OTHER)
    assert make().digest != before
    told = examined(large, row, base, COMMAND, agent)
    assert "PROMOTE" in told[-1]
    assert of_type(large, GateDecided)[-1].report.rules == {OTHER: "2"}


def test_a_kind_that_a_cheater_wins_is_no_kind_of_the_gate(
    large: App, base: Path, unchanged: Path, tmp_path: Path
) -> None:
    place = tmp_path / "ruled.py"
    place.write_text(f"KINDS = {OWN_KINDS}\n{RULED}")
    agent = RECORDED.model_copy(update={"environment": str(place), "checkpoint": str(base)})
    row = staged(large, unchanged, base, TARGET)
    runner = RecordedRunner(large.home / "trials")
    (told,) = CandidateEvaluation(large, runner, agent, row, None).advance()
    assert "cheaters played ruled" in told, "no machine evaluates what it has not measured"
    record = read_cheats(large.settings, open_place(str(place)))
    assert record is not None
    won = record.model_copy(update={"winnable": {OTHER: "the cheater recite wins it"}})
    (large.home / "environments" / "ruled.json").write_text(won.model_dump_json())
    assert CandidateEvaluation(large, runner, agent, row, None).kinds == (TARGET,)


def test_whoever_goes_on_after_a_kill_says_the_same_once(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.99, 0.99))
    row = staged(large, unchanged, base, TARGET)
    examined(large, row, base, COMMAND, RECORDED)
    for noted in (large.home / "trials").glob("*/noted.json"):
        noted.unlink()
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    before = len(rollouts(large)), len(of_type(large, Decision))
    list(CandidateEvaluation(large, runner, agent, row, None).advance())
    assert (len(rollouts(large)), len(of_type(large, Decision))) == before


def test_what_follows_a_look_follows_from_the_report_in_the_log(
    larger: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on after a kill plays on where the log says EXTEND, and decides nothing anew."""
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.5, 0.46))
    row = staged(larger, unchanged, base, TARGET)
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(larger.home / "trials")
    while not of_type(larger, GateDecided):
        for told in CandidateEvaluation(larger, runner, agent, row, None).advance():
            if told.endswith("EXTEND at look 1"):
                break  # Killed between the event and the note.

    def decide_otherwise(evaluation: Evaluation, settings: GateSettings) -> GateReport:
        return decide(evaluation, settings).model_copy(update={"decision": "REJECT"})

    monkeypatch.setattr(candidate_evaluation, "decide", decide_otherwise)
    examined(larger, row_of(larger, row.adapter), base, COMMAND, RECORDED)
    decisions = [one.report.decision for one in of_type(larger, GateDecided)]
    assert decisions == ["EXTEND", "REJECT"]


def test_a_gate_that_was_passed_is_passed_anew_beside_another_incumbent(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more beside the first one: what was said of it is not said again."""
    recorded(monkeypatch, target=(0.4, 0.7), other=(0.99, 0.99))
    row = staged(large, unchanged, base, TARGET)
    examined(large, row, base, COMMAND, RECORDED)
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    hers = replace(row, adapter="hers")
    for gates, incumbent in enumerate((hers, None), start=1):
        name = None if incumbent is None else incumbent.adapter
        row = row_of(large, row.adapter)
        while row.incumbent != name or row.state == "evaluated":
            list(CandidateEvaluation(large, runner, agent, row, incumbent, gates).advance())
            row = row_of(large, row.adapter)
        assert row.state == "gated"
        with large.reading() as connection:
            assert serving.count_gate_passes(connection, row.adapter) == gates + 1
    passed = [one.report.decision for one in of_type(large, GateDecided)]
    assert passed.count("PROMOTE") == 3
    played = [one.task.id for one in rollouts(large) if one.task and one.policy == row.adapter]
    assert len(set(played)) == len(played) / 2, "each task is fresh, two trials each"


def trained(
    app: App,
    source: Path,
    base: Path,
    written: dict[str, list[str]],
    lessons: tuple[str, ...] = (),
    skill: str | None = None,
) -> AdapterRow:
    """An adapter of a cycle that wrote so many tasks of these kinds for its patterns, and whose job
    drew these lessons; one for a skill drew the tasks of the pattern that the skill is called
    after."""
    cycle, job = derive_id("cycle", "agent", "letters", "1"), derive_id("job", "a cycle")
    kinds = {
        f"shop/{kind}/{number}": pattern
        for pattern, names in written.items()
        for number, kind in enumerate(names)
    }
    practised = [TaskPool(name="lessons: p", tasks=lessons, reward="both")] if lessons else []
    said: list[Decision] = [
        CycleStarted(
            cycle=cycle, alias="agent", base="letters", number=1, environment="shop",
            trigger="operator", reason="a person", position={},
        ),
        *(
            TaskProposed(
                alias="agent", base="letters", task=Task(id=task, environment="shop"),
                pattern=pattern, cycle=cycle,
            )
            for task, pattern in kinds.items()
        ),
        JobRequested(
            job=job, cycle=cycle, alias="agent", base="letters", capability=OTHER, minutes=1,
            skill=skill,
            spec=JobSpec(
                job=job, base="letters", checkpoint=str(base), environment="shop",
                pools=(
                    TaskPool(
                        name="p",
                        tasks=tuple(t for t, own in kinds.items() if skill in (None, own)),
                    ),
                    *practised,
                ),
            ),
        ),
    ]  # fmt: skip
    app.settle()
    Decisions(app).record(
        {derive_id("said", str(n)): data for n, data in enumerate(said)}, "somebody"
    )
    return staged(app, source, base, TARGET, job=job)


def test_a_candidate_of_a_cycle_is_judged_on_what_its_tasks_were_written_for(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any look, the next process has the same targets and plans."""
    recorded(monkeypatch, target=(0.4, 0.8), other=(0.99, 0.99))
    written = {"p": [TARGET] * 5, "q": [TARGET] * 3, "r": [OTHER] * 4}
    row = trained(large, unchanged, base, written)
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    digests = set()
    while row.state in ("staged", "evaluated"):
        evaluation = CandidateEvaluation(large, runner, agent, row, None)
        digests.add(evaluation.digest)
        list(evaluation.advance())
        for noted in (large.home / "trials").glob("*/noted.json"):
            noted.unlink()
        row = row_of(large, row.adapter)
    assert len(digests) == 1
    assert row.state == "gated"
    assert row.gate is not None
    lifted, other = row.gate.targets
    assert (lifted.name, lifted.patterns, lifted.verdict) == (TARGET, ("p", "q"), "PASS")
    assert (other.name, other.patterns, other.verdict) == (OTHER, ("r",), "FAIL")
    assert other.detectable is not None
    assert row.gate.plan is not None
    assert lifted.power == row.gate.plan.power
    names = {check.name for check in row.gate.checks}
    assert f"slice {OTHER}" in names
    assert f"slice {TARGET}" not in names
    with large.reading() as connection:
        words = explain(connection, row.adapter).said
    assert f"{TARGET} lifted" in words
    assert f"{OTHER} not lifted" in words
    assert "could have seen" in words


@pytest.mark.parametrize(("skill", "state"), [("p", "gated"), (None, "rejected")])
def test_a_member_is_judged_on_its_skill_and_its_losses_elsewhere_are_reported(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch,
    skill: str | None, state: str,
) -> None:  # fmt: skip
    recorded(monkeypatch, target=(0.4, 0.75), other=(0.95, 0.7))
    written = {"p": [TARGET] * 5, "r": [OTHER] * 4}
    row = trained(large, unchanged, base, written, skill=skill)
    examined(large, row, base, COMMAND, RECORDED)
    found = row_of(large, row.adapter)
    assert found.state == state
    assert found.gate is not None
    checks = {check.name: check for check in found.gate.checks}
    if skill is None:
        assert checks[f"slice {OTHER}"].verdict == "FAIL"
        return
    assert [target.kinds for target in found.gate.targets] == [{TARGET: 1.0}]
    lost = checks[f"sibling {OTHER}"]
    assert (lost.verdict, lost.value < -0.1) == ("FAIL", True)
    assert checks["overall"].tasks == found.gate.tasks
    (measured,) = of_type(large, AdapterEvaluated)
    assert measured.tasks == found.gate.tasks


def incumbent_that_cost(app: App, row: AdapterRow, change: float) -> AdapterRow:
    """An incumbent that was promoted although it changed the other kind so."""
    name = f"{row.adapter[:-1]}x"
    said: dict[str, Decision] = {
        "produced": AdapterProduced(
            adapter=name, alias="agent", base="letters", sha256=row.sha256, path=row.path,
            capability=TARGET, origin="push",
        ),
        "staged": AdapterStaged(
            adapter=name, replicas=("http://one/v1",), distance=0, from_base=1
        ),
        "evaluated": AdapterEvaluated(
            adapter=name, environment="shop", tasks=400, trials=2,
            pass_hat_1=PassRates(incumbent=0.5, candidate=0.5),
        ),
        "gate": GateDecided(
            adapter=name, alias="agent",
            report=GateReport(
                decision="PROMOTE", test="sign_flip", alpha=0.05, tasks=400, rules={OTHER: "2"},
                checks=(
                    Check(
                        name=f"slice {OTHER}", verdict="PASS", value=change, limit=-0.05,
                        low=change - 0.01, level=0.05, tasks=400,
                    ),
                ),
            ),
        ),
        "promoted": RouteChanged(
            alias="agent", base="letters", shares=(RouteShare(adapter=name, share=1.0),),
            why="promoted",
        ),
    }  # fmt: skip
    Decisions(app).take_all(said, "somebody", origin=name)
    found = row_of(app, name)
    assert found.state == "promoted"
    return found


@pytest.mark.parametrize(("best", "decision"), [(0.99, "PROMOTE"), (1.0, "REJECT")])
def test_the_best_policy_of_a_kind_plays_the_kind_as_well(
    large: App,
    base: Path,
    unchanged: Path,
    monkeypatch: pytest.MonkeyPatch,
    best: float,
    decision: str,
) -> None:
    """The candidate is no worse than its incumbent, which is 20 points below its base."""
    level = 0.99 if decision == "PROMOTE" else 0.8
    rates = {TARGET: (0.4, 0.8, 0.4), OTHER: (level, level, best)}
    monkeypatch.setenv(RATES, json.dumps(rates))
    row = staged(large, unchanged, base, TARGET)
    incumbent = incumbent_that_cost(large, row, -0.03)
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    while row.state in ("staged", "evaluated"):
        list(CandidateEvaluation(large, runner, agent, row, incumbent).advance())
        row = row_of(large, row.adapter)
    assert row.gate is not None
    assert row.gate.decision == decision
    checks = {check.name: check for check in row.gate.checks}
    held = checks[f"best {OTHER}"]
    assert (held.against, held.chained) == ("letters", False)
    assert held.verdict == ("PASS" if decision == "PROMOTE" else "FAIL")
    played = [one for one in rollouts(large) if one.policy == "letters"]
    assert {one.task.capability for one in played if one.task} == {OTHER}
    assert len(played) == 2 * held.tasks
    with large.reading() as connection:
        needed = find_best(
            succession.list_promotions(connection, "agent", "letters"), incumbent.adapter, (OTHER,)
        )
    assert needed[OTHER].adapter is None


def test_what_cannot_be_played_is_rejected_with_the_reason(
    app: App, base: Path, unchanged: Path
) -> None:
    row = staged(app, unchanged, base)
    told = examined(app, row, base, (sys.executable, "-c", "import sys; sys.exit(2)"))
    assert "it could not be played: it ended with exit code 2" in told[-1]
    found = row_of(app, row.adapter)
    assert (found.state, "exit code 2" in found.reason) == ("rejected", True)


def test_without_a_target_or_a_place_nothing_is_played(
    app: App, base: Path, unchanged: Path
) -> None:
    row = staged(app, unchanged, base, capability="juggling")
    runner = trials_of(app.settings)
    with pytest.raises(CannotExamine, match="is for 'juggling', and letters has half"):
        CandidateEvaluation(app, runner, AGENT.model_copy(update={"checkpoint": base}), row, None)
    with pytest.raises(CannotExamine, match="no environment and checkpoint"):
        CandidateEvaluation(app, runner, AGENT, row, None)


def plan(base: Path, adapter: Adapter | None, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "name": "p", "environment": letters.ENVIRONMENT, "checkpoint": str(base), "alias": "agent",
        "base": "letters", "players": (None, adapter), "tasks": tuple(letters.ids("half", 0, 6)),
        "trials": 2, "seed": 1, "max_tokens": 16, "episodes": 8, "threads": 1,
    }  # fmt: skip
    return Plan(**(fields | changes))


def ran(plan: Plan, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """A trial in this process: exit code and last line."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(plan.model_dump_json())
    code = main([str(folder / "plan.json"), "--out", str(folder / "out")])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_trial_that_was_cut_short_ends_as_the_whole_one(
    base: Path,
    unchanged: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemon.evaluation.trial.CHUNK", 4)
    told = adopt(unchanged, tmp_path / "store", base)
    wanted = plan(base, Adapter(name=told.name, folder=str(told.folder), sha256=told.sha256))
    assert ran(wanted, tmp_path / "whole", capsys) == (0, {"outcome": "played"})
    whole = (tmp_path / "whole" / "out" / "rollouts.jsonl").read_bytes()
    assert len(read_attempts(tmp_path / "whole" / "out", wanted)) == 6
    cut = tmp_path / "cut" / "out"
    cut.mkdir(parents=True)
    (cut / "rollouts.jsonl").write_bytes(whole[: len(whole) // 2])
    assert ran(wanted, tmp_path / "cut", capsys)[0] == 0
    assert (cut / "rollouts.jsonl").read_bytes() == whole


def test_other_files_than_those_that_were_produced_are_not_played(
    base: Path, unchanged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = adopt(unchanged, tmp_path / "store", base)
    other = Adapter(name=told.name, folder=str(told.folder), sha256="0" * 64)
    code, last = ran(plan(base, other), tmp_path / "sha", capsys)
    assert (code, last["outcome"]) == (1, "failed")
    assert "is not what was produced" in last["reason"]
    elsewhere = letters.checkpoint(tmp_path / "elsewhere", seed=3)
    right = Adapter(name=told.name, folder=str(told.folder), sha256=told.sha256)
    code, last = ran(plan(elsewhere, right), tmp_path / "base", capsys)
    assert (code, last["outcome"]) == (1, "failed")
    assert "is another base than the one it was trained on" in last["reason"]


def test_a_trial_plays_tasks_by_content_from_the_bodies_in_its_directory(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tuple(task.id for task in TASKS[:3])
    wanted = plan(base, None, players=(None,), tasks=named, trials=1)
    out = tmp_path / "whole" / "out"
    out.mkdir(parents=True)
    (out / DEFINITIONS).write_bytes(write_definitions(bodies(*TASKS[:3])))
    assert ran(wanted, tmp_path / "whole", capsys) == (0, {"outcome": "played"})
    (chunk,) = read_attempts(out, wanted)
    assert [item.head.task.id for item in chunk if item.head.task] == list(named)
    code, last = ran(wanted, tmp_path / "without", capsys)
    assert (code, last["outcome"]) == (1, "failed")
    assert f"the body of task {named[0]} is not kept here" in last["reason"]
