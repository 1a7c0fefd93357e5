"""The gate of adapters that play users: counts of faults, their bounds, and a trial on disk."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import beta

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.reference.weights import CHECKPOINT
from daemon.evaluation.binomial import bound_share
from daemon.evaluation.plan_program import BadPlan
from daemon.jobs.runner import JOURNAL
from daemon.methods.synthesis.user_training.examples import play_gold
from daemon.methods.synthesis.user_training.player import Dialogue
from daemon.methods.synthesis.users.trial import (
    DialogueResult,
    UserCounts,
    UserPlan,
    describe_dialogue,
    judge_user,
    main,
    play,
    read_result,
    summarize,
)
from envs.episode import Episode, Termination
from envs.episode import play as play_episode
from envs.evidence.user_faults import find_user_fault
from envs.shop.environment import Shop
from envs.users import STOP
from events.jobs import AdapterUser
from events.messages import Message
from events.serving import UserEvaluated
from ops.random_adapters import Maker

SHOP = Shop()
TASKS = ("shop/cancel/1", "shop/question/2", "shop/address/3")


@pytest.mark.parametrize(("count", "whole"), [(0, 600), (3, 600), (5, 600), (599, 600), (1, 1)])
def test_the_bound_is_clopper_and_pearsons(count: int, whole: int) -> None:
    expected = 1.0 if count == whole else float(beta.ppf(0.95, count + 1, whole - count))
    assert bound_share(count, whole, 0.05) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("count", "whole"), [(-1, 5), (6, 5), (0, 0)])
def test_what_is_no_share_has_no_bound(count: int, whole: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        bound_share(count, whole, 0.05)


@pytest.mark.parametrize(
    ("violations", "early_ends", "schema_errors", "passed"),
    [
        (0, 0, 0, True),
        (6, 1, 0, True),
        (7, 0, 0, False),
        (0, 2, 0, False),
        (0, 0, 3, False),
    ],
)
def test_a_user_passes_where_every_upper_bound_keeps_to_its_limit(
    violations: int, early_ends: int, schema_errors: int, passed: bool
) -> None:
    judgement = judge_user(UserCounts(600, violations, early_ends, 600, schema_errors))
    assert judgement.passed is passed
    rates = (judgement.violations, judgement.early_ends, judgement.schema_errors)
    assert [rate.limit for rate in rates] == [0.02, 0.01, 0.005]
    assert [rate.count for rate in rates] == [violations, early_ends, schema_errors]
    assert passed == all(rate.holds for rate in rates)


def result(task: str, **changes: Any) -> DialogueResult:
    fields: dict[str, Any] = {
        "task": task, "termination": "user_stop", "fault": None,
        "written": 3, "success": True, "messages": (),
    }  # fmt: skip
    return DialogueResult.model_validate(fields | changes)


def test_each_fault_of_a_dialogue_counts_once() -> None:
    found = summarize(
        [
            result("a", fault="secret", fault_reason="s"),
            result("b", fault="early_end", fault_reason="e", success=False),
            result("c", fault="tool", fault_reason="t"),
            result("d", schema_errors=("it is empty", "it is empty"), written=5),
        ]
    )
    counts = (found.violations.count, found.early_ends.count, found.schema_errors.count)
    assert counts == (2, 1, 2)
    assert (found.violations.of, found.schema_errors.of, found.solved) == (4, 14, 3)
    assert found.examples == ("a: s", "b: e", "c: t", "d: schema error: it is empty")
    assert not found.passed


def play_as(*lines: str) -> DialogueResult:
    """A dialogue whose user says these lines, then the last one again and again."""
    task = SHOP.generate("cancel", 1)

    class Speaker:
        def reply(self, messages: Any) -> Message:
            said = sum(message.role == "user" for message in messages)
            return Message(role="user", content=lines[min(said, len(lines) - 1)])

    episode = play_episode(Episode(SHOP, task), SHOP.oracle(task), Speaker())
    return describe_dialogue(Dialogue(episode, len(lines), ()))


def test_a_dialogue_is_described_by_what_its_user_did() -> None:
    opening, yes, stop = [
        message.text
        for message in play_gold(SHOP, SHOP.generate("cancel", 1))
        if message.role == "user"
    ]
    exact = play_as(opening, yes, stop)
    assert (exact.fault, exact.success) == (None, True)
    assert play_as(opening, STOP).fault == "early_end"
    assert play_as(opening, "No, never mind.").fault == "instruction"
    endless = play_as(opening, yes, "Thank you.")
    assert endless.fault == "instruction"
    assert "does not end" in endless.fault_reason or "hangs up" in endless.fault_reason


@pytest.mark.parametrize(
    "line", ["I am not sure.", "Let me come back another day.", "Confirm: cancel order O86?"]
)
def test_a_user_beside_whom_the_oracle_fails_has_a_fault_that_no_rule_names(line: str) -> None:
    task = SHOP.generate("cancel", 1)
    opening = play_gold(SHOP, task)[0].text
    evasive = play_as(opening, line, STOP)
    assert evasive.success is False
    assert find_user_fault(SHOP, task, evasive.messages) is None, "no rule names its line"
    assert evasive.fault == "instruction"
    assert "passes the task with the exact user" in evasive.fault_reason
    assert line in evasive.fault_reason


def test_a_task_that_the_oracle_fails_with_the_exact_user_is_no_users_fault() -> None:
    task = SHOP.generate("cancel", 1)
    assert task.script is not None
    # Its script asks for an order to be cancelled, and answers that question with another one.
    answers = tuple(item.model_copy(update={"says": "Why?"}) for item in task.script.answers)
    script = task.script.model_copy(update={"answers": answers})
    unsolvable = task.model_copy(update={"script": script})
    user = SHOP.user(unsolvable)
    episode = play_episode(Episode(SHOP, unsolvable), SHOP.oracle(unsolvable), user)
    described = describe_dialogue(Dialogue(episode, 3, ()))
    assert (described.success, described.fault) == (False, None)


def test_a_dialogue_that_no_line_could_go_on_is_the_users_fault() -> None:
    task = SHOP.generate("cancel", 1)
    episode = Episode(SHOP, task)
    episode.stop(Termination.USER_ERROR, "no line could be used in 3 rounds: it is empty")
    described = describe_dialogue(Dialogue(episode, 3, ("it is empty",) * 3))
    assert described.fault == "instruction"
    assert "it is empty" in described.fault_reason


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> UserPlan:
    """The plan of an adapter that was not trained."""
    folder = Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "player", 0.3)
    user = AdapterUser(
        adapter="player", folder=str(folder), sha256=verify(folder).files[WEIGHTS], max_tokens=8
    )
    return UserPlan(
        name="t", environment="shop", checkpoint=str(CHECKPOINT), alias="agent", base="reference",
        user=user, tasks=TASKS, seed=5, threads=1,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.learning
def test_a_trial_is_played_once_and_says_what_an_untrained_user_does(
    plan: UserPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_result(tmp_path, plan) is None
    file, out = tmp_path / "plan.json", tmp_path / "out"
    file.write_text(plan.model_dump_json())
    assert main([str(file), "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"outcome": "played"}
    found = read_result(out, plan)
    assert found is not None
    assert (found.dialogues, found.passed) == (3, False)
    assert found.violations.count + found.early_ends.count == 3, "it was never shown a customer"
    assert found.schema_errors.count > 0
    assert found.examples
    event = found.to_event(plan)
    assert isinstance(event, UserEvaluated)
    assert (event.adapter, event.environment, event.passed) == ("player", "shop", False)
    journal = out / JOURNAL
    whole = journal.read_bytes()
    first, *_ = whole.splitlines(keepends=True)
    journal.write_bytes(first + b'[{"task": ')
    assert read_result(out, plan) is None
    play(plan, out)
    assert journal.read_bytes() == whole, "a killed trial leaves the same dialogues"
    other = plan.model_copy(update={"seed": 6})
    with pytest.raises(BadPlan, match="another plan"):
        read_result(out, other)


@pytest.mark.long
@pytest.mark.learning
def test_a_gate_gives_its_tasks_manners_in_turn_and_names_them(
    plan: UserPlan, tmp_path: Path
) -> None:
    varied = plan.model_copy(update={"manners": ("polite", "as_is")})
    play(varied, tmp_path)
    result = read_result(tmp_path, varied)
    assert result is not None
    tasks = sorted(example.partition(": ")[0] for example in result.examples)
    assert set(tasks) == {
        "shop/cancel/1 (polite)",
        "shop/question/2 (as_is)",
        "shop/address/3 (polite)",
    }


def test_a_plan_that_cannot_be_played_is_said(
    plan: UserPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    assert main([str(file), "--out", str(tmp_path / "a")]) == 2
    wrong = plan.user.model_copy(update={"sha256": "0" * 64})
    file.write_text(plan.model_copy(update={"user": wrong}).model_dump_json())
    capsys.readouterr()
    assert main([str(file), "--out", str(tmp_path / "b")]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["outcome"] == "failed"
    assert "000000000000" in last["reason"]
