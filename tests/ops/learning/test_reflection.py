"""Practice in repairing: what each arm is shown, what a report says, and short real runs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from daemon.engine.reference.recipe import WEAK
from daemon.solver.reference.demonstrations import DEVELOPMENT, HELD_OUT, TRAINING
from envs.lessons.operators import PERTURBATIONS
from envs.task import Operator
from ops.learning import bootstrap
from ops.learning.reflection import report
from ops.learning.reflection.__main__ import main
from ops.learning.reflection.results import ArmRun, Key, Tries, read
from ops.learning.reflection.run import Bench, build_spec, choose_references, practise
from ops.learning.reflection.settings import (
    ARMS,
    CONTROL,
    SEEDS,
    SETTINGS,
    TAUGHT,
    Arm,
)
from ops.learning.results import Source, write_document
from ops.learning.seeds import COMPARED, PRACTISED, REPORTED, Seeds

SOURCE = Source(commit="c" * 40, clean=True, settings=SETTINGS.digest, base="b" * 64)
TRIES = SETTINGS.tries
SHORT = SETTINGS.model_copy(
    update={
        "budget": 64, "references": 24, "groups": 4, "size": 4, "tasks": 1, "lessons": 2,
        "tries": 5, "trials": 2,
    }
)  # fmt: skip


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)


def key(arm: Arm, seed: int = 1) -> Key:
    return Key(arm=arm, seed=seed, development=True)


def test_reported_seeds_meet_no_others() -> None:
    for used in (REPORTED, COMPARED, DEVELOPMENT, HELD_OUT, TRAINING):
        assert used.stop <= PRACTISED.start or PRACTISED.stop <= used.start
    for seed in SEEDS:
        Seeds.among(PRACTISED, seed)


def test_nothing_is_shown_of_the_weak_kinds_but_in_the_loops_arm() -> None:
    assert set(WEAK).isdisjoint(TAUGHT)
    for arm, definition in ARMS.items():
        shown = choose_references(Bench(key(arm), SHORT), definition)
        kinds = {task.capability for task in shown.tasks}
        assert bool(kinds & set(WEAK)) == (arm == "loop")


@pytest.mark.parametrize("arm", [arm for arm in ARMS if ARMS[arm].is_trained])
def test_every_arm_spends_the_budget(arm: Arm) -> None:
    bench = Bench(key(arm), SHORT)
    shown = choose_references(bench, ARMS[arm])
    spec, bodies = build_spec(bench, key(arm), ARMS[arm], shown)
    assert spec.reference_count == len(shown.tasks)
    if arm == CONTROL:
        assert spec.sampler.rollouts > SHORT.budget
    else:
        assert spec.sampler.rollouts == SHORT.budget
    assert all(task.id in bodies for task in shown.lessons)
    held_out = {lesson.id for own in bench.held_out.values() for lesson in own}
    assert held_out.isdisjoint(bodies)
    (lessons,) = (pool for pool in spec.pools if pool.name == "lessons")
    assert lessons.reward == (ARMS[arm].reward if ARMS[arm].algorithm else "verdict")


def test_the_control_is_shown_as_many_tokens_and_no_reflection() -> None:
    bench = Bench(key("sft"), SHORT)
    plain, reflecting = (choose_references(bench, ARMS[arm]) for arm in (CONTROL, "sft"))
    assert plain.ordinary == reflecting.ordinary
    assert len(plain.lessons) > len(reflecting.lessons)
    assert all(task.lesson is None and task.prefix for task in plain.lessons)
    tokens = [sum(bench.count_tokens(shown.lessons)) for shown in (plain, reflecting)]
    longest = max(bench.count_tokens(plain.lessons))
    assert 0 <= tokens[0] - tokens[1] < longest


def test_operators_are_practised_in_equal_parts() -> None:
    bench = Bench(key("sft"), SHORT)
    shown = choose_references(bench, ARMS["sft"]).lessons
    operators = [task.lesson.operator for task in shown if task.lesson]
    assert {operators.count(name) for name in PERTURBATIONS} == {len(shown) // len(PERTURBATIONS)}
    assert {name: len(own) for name, own in bench.held_out.items()} == dict.fromkeys(
        PERTURBATIONS, SHORT.lessons
    )


def test_no_two_lessons_of_an_operator_are_of_one_conversation() -> None:
    for operator in PERTURBATIONS:
        practice = Bench(key("sft"), SHORT).practice
        own = [task.lesson for task in practice if task.lesson and task.lesson.operator == operator]
        assert len({lesson.source for lesson in own}) == len(own) == SHORT.budget // 2


def finished(arm: Arm, seed: int, repaired: int, passed: int, clean: Sequence[bool]) -> ArmRun:
    """A run whose tries at each lesson are right so often."""
    tries = Tries(
        repaired=tuple(n < repaired for n in range(TRIES)),
        official=(False,) * TRIES,
        passed=tuple(n < passed for n in range(TRIES)),
        reflected=(True,) * TRIES,
        repeated=(0,) * TRIES,
        tokens=(40,) * TRIES,
    )
    injected: dict[Operator, dict[str, Tries]] = {
        name: {f"shop/={name}{n}": tries for n in range(4)} for name in PERTURBATIONS
    }
    return ArmRun(
        key=Key(arm=arm, seed=seed),
        source=SOURCE,
        clean={
            kind: {f"shop/{kind}/{n}": tuple(clean) for n in range(4)} for kind in SETTINGS.kinds
        },
        clean_tokens=dict.fromkeys(SETTINGS.kinds, 30.0),
        injected=injected,
        kind_of={},
        seconds=1.0,
        processor_seconds=1.0,
    )


def rows_of(text: str, title: str) -> list[list[str]]:
    table = text.partition(f"{title}\n\n")[2].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]


def test_a_report_says_which_goals_are_met() -> None:
    good, bad = (True, True, True), (True, False, True)
    made = [finished("base", seed, 1, 1, good) for seed in SEEDS]
    made += [finished(CONTROL, seed, 3, 4, good) for seed in SEEDS]
    made += [finished("sft", seed, 8, 8, good) for seed in SEEDS]
    made += [finished("rl", seed, 4, 2, bad) for seed in SEEDS]
    goals = rows_of(report.write_report(made, SETTINGS), "Goals")
    by_arm = {
        arm: {row[1]: row[4] for row in goals if row[0] == f"`{arm}`"} for arm in ("sft", "rl")
    }
    assert set(by_arm["sft"].values()) == {"met and shown"}
    assert len(by_arm["sft"]) == 4
    assert by_arm["rl"]["Repair@1 after `argument`"] == "**not met**, and shown to be below"
    lost = {name for name in by_arm["rl"] if name.endswith("less the base")}
    assert lost == {f"{kind}, less the base" for kind in TAUGHT}
    assert all("not met" in by_arm["rl"][name] for name in lost)


def test_repairs_in_more_tries_are_without_bias() -> None:
    """3 of 8 right: 1 - C(5, k) / C(8, k)."""
    text = report.write_report([finished("base", 1, 3, 3, (True,))], SETTINGS)
    (row,) = rows_of(text, "All operators: more tries, and the benchmark's own rule")[2:]
    assert [cell.split()[0] for cell in row[1:4]] == ["0.375", "0.821", "0.982"]


def test_results_of_other_settings_and_without_a_base_are_refused(tmp_path: Path) -> None:
    other = finished("base", 1, 1, 1, (True,))
    changed = other.model_copy(update={"source": SOURCE.model_copy(update={"settings": "d" * 64})})
    with pytest.raises(report.OtherSettings, match="another folder"):
        report.write_report([other, changed], SETTINGS)
    with pytest.raises(report.NothingToReport):
        report.write_report([finished("sft", 1, 1, 1, (True,))], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1


def test_the_command_leaves_results_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished("base", 1, 1, 1, (True,))
    write_document(run.key.locate(tmp_path), run)
    before = (tmp_path / "seed1-base.json").read_bytes()
    assert main(["run", "--out", str(tmp_path), "--seeds", "1", "--arms", "base"]) == 0
    assert (tmp_path / "seed1-base.json").read_bytes() == before
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert "0 of 5 seeds have all arms" in capsys.readouterr().out


@pytest.mark.learning
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_arms_run_to_their_end_and_go_on_where_they_were(tmp_path: Path) -> None:
    arms: tuple[Arm, ...] = ("base", "prompted", CONTROL, "sft", "rl", "sft_rl", "loop")
    for arm in arms:
        made = practise(key(arm), SHORT, tmp_path)
        write_document(made.key.locate(tmp_path), made)
    runs = {run.key.arm: run for run in read(tmp_path)}
    assert set(runs) == set(arms)
    assert runs["base"].clean != runs["prompted"].clean
    for arm, run in runs.items():
        assert run.adapter is None or ARMS[arm].is_trained
        assert run.references + run.rollouts <= max(SHORT.budget, run.references)
    assert runs["sft"].adapter is not None
    assert runs["sft"].references == SHORT.budget
    assert runs["rl"].rollouts == SHORT.budget
    # A job that is finished is not run again.
    again = practise(key("sft"), SHORT, tmp_path)
    assert again.adapter == runs["sft"].adapter
    assert again.injected == runs["sft"].injected
