"""Recorded simulations, graded again: who is right, and whose task ids are wrong."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.maintenance.regrade import RegradeReport, regrade
from envs.registry import open_environment
from tests.daemon.commands import run_here
from tests.daemon.conftest import Kintsugi
from tests.envs.tau2.files import CANCEL, TASKS, action, task, write_folder

Json = dict[str, Any]
Grade = Callable[..., list[RegradeReport]]


def simulation(number: str, calls: Sequence[Json] = (), reward: float = 1.0, **more: Any) -> Json:
    """One run in which the agent makes these calls and the user hangs up."""
    messages: list[Json] = [{"role": "user", "content": f"Run {number}, please."}]
    for place, call in enumerate(calls):
        made = {"id": f"c{place}", "name": call["name"], "arguments": call["arguments"]}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "id": f"c{place}", "content": "done", "error": False})
    messages.append({"role": "assistant", "content": "It costs 10.10.", "usage": {"n": 1}})
    messages.append({"role": "user", "content": "Thanks. ###STOP###"})
    return {
        "id": f"run-{number}-{len(calls)}-{reward}",
        "task_id": number,
        "messages": messages,
        "termination_reason": "user_stop",
        "reward_info": {"reward": reward, "reward_breakdown": {"DB": reward}},
        "trial": 0,
        **more,
    }


def results(path: Path, *simulations: Json, tasks: Any = TASKS, domain: str = "retail") -> Path:
    """A results file of tau2-bench."""
    info = {
        "git_commit": "abc",
        "agent_info": {"implementation": "llm_agent", "llm": "small"},
        "user_info": {"implementation": "user_simulator", "llm": "small"},
        "environment_info": {"domain_name": domain},
    }
    path.write_text(json.dumps({"info": info, "tasks": tasks, "simulations": simulations}))
    return path


CANCELLED = (action("cancel_pending_order", CANCEL),)


@pytest.fixture
def graded(tmp_path: Path) -> Grade:
    """Grade files again on the small folder of real tasks."""
    folder = write_folder(tmp_path / "real")
    return lambda *paths: list(
        regrade(paths, lambda name: open_environment(name, benchmarks=folder))
    )


def test_a_verdict_that_follows_from_what_was_done_is_confirmed(
    graded: Grade, tmp_path: Path
) -> None:
    file = results(
        tmp_path / "a.json", simulation("0"), simulation("9"), simulation("9", CANCELLED, 0.0)
    )
    (found,) = graded(file)
    assert (found.file, found.env) == (str(file), "retail")
    assert (found.simulations, found.graded, found.agree, found.disagree) == (3, 3, 3, [])
    assert found.in_order


def test_a_wrong_verdict_is_named_with_what_speaks_against_it(
    graded: Grade, tmp_path: Path
) -> None:
    (found,) = graded(
        results(tmp_path / "a.json", simulation("9", CANCELLED, 1.0), simulation("0", reward=0.0))
    )
    too_good, too_bad = found.disagree
    assert (too_good.task, too_good.recorded, too_good.ours) == ("retail/9", True, False)
    assert "/status is 'cancelled' and should be 'pending'" in too_good.why
    assert "recorded: DB 1.0" in too_good.why
    assert (too_bad.task, too_bad.recorded, too_bad.ours) == ("retail/0", False, True)
    assert "every part is 1 (recorded: DB 0.0)" in too_bad.why
    assert not found.in_order
    assert not found.mislabelled, "two of two may be mistakes"


def test_a_verdict_that_our_rules_change_is_listed_and_contradicts_nothing(
    graded: Grade, tmp_path: Path
) -> None:
    look = [action("get_user_details", {"user_id": "ada_berg_1"})]
    tasks = [
        task("0", look, communicate_info=["0.10"]),
        task("9", look, communicate_info=["10.100"]),
    ]
    (report,) = graded(
        results(tmp_path / "a.json", simulation("0"), simulation("9", reward=0.0), tasks=tasks)
    )
    assert report.in_order
    lenient, strict = report.differ
    assert (lenient.task, lenient.benchmark, lenient.ours) == ("retail/0", True, False)
    assert lenient.why == "'0.10' was not said"
    assert (strict.task, strict.benchmark, strict.ours) == ("retail/9", False, True)
    assert strict.why == "'10.100' was not said"


def test_an_irregular_end_is_a_failure_whatever_was_done(graded: Grade, tmp_path: Path) -> None:
    cut = simulation("0", reward=0.0, termination_reason="max_steps")
    (found,) = graded(results(tmp_path / "a.json", cut))
    assert (found.agree, found.disagree) == (1, [])
    claimed = {**cut, "reward_info": {"reward": 1.0}}
    (found,) = graded(results(tmp_path / "b.json", claimed))
    assert found.disagree[0].why == "ended by max_steps (recorded: no parts)"


def test_a_judges_part_is_never_taken_for_right_but_a_broken_state_is_wrong_without_one(
    graded: Grade, tmp_path: Path
) -> None:
    (found,) = graded(
        results(tmp_path / "a.json", simulation("1", CANCELLED), simulation("1", reward=0.0))
    )
    assert (found.simulations, found.graded, found.agree, found.unevaluated) == (2, 1, 1, 1)


def test_the_embedded_task_counts_and_not_the_folders(graded: Grade, tmp_path: Path) -> None:
    """Task 9 of the folder is to change nothing; this file's is to cancel."""
    embedded = [task("9", list(CANCELLED), reward_basis=["DB"])]
    (found,) = graded(results(tmp_path / "a.json", simulation("9", CANCELLED), tasks=embedded))
    assert (found.graded, found.agree) == (1, 1)


def test_what_cannot_be_graded_is_counted(graded: Grade, tmp_path: Path) -> None:
    unjudged = simulation("0", reward_info=None)
    unknown = [task("0", [], reward_basis=["VIBES"])]
    (one,) = graded(results(tmp_path / "a.json", unjudged))
    assert (one.simulations, one.graded, one.unjudged, one.in_order) == (1, 0, 1, True)
    (one,) = graded(results(tmp_path / "b.json", simulation("0"), tasks=unknown))
    assert (one.graded, one.unevaluated, one.in_order) == (0, 1, True)
    (one,) = graded(results(tmp_path / "c.json", simulation("0"), domain="mock"))
    assert (one.env, one.simulations, one.graded) == ("mock", 1, 0)
    assert one.why == "environment mock is imported and diagnosed, not executed"
    assert one.in_order


def test_another_format_is_not_graded(graded: Grade, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello?"}]}))
    (found,) = graded(file)
    assert (found.simulations, found.graded) == (1, 0)
    assert found.why.startswith("openai files are not graded again")


def test_what_cannot_be_read_is_named(graded: Grade, tmp_path: Path) -> None:
    broken = {**simulation("0"), "messages": "none"}
    (found,) = graded(results(tmp_path / "a.json", simulation("0"), broken))
    assert (found.simulations, found.agree) == (1, 1)
    assert [one.position for one in found.rejected] == ["simulations[1]"]
    assert not found.in_order


def test_a_file_with_nothing_in_it_says_so(graded: Grade, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("")
    (found,) = graded(tmp_path / "empty.json")
    assert (found.env, found.simulations) == (None, 0)
    assert found.why == "no simulation could be read"
    assert found.rejected


def test_a_folder_of_simulations_is_one_file(graded: Grade, tmp_path: Path) -> None:
    whole = json.loads(results(tmp_path / "whole.json").read_text())
    place = tmp_path / "run"
    (place / "simulations").mkdir(parents=True)
    del whole["simulations"]
    (place / "results.json").write_text(json.dumps(whole))
    for name in ("a", "b"):
        (place / "simulations" / f"{name}.json").write_text(json.dumps(simulation("0")))
    (found,) = graded(place)
    assert found.file == str(place / "results.json")
    assert (found.simulations, found.agree) == (2, 2)


def checked(number: str, by: Sequence[Json]) -> Json:
    """A simulation that was graded by these gold actions."""
    checks = [{"action": one, "action_match": True, "action_reward": 1.0} for one in by]
    return simulation(number, reward_info={"reward": 1.0, "action_checks": checks})


@pytest.mark.parametrize(
    ("wrong", "of", "mislabelled"),
    [
        (0, 4, False), (2, 2, False), (3, 3, False), (4, 4, True), (3, 20, False), (8, 20, True),
        (8, 50, False), (12, 50, False), (14, 50, True), (25, 50, True), (50, 50, True),
    ],
)  # fmt: skip
def test_more_wrong_verdicts_than_mistakes_explain_are_wrong_labels(
    graded: Grade, tmp_path: Path, wrong: int, of: int, mislabelled: bool
) -> None:
    runs = [simulation("0", reward=0.0)] * wrong + [simulation("0")] * (of - wrong)
    (found,) = graded(results(tmp_path / "a.json", *runs))
    assert (found.graded, found.agree) == (of, of - wrong)
    assert found.mislabelled is mislabelled
    said = f"only {of - wrong} of {of} verdicts follow from what was done"
    assert found.why.startswith(said if mislabelled else "")


def test_shuffled_task_ids_are_found_even_where_all_verdicts_are_equal(
    graded: Grade, tmp_path: Path
) -> None:
    gold = TASKS[0]["evaluation_criteria"]["actions"]
    (fine,) = graded(results(tmp_path / "a.json", *[checked("0", gold)] * 6))
    assert (fine.foreign, fine.mislabelled) == (0, False)
    (shuffled,) = graded(results(tmp_path / "b.json", *[checked("0", CANCELLED)] * 6))
    assert (shuffled.agree, shuffled.foreign, shuffled.mislabelled) == (6, 6, True)
    assert "6 of 6 simulations carry the action checks of another task" in shuffled.why


def test_the_command_exits_with_three_when_something_is_wrong(tmp_path: Path) -> None:
    variables = {
        "KINTSUGI_HOME": str(tmp_path / "home"),
        "KINTSUGI_BENCHMARKS": str(write_folder(tmp_path / "real")),
    }
    fine = results(tmp_path / "fine.json", simulation("0"))
    wrong = results(tmp_path / "wrong.json", simulation("0", reward=0.0))
    done = run_here(("env", "regrade", str(fine), "--json"), variables)
    assert done.code == 0, done.err
    (row,) = done.json
    assert (row["file"], row["env"], row["simulations"]) == (str(fine), "retail", 1)
    assert (row["graded"], row["agree"], row["disagree"]) == (1, 1, [])
    assert (row["mislabelled"], row["why"]) == (False, "")
    done = run_here(("env", "regrade", str(fine), str(wrong), "--json"), variables)
    assert done.code == 3
    (bad,) = done.json[1]["disagree"]
    assert (bad["task"], bad["recorded"], bad["ours"]) == ("retail/0", False, True)
    assert set(bad) == {"rollout", "task", "recorded", "ours", "why"}
    tasks = [task("0", [], communicate_info=["0.10"])]
    changed = results(tmp_path / "changed.json", simulation("0"), tasks=tasks)
    listed = run_here(("env", "regrade", str(changed)), variables)
    assert listed.code == 0
    assert "retail/0 is a success by the benchmark's rules and a failure by ours" in listed.out
    shown = run_here(("env", "regrade", str(fine), str(wrong)), variables)
    assert shown.code == 3
    assert "retail/0 was a failure, is a success" in shown.out


def test_without_the_real_database_the_command_says_what_to_do(tmp_path: Path) -> None:
    file = results(tmp_path / "a.json", simulation("0"))
    done = run_here(("env", "regrade", str(file)), {"KINTSUGI_HOME": str(tmp_path)})
    assert done.code == 1
    assert "set KINTSUGI_BENCHMARKS to the folder that holds tau2/retail" in done.err


@pytest.mark.benchmarks
def test_every_real_verdict_is_confirmed_and_the_mislabelled_file_is_found(
    kintsugi: Kintsugi, benchmarks: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_BENCHMARKS", str(benchmarks))
    done = kintsugi("env", "regrade", benchmarks / "tau2_simulations", "--json")
    assert done.code == 3
    good = [row for row in done.json if "BROKEN" not in row["file"]]
    (broken,) = [row for row in done.json if "BROKEN" in row["file"]]
    telecom = [row for row in done.json if row["env"] == "telecom"]

    assert sum(row["simulations"] for row in good) == 210
    assert sum(row["graded"] for row in good) == sum(row["agree"] for row in good) == 210
    assert not any(row["mislabelled"] or row["disagree"] or row["why"] for row in good)
    assert not any(row["differ"] for row in done.json)
    assert (broken["graded"], broken["agree"], broken["mislabelled"]) == (50, 25, True)
    assert len(broken["disagree"]) == 25
    assert sum(row["simulations"] for row in telecom) == 100
    assert all(row["agree"] == row["graded"] == row["simulations"] for row in telecom)
