"""bfcl without its classes: splits, tasks, what it shows and what it says is missing."""

import sys
from pathlib import Path

import pytest

from envs.bfcl.cases import MORE_TOOLS, SPLITS
from envs.bfcl.classes import NoBfclClasses, read_official_sentence
from envs.bfcl.environment import NATIVE_SPLITS, POLICY, Bfcl
from envs.environment import UnknownTask
from envs.episode import Episode, Party, play
from envs.footprint import Sample
from envs.grading import grade
from envs.registry import open_environment
from envs.tau2.benchmark import NoBenchmark
from envs.users import STOP
from tests.envs.bfcl.files import LOOK, MOVE, answers_of, cases_of, write_folder
from tests.envs.mini import heard, said


def test_without_a_folder_it_has_no_splits() -> None:
    assert open_environment("bfcl").splits == {}
    assert Bfcl(Path("/nowhere")).splits == {}


def test_the_splits_are_the_categories_and_their_tasks_are_found_by_id(bfcl: Bfcl) -> None:
    assert bfcl.splits == dict.fromkeys((*SPLITS, *NATIVE_SPLITS), 1)
    for split in SPLITS:
        (task,) = bfcl.tasks(split)
        assert task.id == f"bfcl/{split}/7"
        assert (task.split, task.capability) == (split, f"multi_turn_{split}")
        assert bfcl.task(task.id) == task


def test_in_fc_mode_there_is_no_system_prompt_and_the_user_says_bfcls_own_sentence(
    classes: None, bfcl: Bfcl
) -> None:
    (ours,), (task,) = bfcl.tasks("miss_func"), bfcl.tasks("miss_func-fc")
    assert (task.id, task.split) == ("bfcl/miss_func/7/fc", "miss_func-fc")
    assert bfcl.task(task.id) == task
    assert (bfcl.policy(ours), bfcl.policy(task)) == (POLICY, "")
    assert task.script is not None
    says = [answer.says for answer in task.script.answers]
    assert says[1] == read_official_sentence() != MORE_TOOLS
    episode = Episode(bfcl, task)
    episode.receive(heard(LOOK))
    assert [message.role for message in episode.view(Party.AGENT)] == ["user"]
    played = play(Episode(bfcl, task), bfcl.oracle(task), bfcl.user(task))
    assert grade(bfcl, task, played.messages, played.termination).success


def test_a_category_without_its_file_is_no_split_and_costs_the_others_nothing(
    bfcl: Bfcl, tmp_path: Path
) -> None:
    cases_of(tmp_path, "miss_param").unlink()
    answers_of(tmp_path, "long_context").unlink()
    assert [task.id for task in bfcl.tasks("base")] == ["bfcl/base/7"]
    assert bfcl.catalog.tools
    with pytest.raises(NoBenchmark, match="long_context"):
        bfcl.tasks("long_context")
    write_folder(tmp_path)
    cases_of(tmp_path, "miss_param").unlink()
    assert set(SPLITS) - set(bfcl.splits) == {"miss_param"}
    with pytest.raises(NoBenchmark, match="miss_param"):
        bfcl.tasks("miss_param")


def test_it_generates_no_tasks(bfcl: Bfcl) -> None:
    with pytest.raises(UnknownTask, match="generates no tasks; it has base, miss_func"):
        bfcl.tasks()
    with pytest.raises(UnknownTask, match="generates no tasks"):
        bfcl.generate("multi_turn_base", 0)
    with pytest.raises(UnknownTask, match="no split 'generated'"):
        Sample(environment="bfcl", tasks=5).slots(bfcl)


def test_an_unknown_task_is_answered_with_what_an_id_looks_like(bfcl: Bfcl) -> None:
    with pytest.raises(UnknownTask, match="ids are bfcl/SPLIT/NUMBER"):
        bfcl.task("bfcl/base/8")


def test_the_user_says_one_message_after_the_other_and_hangs_up(bfcl: Bfcl) -> None:
    task = bfcl.task("bfcl/miss_func/7")
    user, messages = bfcl.user(task), [said("...")][:0]
    for _ in range(4):
        messages += [user.reply(messages), said("Whatever I say.")]
    assert [message.text for message in messages[::2]] == [LOOK, MOVE, MORE_TOOLS, STOP]


def test_held_out_tools_are_shown_from_the_turn_in_which_they_come(bfcl: Bfcl) -> None:
    task = bfcl.task("bfcl/miss_func/7")
    view = [heard(LOOK)]
    assert "mv" not in _names(bfcl.select_schemas(task, view))
    view += [said("Notes."), heard(MOVE), said("I cannot."), heard(MORE_TOOLS)]
    assert (
        _names(bfcl.select_schemas(task, view))
        == _names(bfcl.schemas(task))
        == ["ls", "mv", "mean"]
    )


def test_missing_classes_are_named_with_the_command_that_installs_them(
    bfcl: Bfcl, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.trading_bot"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        NoBfclClasses, match=r"uv pip install .* --no-deps bfcl-eval==2026\.3\.23 mpmath==1\.3\.0"
    ):
        Episode(bfcl, bfcl.task("bfcl/base/7"))


def _names(schemas: list[dict[str, dict[str, str]]]) -> list[str]:
    return [schema["function"]["name"] for schema in schemas]
