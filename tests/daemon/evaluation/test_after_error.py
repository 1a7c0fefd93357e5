"""Tasks of a gate that begin behind a refused call: real lessons of shop, recorded verdicts."""

import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from consumers.reads import learning
from consumers.reads.cycle_account import read_task_pairs
from consumers.reads.explanation import explain
from consumers.rebuild import rebuild
from daemon.config.settings import Trial
from daemon.core.app import App
from daemon.cycle.parent import is_worth_training
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.evaluation.comparison import FIRST_TASK
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Conduct, TokenParts, TokenUse
from daemon.evaluation.sample_size import Sizes, extend_sizes
from daemon.evaluation.targets import PlannedTarget
from daemon.methods.lessons import after_error
from daemon.methods.lessons.after_error import HeldOutLessons
from daemon.methods.lessons.practice import read_cycle_practice
from daemon.metrics.families import Sheet
from daemon.metrics.loop import LOOP
from daemon.metrics.loop import read as read_loop
from daemon.proposer.verification import seed_of
from envs.lessons.checks import follows_refusal, get_lesson
from envs.lessons.making import LessonReport, make_lessons
from envs.shop.environment import Shop
from envs.task import TaskDefinition, is_content_id
from events.envelope import timestamp, utc_now
from events.gate import AFTER_ERROR, Check, GateReport, GateSettings
from events.serving import AdapterEvaluated, GateDecided
from tests.daemon.evaluation.test_candidate_evaluation import (
    OTHER,
    RECORDED,
    TARGET,
    base,
    examined,
    large,
    of_type,
    opened,
    rollouts,
    row_of,
    trained,
    unchanged,
)
from tests.daemon.evaluation.test_gate import BETTER, CALM, alike, check, evaluation
from tests.daemon.serving.recorded_trial import COMMAND, RATES, RecordedRunner
from tests.daemon.slips import draw_sources, record_slips

__all__ = ["base", "large", "unchanged"]

SHOP = Shop()
WRITTEN = {"p": [TARGET] * 5}
LESSONS = ("shop/=" + "0" * 64,)


def draw(count: int, held_out: HeldOutLessons | None = None) -> list[str]:
    shares = {"cancel": 0.5, "refund": 0.5}
    drawn = held_out or HeldOutLessons()
    return [task.id for task in drawn.draw("set", SHOP, shares, 7, FIRST_TASK, count)]


def test_held_out_tasks_begin_behind_a_refusal_and_have_seeds_of_gates() -> None:
    tasks = HeldOutLessons().draw("set", SHOP, {"cancel": 0.5, "refund": 0.5}, 7, FIRST_TASK, 12)
    assert len({task.id for task in tasks}) == 12
    for task in tasks:
        assert is_content_id(task.id)
        assert follows_refusal(task)
        lesson = get_lesson(task)
        assert (seed_of(lesson.source) or 0) >= FIRST_TASK
        assert lesson.operator in ("argument", "swap", "missing")
    assert {task.capability for task in tasks} == {"cancel", "refund"}


def test_a_larger_count_adds_tasks_to_the_same_ones() -> None:
    held_out = HeldOutLessons()
    few = draw(4, held_out)
    many = draw(9, held_out)
    assert many[:4] == few
    assert draw(9) == many
    assert draw(4, held_out) == few


def test_where_few_tasks_give_lessons_what_is_drawn_does_not_depend_on_what_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every 30 tasks the last gives one: fewer than are looked at for each."""
    real, asked = make_lessons, []

    def make_few(environment: Shop, tasks: list[TaskDefinition], *rest: Any, **named: Any) -> Any:
        asked.append(tasks[0].id)
        if int(tasks[0].id.rpartition("/")[2]) % 30 != 29:
            return LessonReport((), {}, {}, (), ())
        return real(environment, tasks, *rest, **named)

    monkeypatch.setattr(after_error, "make_lessons", make_few)
    held_out = HeldOutLessons()
    assert draw(6, held_out) == draw(6)
    assert len(asked) == 240
    assert draw(3, held_out) == draw(3)
    assert len(draw(3, held_out)) < 3


def test_an_environment_that_gives_no_lessons_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    none = LessonReport((), {}, {}, (), ())
    monkeypatch.setattr("daemon.methods.lessons.after_error.make_lessons", lambda *_, **__: none)
    assert draw(3) == []


# The gate


def slice_check(report: GateReport) -> Check:
    return check(report, f"slice {AFTER_ERROR}")


def test_the_slice_is_held_to_its_margin_and_weighs_nothing_in_the_whole() -> None:
    same = alike(80, AFTER_ERROR, 0.5, 0.5)
    without = decide(evaluation(BETTER), GateSettings())
    report = decide(evaluation([*BETTER, *same]), GateSettings())
    assert (without.decision, report.decision) == ("PROMOTE", "PROMOTE")
    assert check(report, "overall") == check(without, "overall")
    assert slice_check(report).verdict == "PASS"
    assert without.after_error is None
    assert report.after_error is not None
    assert (report.after_error.tasks, report.after_error.incumbent) == (80, 0.5)
    assert "after_error" not in without.model_dump(mode="json")


def test_a_candidate_that_repairs_less_is_rejected_by_the_slice_alone() -> None:
    worse = alike(80, AFTER_ERROR, 0.75, 0.25)
    report = decide(evaluation([*BETTER, *worse]), GateSettings())
    assert report.decision == "REJECT"
    failed = [item.name for item in report.checks if item.verdict == "FAIL"]
    assert failed == [f"slice {AFTER_ERROR}"]
    # No task replays what it lost, so no job goes on from it.
    assert not is_worth_training(report)


def test_few_tasks_of_the_slice_ask_for_more_of_them_alone() -> None:
    few = alike(8, AFTER_ERROR, 0.5, 0.5)
    report = decide(evaluation([*BETTER, *few]), GateSettings())
    assert report.decision == "EXTEND"
    target = PlannedTarget.of_count("target", 60)
    sizes = Sizes(tasks={"target": 60, "plain": 80, AFTER_ERROR: 8}, targets=(target,))
    more = extend_sizes(sizes, report, Trial(most_tasks=80))
    assert more is not None
    assert more.tasks == {"target": 60, "plain": 80, AFTER_ERROR: 16}


def test_an_open_whole_asks_for_no_tasks_of_the_slice() -> None:
    report = decide(evaluation(BETTER), GateSettings())
    open_checks = tuple(
        item.model_copy(update={"verdict": "EXTEND"}) if item.name == "overall" else item
        for item in report.checks
    )
    report = report.model_copy(update={"checks": open_checks})
    target = PlannedTarget.of_count("target", 60)
    sizes = Sizes(tasks={"target": 60, "plain": 20, AFTER_ERROR: 20}, targets=(target,))
    more = extend_sizes(sizes, report, Trial(most_tasks=80))
    assert more is not None
    assert more.tasks == {"target": 60, "plain": 40, AFTER_ERROR: 20}


def conduct(clean: int, refused: int) -> Conduct:
    """One that writes so many tokens in a rollout without and with a refused call."""
    parts = TokenParts(TokenUse(80, 80 * clean, 4.0), TokenUse(20, 20 * refused, 4.0))
    return replace(CALM, tokens=80 * clean + 20 * refused, parts=parts)


@pytest.mark.parametrize(
    ("candidate", "failed"),
    [
        (conduct(100, 190), None),
        (conduct(100, 210), f"tokens {AFTER_ERROR}"),
        (conduct(125, 100), "tokens"),
    ],
)
def test_tokens_of_rollouts_with_a_refused_call_are_counted_apart(
    candidate: Conduct, failed: str | None
) -> None:
    run = [*BETTER, *alike(80, AFTER_ERROR, 0.5, 0.5)]
    measured = replace(evaluation(run, candidate=candidate), incumbent=conduct(100, 100))
    report = decide(measured, GateSettings())
    assert [item.name for item in report.checks if item.verdict == "FAIL"] == (
        [] if failed is None else [failed]
    )
    assert report.after_error is not None
    assert candidate.parts is not None
    assert report.after_error.token_growth == pytest.approx(candidate.parts.refused.mean / 100 - 1)
    assert report.after_error.clean_token_growth == pytest.approx(
        candidate.parts.clean.mean / 100 - 1
    )


def test_long_rollouts_that_move_among_the_refused_ones_are_seen() -> None:
    """Neither part grows beyond its limit, and all together by 118 %."""
    run = [*BETTER, *alike(80, AFTER_ERROR, 0.5, 0.5)]

    def shifted(clean: int, refused: int, long: int) -> Conduct:
        parts = TokenParts(
            TokenUse(clean, 100 * clean, 4.0), TokenUse(refused, long * refused, 4.0)
        )
        tokens = 100 * clean + long * refused
        return replace(CALM, rollouts=clean + refused, tokens=tokens, parts=parts)

    measured = replace(
        evaluation(run, candidate=shifted(500, 900, 380)), incumbent=shifted(1000, 400, 200)
    )
    report = decide(measured, GateSettings())
    assert [item.name for item in report.checks if item.verdict == "FAIL"] == ["tokens overall"]
    none_clean = replace(measured, candidate=shifted(0, 1400, 380))
    report = decide(none_clean, GateSettings())
    assert [item.name for item in report.checks if item.verdict == "FAIL"] == ["tokens"]


def test_a_policy_without_a_refused_call_has_no_growth_there() -> None:
    run = [*BETTER, *alike(80, AFTER_ERROR, 0.5, 0.5)]
    none = replace(CALM, parts=TokenParts(TokenUse(100, 10_000), TokenUse(0, 0)))
    report = decide(
        replace(evaluation(run, candidate=none), incumbent=conduct(100, 100)), GateSettings()
    )
    assert f"tokens {AFTER_ERROR}" not in {item.name for item in report.checks}
    assert report.after_error is not None
    assert report.after_error.token_growth is None


# The evaluation


def record_rates(monkeypatch: pytest.MonkeyPatch, after_error: tuple[float, float]) -> None:
    rates = {TARGET: (0.4, 0.7), OTHER: (0.99, 0.99), AFTER_ERROR: after_error}
    monkeypatch.setenv(RATES, json.dumps(rates))


@pytest.mark.long
def test_a_candidate_whose_job_drew_lessons_plays_them_held_out(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_rates(monkeypatch, (0.95, 0.99))
    row = trained(large, unchanged, base, WRITTEN, LESSONS)
    told = examined(large, row, base, COMMAND, RECORDED)
    assert told[-1].endswith("PROMOTE at look 1")
    report = row_of(large, row.adapter).gate
    assert report is not None
    measured = report.after_error
    assert measured is not None
    assert slice_check(report).tasks == measured.tasks >= 64
    assert measured.candidate > measured.incumbent
    assert {target.name for target in report.targets} == {TARGET}
    (evaluated,) = of_type(large, AdapterEvaluated)
    played = [item for item in rollouts(large) if item.policy == row.adapter and item.task]
    lessons = {item.task.id for item in played if item.task and is_content_id(item.task.id)}
    assert len(lessons) == measured.tasks
    assert evaluated.tasks == len({item.task.id for item in played if item.task}) - len(lessons)
    pilot = [item for item in rollouts(large) if item.policy == "letters" and item.task]
    first = {item.task.id for item in pilot if item.task and is_content_id(item.task.id)} - lessons
    assert len(first) == 12, "the pilot's lessons are none of the gate's"
    with large.reading() as connection:
        words = explain(connection, row.adapter).said
        (cycle,) = learning.cycles(connection)
        practice = read_cycle_practice(connection, cycle)
        pairs = read_task_pairs(
            connection, "agent", "letters", ("letters", row.adapter), timestamp(utc_now())
        )
    assert f"to {measured.candidate:.0%} over {measured.tasks} tasks" in words
    assert practice is not None
    assert practice.after_error == measured
    assert not any(is_content_id(pair.task) for pair in pairs), "no gain of a kind is of lessons"
    # Metrics are of agents with traffic.
    record_slips(large, draw_sources("cancel", 1))
    large.settle()
    sheet = Sheet(LOOP)
    read_loop(large, sheet)
    samples = {item.name: item.samples for item in sheet.metrics()}
    rates = samples["kintsugi_gate_after_error_pass_ratio"]
    assert [sample.value for sample in rates] == [measured.candidate, measured.incumbent]
    assert len(samples["kintsugi_gate_token_growth_ratio"]) == 2
    assert rebuild(large.log, large.engine).equal is True


@pytest.mark.long
def test_an_environment_with_too_few_lessons_is_named(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = after_error.make_refused_lesson

    def make_few(environment: Shop, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        return real(environment, task, seed) if seed_of(task.id) % 40 == 0 else None  # type: ignore[operator]

    monkeypatch.setattr(after_error, "make_refused_lesson", make_few)
    record_rates(monkeypatch, (0.95, 0.99))
    row = trained(large, unchanged, base, WRITTEN, LESSONS)
    told = examined(large, row, base, COMMAND, RECORDED)
    words = [line for line in told if "behind a refused call" in line]
    assert "shop gives 6 of the 12 tasks that were to begin behind a refused call" in words[0]
    assert len(words) == sum(" at look " in line for line in told) + 1
    later = re.search(r"shop gives (\d+) of the (\d+) tasks", words[1])
    assert later is not None
    assert 6 < int(later[1]) < 0.6 * int(later[2]), "every other seed of the second look has one"


def test_without_lessons_a_setting_of_theirs_changes_no_evaluation(
    tmp_path: Path, large: App, base: Path, unchanged: Path
) -> None:
    def find_digest(app: App, lessons: tuple[str, ...], growth: float) -> str:
        gate = app.settings.gate.model_copy(update={"token_growth_after_error": growth})
        settings = app.settings.model_copy(update={"gate": gate})
        with App(settings) as same:
            row = rows[bool(lessons)]
            agent = RECORDED.model_copy(update={"checkpoint": base})
            runner = RecordedRunner(app.home / "trials")
            return CandidateEvaluation(same, runner, agent, row, None).digest

    with opened(tmp_path / "plain") as plain:
        rows = {
            False: trained(plain, unchanged, base, WRITTEN),
            True: trained(large, unchanged, base, WRITTEN, LESSONS),
        }
        assert find_digest(plain, (), 1.0) == find_digest(plain, (), 2.0)
        assert find_digest(large, LESSONS, 1.0) != find_digest(large, LESSONS, 2.0)


@pytest.mark.long
def test_whoever_goes_on_after_a_kill_plays_the_same_lessons(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_rates(monkeypatch, (0.95, 0.99))
    row = trained(large, unchanged, base, WRITTEN, LESSONS)
    examined(large, row, base, COMMAND, RECORDED)
    for noted in (large.home / "trials").glob("*/noted.json"):
        noted.unlink()
    before = len(rollouts(large)), len(of_type(large, GateDecided))
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    list(CandidateEvaluation(large, runner, agent, row, None, held_out=HeldOutLessons()).advance())
    assert (len(rollouts(large)), len(of_type(large, GateDecided))) == before
    played = chain.from_iterable([item.task] for item in rollouts(large))
    assert any(task is not None and is_content_id(task.id) for task in played)
