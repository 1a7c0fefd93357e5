"""The table of Structured Reflection: its plan, its errors, its lessons, and the whole of it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.journal import read_definitions
from envs.lessons.making import make_lessons
from envs.task import TaskDefinition, find_split
from events.jobs import JobSpec
from ops.reproduce.__main__ import main
from ops.reproduce.commands import Folder
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.options import BENCHMARKS
from ops.reproduce.reflection.commands import find_lessons
from ops.reproduce.reflection.jobs import (
    NoLessons,
    is_spelled,
    plan_jobs,
    select_evaluated,
    select_lessons,
)
from ops.reproduce.reflection.settings import SMALL, Reproduction
from ops.reproduce.reflection.table import CLEAN, INJECTED
from tests.envs.bfcl.files import write_folder
from tests.ops.reproduce.engine import run_engine

NOWHERE = "http://127.0.0.1:9/v1"
"""A URL at which nothing listens."""


@pytest.fixture(autouse=True)
def no_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is named but where a test names one."""
    monkeypatch.delenv(BENCHMARKS, raising=False)


def options(out: Path, url: str = NOWHERE) -> list[str]:
    return [
        "reflection", "--out", str(out), "--base-url", url, "--checkpoint", str(CHECKPOINT),
        "--model", "reference", "--env", "shop", "--small",
    ]  # fmt: skip


def planned(out: Path, *more: str) -> Reproduction:
    """The plan of these options, which the folder holds from its first stage on."""
    assert main([*options(out), *more, "--only", "check"]) == 4
    return Reproduction.model_validate_json(Folder(out).settings.read_bytes())


def test_the_plan_names_every_stage_with_its_command_and_asks_no_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("")
    more = ["--items", str(items), "--presets", "sr_paper,gspo", "--plan"]
    assert main([*options(tmp_path / "run"), *more]) == 0
    text = capsys.readouterr().out
    stages = re.findall(r"^# ([a-z_-]+): [^\n]*\n(.+)$", text, re.MULTILINE)
    assert [name for name, _ in stages] == [
        "check", "evaluate-base", "items-base", "lessons", "write-specs", "train-sft",
        "train-sr_paper", "train-gspo", "load", "evaluate-sft", "items-sft", "evaluate-sr_paper",
        "items-sr_paper", "evaluate-gspo", "items-gspo", "report",
    ]  # fmt: skip
    commands = dict(stages)
    assert commands["lessons"].startswith("kintsugi lessons make --env shop")
    assert commands["evaluate-base"].count("--inject") == 4
    assert commands["items-sft"].startswith(f"kintsugi bench reflection {items}")
    assert commands["train-sft"].startswith("python -m daemon.solver")
    assert not (tmp_path / "run").exists()


def test_bfcl_is_played_where_the_folder_has_it_and_its_classes_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BENCHMARKS, str(write_folder(tmp_path / "benchmarks")))
    assert main([*options(tmp_path / "out"), "--without-bfcl", "--plan"]) == 0
    assert "bfcl-base" not in capsys.readouterr().out
    module = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.trading_bot"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        assert main([*options(tmp_path / "lacking"), "--plan"]) == 2
    assert "--without-bfcl" in capsys.readouterr().err
    pytest.importorskip("bfcl_eval")
    assert main([*options(tmp_path / "whole"), "--plan"]) == 0
    assert "kintsugi bench bfcl --cases 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--presets", "ppo"], "--presets"),
        (["--items", "/nowhere"], "--items"),
        (["--only", "sleep"], "no stage"),
        (["--seed", "1"], "other options"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: list[str], reason: str
) -> None:
    planned(tmp_path)
    assert main([*options(tmp_path), *changed]) == 2
    assert reason in capsys.readouterr().err


def test_the_folder_of_another_table_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path)
    assert main(["sentinel", *options(tmp_path)[1:], "--plan"]) == 2
    assert "no plan of sentinel" in capsys.readouterr().err


def write_lessons(folder: Folder, lessons: tuple[TaskDefinition, ...]) -> None:
    """The file that the stage `lessons` leaves."""
    text = "".join(f"{task.model_dump_json()}\n" for task in lessons)
    find_lessons(folder).write_text(text)


def test_some_lessons_are_shown_and_the_others_practised_from_the_shown_ones_adapter(
    tmp_path: Path,
) -> None:
    plan, folder = planned(tmp_path, "--presets", "sr_paper,dapo"), Folder(tmp_path)
    shop = open_plan_environment(plan)
    sources = [shop.generate(kind, 7_000_000) for kind in shop.capabilities]
    write_lessons(folder, make_lessons(shop, sources, wanted=16, seed=0).lessons)
    lessons = select_lessons(plan, folder)
    assert lessons.spelled
    assert len(lessons.shown) == len(lessons.practised) == 8
    specs = plan_jobs(plan, folder, lessons)
    assert list(specs) == ["sft", "sr_paper", "dapo"]
    (shown,), (practised,) = specs["sft"].pools, specs["sr_paper"].pools
    assert set(shown.references) == {task.id for task in lessons.shown}
    assert set(practised.tasks) == {task.id for task in lessons.practised}
    assert (specs["sft"].grpo, specs["sft"].parent) == (False, None)
    for name in ("sr_paper", "dapo"):
        assert specs[name].parent == str(folder.adapter("sft"))
        assert specs[name].warm_start is None
        assert specs[name].pools[0].reward == "repair"
        assert specs[name].sampler.rollouts == SMALL.rollouts
    assert specs["sr_paper"].algorithm != specs["dapo"].algorithm


def test_no_lesson_is_trained_on_whose_source_asks_for_the_calls_of_an_evaluated_task(
    tmp_path: Path,
) -> None:
    plan, folder = planned(tmp_path), Folder(tmp_path)
    shop = open_plan_environment(plan)
    evaluated = list(select_evaluated(plan).tasks(shop, plan.seed))
    write_lessons(folder, make_lessons(shop, evaluated, wanted=8, seed=0).lessons)
    with pytest.raises(NoLessons, match="8 lessons, and 0 are of no evaluated task"):
        select_lessons(plan, folder)


@pytest.fixture
def few_words(tmp_path: Path) -> Path:
    """A checkpoint's tokenizer that knows a few words, and nothing of all others."""
    words = {word: place for place, word in enumerate(["[UNK]", "[END]", "order", "null", "was"])}
    tokenizer: Any = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    build: Any = PreTrainedTokenizerFast
    fast = build(tokenizer_object=tokenizer, eos_token="[END]")
    fast.chat_template = "{{ messages }}"
    folder = tmp_path / "few-words"
    fast.save_pretrained(folder)
    return folder


def test_a_tokenizer_that_does_not_give_reflections_back_is_shown_repairs_without_them(
    tmp_path: Path, few_words: Path
) -> None:
    assert is_spelled(Chat(CHECKPOINT), "The call of cancel failed. order_id was null.")
    assert not is_spelled(Chat(few_words), "order was null")
    plan, folder = planned(tmp_path / "run"), Folder(tmp_path / "run")
    plan = plan.model_copy(update={"checkpoint": few_words})
    shop = open_plan_environment(plan)
    sources = [shop.generate(kind, 7_000_000) for kind in shop.capabilities]
    made = make_lessons(shop, sources, wanted=8, seed=0).lessons
    write_lessons(folder, made)
    lessons = select_lessons(plan, folder)
    assert not lessons.spelled
    assert all(task.lesson is None for task in lessons.shown)
    prefixes = [task.prefix for task in made]
    assert all(task.prefix in prefixes for task in lessons.shown)
    assert all(task.lesson is not None for task in lessons.practised)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_run_goes_on_and_ends_with_the_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    with run_engine(tmp_path / "engine.log") as url:
        command = [sys.executable, "-m", "ops.reproduce", *options(folder.path, url)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
            while not folder.result("lessons").exists():
                assert first.poll() is None, "it ended before it was killed"
                time.sleep(0.2)
            first.kill()
        before = folder.result("evaluate-base").stat().st_mtime_ns
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert folder.result("evaluate-base").stat().st_mtime_ns == before
        again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout == done.stdout
    assert "train-sr_paper: done before" in again.stderr
    spec = JobSpec.model_validate_json(folder.spec("sr_paper").read_bytes())
    bodies = read_definitions(folder.job("sr_paper"))
    assert set(bodies) == set(spec.pools[0].tasks)
    sources = [json.loads(body)["lesson"]["source"] for body in bodies.values()]
    assert {find_split(source) for source in sources} == {"train"}
    report = json.loads(folder.result("report").read_bytes())
    assert set(report["evaluations"]) == {"base", "sft", "sr_paper"}
    assert set(report["differences"]) == {
        "sft less base", "sr_paper less base", "sr_paper less sft",
    }  # fmt: skip
    assert {CLEAN, INJECTED, "Repair@1, all"} <= set(report["differences"]["sft less base"])
    assert "| sr_paper | argument |" in done.stdout
    assert "Tool-Reflection-Bench was left out" in done.stdout
    assert "BFCL was left out" in done.stdout
