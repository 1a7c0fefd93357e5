"""Tables and curves of finished runs."""

from pathlib import Path
from random import Random

import pytest

from envs.shop.kinds import PLAIN
from ops.learning import report, results
from ops.learning.results import Costs, Key, PolicyEvaluation, Run, Source, Step
from ops.learning.settings import SETTINGS, WEAK, Arm, traffic, unseen
from ops.learning.targets import Target, Targets

TASKS = 24
SOURCE = Source(commit="c" * 40, clean=True, settings=SETTINGS.digest, base="b" * 64)
TARGETS = Targets(
    targets=(Target(generator="shop/x", pattern="p|*", failures=3, attempts=4),),
    siblings={},
    kept={},
)


def evaluated(budget: int, spent: int, weak: float, seed: int) -> PolicyEvaluation:
    """Plain kinds pass always; of the others' trials this share."""
    chance = Random(f"tasks {seed}")
    worth = {
        kind: [[chance.random() for _ in range(3)] for _ in range(TASKS)]
        for kind in (*PLAIN, *WEAK["main"])
    }
    return PolicyEvaluation(
        budget=budget,
        spent=spent,
        outcomes={
            kind: {
                f"shop/{kind}/{n}": tuple(kind in PLAIN or drawn < weak for drawn in trials)
                for n, trials in enumerate(tasks)
            }
            for kind, tasks in worth.items()
        },
    )


def run(arm: Arm, seed: int, rates: dict[int, float], share: float = 0.13) -> Run:
    """A run whose weak kinds pass at these rates after so many rollouts."""
    trained = arm not in ("base", "c")
    steps = [
        Step(spent=64 * n, informative=0.5, passed=0.5, groups={"all": 8}) for n in range(1, 17)
    ]
    idle = evaluated(0, 0, 0.0, seed).outcomes
    never = {kind: dict.fromkeys(tasks, (False,) * 3) for kind, tasks in idle.items()}
    return Run(
        key=Key(arm=arm, capabilities="main", share=share, seed=seed),
        source=SOURCE,
        budget=2048,
        spent=Costs(training=max(rates)),
        targets=TARGETS if arm in ("b", "c", "d") else None,
        ended="budget",
        steps=tuple(steps) if trained else (),
        evaluations=tuple(evaluated(b, b, rate, seed) for b, rate in rates.items()),
        passive=never if arm == "base" else {},
        seconds=60.0,
    )


def runs(seeds: range) -> list[Run]:
    made = []
    for seed in seeds:
        made.append(run("base", seed, {0: 0.4}))
        made.append(run("a", seed, {1024: 0.45, 2048: 0.5}))
        made.append(run("d", seed, {1024: 0.6, 2048: 0.8}))
    return made


def test_a_result_is_read_as_it_was_written_and_not_run_again(tmp_path: Path) -> None:
    made = runs(range(1, 3))
    keys = [one.key for one in made]
    assert list(results.select_pending(tmp_path, keys)) == keys
    for one in made[:4]:
        results.write(tmp_path, one)
    assert list(results.select_pending(tmp_path, keys)) == keys[4:]
    for one in made[4:]:
        results.write(tmp_path, one)
    assert {one.key.name: one for one in results.read(tmp_path)} == {
        one.key.name: one for one in made
    }
    assert not list(tmp_path.glob("*.partial"))


def test_arms_are_compared_over_the_seeds_that_all_have_finished() -> None:
    made = runs(range(1, 5))
    [whole] = report.group_runs(made)
    assert (whole.seeds, whole.arms, whole.budgets) == ([1, 2, 3, 4], ["a", "d"], [1024, 2048])
    [some] = report.group_runs([one for one in made if one.key.name != made[2].key.name])
    assert some.seeds == [2, 3, 4]


def test_every_table_says_what_the_outcomes_do() -> None:
    [one] = report.group_runs(runs(range(1, 4)))
    base, best = one.task_rates("base", None, 1), one.task_rates("d", 2048, 1)
    assert base is not None
    assert best is not None
    weak = one.weights["weak mean"]
    assert sum(base.by_seed(weak)) / 3 == pytest.approx(0.4, abs=0.07)
    assert sum(best.by_seed(weak)) / 3 == pytest.approx(0.8, abs=0.07)
    text = report.text([one])
    gain = sum((best - base).by_seed(one.weights["overall"])) / 3
    assert f"{gain:+.3f} [" in text
    assert "| doing nothing | 0 | 0.000 [0.000, 0.000]" in text
    assert "| exchange | 1.000 [1.000, 1.000] | +0.000 [+0.000, +0.000] |" in text
    assert "seeds 1, 2, 3" in text
    assert SETTINGS.digest[:12] in text


def test_a_warm_start_alone_stands_in_one_row_with_what_it_spent() -> None:
    made = [*runs(range(1, 3)), *(run("c", seed, {300: 0.5}) for seed in (1, 2))]
    [one] = report.group_runs(made)
    rows = [row for row in report.scores(one).splitlines() if row.startswith("| (c)")]
    assert len(rows) == 1
    assert rows[0].startswith("| (c) the warm start alone | 300 |")
    assert "1,748" in report.mechanism(one)


def test_traffics_are_reported_apart() -> None:
    other = [run("base", 1, {0: 0.4}, share=0.5), run("a", 1, {2048: 0.6}, share=0.5)]
    found = report.group_runs([*runs(range(1, 3)), *other])
    assert [(one.share, one.seeds) for one in found] == [(0.13, [1, 2]), (0.5, [1])]


def test_without_a_base_there_is_nothing_to_report() -> None:
    with pytest.raises(report.NothingToReport, match="base"):
        report.group_runs([run("a", 1, {2048: 0.5})])


def test_the_image_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    found = report.group_runs(runs(range(1, 3)))
    for name in ("one.svg", "two.svg"):
        report.draw(found, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    assert b"weak mean" in drawn
    assert b"targeted GRPO, no warm start" in drawn


def test_the_mix_gives_weak_kinds_their_share_in_equal_parts() -> None:
    mix = traffic("main", 0.13)
    assert sum(mix.values()) == pytest.approx(1)
    assert {round(mix[kind], 12) for kind in WEAK["main"]} == {round(0.13 / len(WEAK["main"]), 12)}
    assert sum(mix[kind] for kind in PLAIN) == pytest.approx(0.87)


def test_the_unseen_set_is_the_kinds_in_between_that_no_other_set_has() -> None:
    known = WEAK["main"][0]
    found = unseen({"cancel": 0.3, known: 0.3, "refund": 0.15, "all_but": 0.14, "handover": 0.61})
    assert found == ("refund",)
