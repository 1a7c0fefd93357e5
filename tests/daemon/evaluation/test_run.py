"""`kintsugi eval` against a real server: figures, refusals, what is recorded, going on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from daemon.methods.lessons.injection import InjectedTask, inject, report_repairs
from envs.lessons.observation import Observation
from envs.shop.environment import Shop
from envs.task import Operator, TaskDefinition
from tests.daemon.commands import Result, environment
from tests.daemon.conftest import Kintsugi
from tests.envs.model_server import (
    NO_ANSWER,
    Answering,
    ModelServer,
    Reply,
    answer,
    called,
    messages_of,
    on_the_wire,
    oracle,
    refused,
    said,
)

SHOP = Shop()
Evaluate = Callable[..., Result]
FIFTY_MEGABYTES = answer(said("x" * (50 << 20)))


def shop_tasks(count: int) -> list[TaskDefinition]:
    return list(islice(SHOP.tasks(), count))


@pytest.fixture
def evaluate(kintsugi: Kintsugi, home: Path) -> Evaluate:
    """Evaluate the model behind a server on shop."""

    def run(server: ModelServer, *arguments: str | Path) -> Result:
        common = ["--env", "shop", "--base-url", server.url, "--model", "small", "--retries", "0"]
        return kintsugi("eval", *common, *arguments)

    return run


def opening_of(body: dict[str, Any]) -> str:
    """What the user said first: it tells the task."""
    return next(message.text for message in messages_of(body) if message.role == "user")


def how_it_ended(kintsugi: Kintsugi) -> str:
    """What a person reads of the one rollout's end."""
    (rollout,) = kintsugi("rollouts", "ls", "--json").json
    page = kintsugi("rollouts", "show", rollout["rollout"]).out
    (ended,) = [line for line in page.splitlines() if line.startswith("ended by")]
    return ended.removeprefix("ended by").strip()


def test_the_oracle_gets_one_and_doing_nothing_none(evaluate: Evaluate) -> None:
    with ModelServer(oracle(SHOP, shop_tasks(44))) as server:
        result = evaluate(server, "--tasks", "44", "--trials", "2", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert (found["tasks"], found["trials"]) == (44, 2)
    assert found["pass_hat"]["1"]["value"] == found["pass_hat"]["2"]["value"] == 1.0
    assert found["pass_hat"]["1"]["low"] > 0.9
    assert found["repair_at"]["2"]["value"] == 1.0
    assert found["do_nothing"]["value"] == 0.0
    assert found["per_capability"]["cancel"]["tasks"] == 2
    assert found["per_capability"]["cancel"]["pass_hat"]["2"]["value"] == 1.0
    assert found["terminations"] == {"user_stop": 88}
    assert (found["unjudged"], found["unevaluated"]) == (0, {})
    assert found["run"]["number"] == 1


def test_an_agent_that_is_sometimes_right_is_measured_by_its_tasks(evaluate: Evaluate) -> None:
    given = shop_tasks(8)
    right = oracle(SHOP, given)
    known = {task.script.opening for task in given[:4] if task.script}
    with ModelServer(lambda b: right(b) if opening_of(b) in known else said("No.")) as server:
        found = evaluate(server, "--tasks", "8", "--trials", "2", "--json").json
    assert found["pass_hat"]["1"]["value"] == found["pass_hat"]["2"]["value"] == 0.5
    assert found["pass_hat"]["1"]["low"] < 0.5 < found["pass_hat"]["1"]["high"]


def test_several_environments_are_told_apart_and_together(kintsugi: Kintsugi, home: Path) -> None:
    given = shop_tasks(2)
    right = oracle(SHOP, given)
    known = {task.script.opening for task in given if task.script}
    with ModelServer(lambda b: right(b) if opening_of(b) in known else said("No.")) as server:
        common = ["--base-url", server.url, "--model", "small", "--retries", "0", "--tasks", "2"]
        result = kintsugi("eval", "--env", "shop,retail", *common, "--trials", "2", "--json")
        shown = kintsugi("eval", "--env", "shop,retail", *common, "--trials", "2")
        refused = kintsugi("eval", "--env", "shop,retail", *common, "--mix", "cancel=1")
        doubled = kintsugi("eval", "--env", "shop,shop", *common)
    assert result.code == 0, result.err
    parts = result.json["environments"]
    assert {name: part["pass_hat"]["2"]["value"] for name, part in parts.items()} == {
        "shop": 1.0, "retail": 0.0,
    }  # fmt: skip
    overall = result.json["overall"]
    assert (overall["tasks"], overall["pass_hat"]["2"]["value"]) == (4, 0.5)
    rows = [line.split()[:3] for line in shown.out.splitlines()]
    assert ["retail", "2", "0.000"] in rows
    assert ["overall", "4", "0.500"] in rows
    assert (refused.code, doubled.code) == (2, 2)
    assert "--mix" in refused.err
    assert "'shop,shop'" in doubled.err


def test_the_table_has_a_row_for_each_kind_all_and_doing_nothing(evaluate: Evaluate) -> None:
    with ModelServer(oracle(SHOP, shop_tasks(3))) as server:
        result = evaluate(server, "--tasks", "3")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    kinds = {task.capability for task in shop_tasks(3)}
    assert {row[0] for row in rows if row} >= kinds
    assert ["overall", "3", "1.000", "[0.29,", "1.00]"] in rows
    assert ["doing", "nothing", "3", "0.000", "[0.00,", "0.71]"] in rows


def test_attempts_are_rollouts_with_the_purpose_of_evaluation(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    with ModelServer(oracle(SHOP, shop_tasks(3))) as server:
        evaluate(server, "--tasks", "3", "--trials", "2", "--alias", "shop", "--base", "b-1")
    rollouts = kintsugi("rollouts", "ls", "--json").json
    assert Counter(one["task"] for one in rollouts) == {task.id: 2 for task in shop_tasks(3)}
    assert {(one["success"], one["policy"], one["source"]) for one in rollouts} == {
        (True, "small", "simulation")
    }
    events = kintsugi("log", "cat", "rollouts").lines
    assert {event["data"]["purpose"] for event in events} == {"evaluate"}
    assert {(event["data"]["alias"], event["data"]["base"]) for event in events} == {
        ("shop", "b-1")
    }


def test_evaluations_are_no_traffic_for_diagnosis(evaluate: Evaluate, kintsugi: Kintsugi) -> None:
    with ModelServer(lambda _: said("How interesting.")) as server:
        evaluate(server, "--tasks", "5")
    status = kintsugi("status", "--json").json
    assert (status["rollouts"], status["undiagnosed"], status["unjudged"]) == (5, 0, 0)
    assert kintsugi("diagnose", "--json").json["patterns"] == 0


@pytest.mark.parametrize(
    ("answering", "shown", "success"),
    [
        (lambda _: called("find_user", "{malformed"), "too_many_errors: 5 calls failed", False),
        (lambda _: called("no_such_tool", {}), "too_many_errors: 5 calls failed", False),
        (lambda _: called("find_user", {"name": 7}), "too_many_errors: 5 calls failed", False),
        (
            lambda _: called("find_user", {"name": "x" * (1 << 20), "zip": ""}),
            "too_many_errors: 5 calls failed",
            False,
        ),
        (lambda _: said("How interesting."), "user_stop", False),
        (lambda _: Reply(b"<html>It works!"), "it begins <html>It works!", False),
        (lambda _: Reply(b'{"choices": []}'), "agent_error: the answer is no message", False),
        (lambda _: said(""), "it is empty", False),
        (lambda _: FIFTY_MEGABYTES, "larger than 4,194,304 bytes", False),
        (lambda _: refused(500, "on fire"), "infrastructure_error: HTTP 500: on fire", None),
        (lambda _: Reply(b"{}" * 50, cut=True), "infrastructure_error: no answer", None),
    ],
)
def test_a_misbehaving_endpoint_ends_as_a_recorded_rollout_with_its_reason(
    evaluate: Evaluate,
    kintsugi: Kintsugi,
    answering: Answering,
    shown: str,
    success: bool | None,
) -> None:
    with ModelServer(answering) as server:
        result = evaluate(server, "--tasks", "1")
    assert result.code == (0 if success is False else 3)
    assert kintsugi("rollouts", "ls", "--json").json[0]["success"] is success
    assert shown in how_it_ended(kintsugi)


def test_an_answer_that_does_not_come_is_a_recorded_timeout(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    with ModelServer(lambda _: NO_ANSWER) as server:
        assert evaluate(server, "--tasks", "1", "--timeout", "0.5").code == 0
    assert how_it_ended(kintsugi) == "timeout: no whole answer within 0.5 s"


def test_an_endless_loop_of_one_good_call_ends_at_the_limit(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    first, *_ = shop_tasks(1)[0].criteria.gold_actions or ()
    with ModelServer(lambda _: called(first.name, first.arguments)) as server:
        assert evaluate(server, "--tasks", "1").code == 0
    (rollout,) = kintsugi("rollouts", "ls", "--json").json
    shown = kintsugi("rollouts", "show", rollout["rollout"], "--json").json
    assert (shown["termination"], shown["reason"]) == ("max_steps", "61 steps")
    assert shown["category"] == "tool_loop"


def test_what_stays_unjudged_is_named_and_played_again_by_the_same_command(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    given = shop_tasks(3)
    right = oracle(SHOP, given)
    broken = {task.script.opening for task in given[:1] if task.script}

    def answering(body: dict[str, Any]) -> Any:
        return refused(500, "on fire") if opening_of(body) in broken else right(body)

    with ModelServer(answering) as server:
        result = evaluate(server, "--tasks", "3", "--json")
        assert result.code == 3
        assert result.json["unjudged"] == 1
        assert result.json["terminations"] == {"infrastructure_error": 1, "user_stop": 2}
        assert f"task {given[0].id}, trial 0" in result.err
        assert "on fire" in result.err
        broken.clear()
        again = evaluate(server, "--tasks", "3", "--json")
    assert again.code == 0
    assert again.json["run"] == {**result.json["run"], "resumed": 3}
    assert again.json["terminations"] == {"user_stop": 3}
    assert len(kintsugi("rollouts", "ls", "--json").json) == 4


def test_an_evaluation_goes_on_at_the_address_that_its_endpoint_moved_to(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    given = shop_tasks(3)
    right = oracle(SHOP, given)
    broken = {task.script.opening for task in given[:1] if task.script}

    def answering(body: dict[str, Any]) -> Any:
        return refused(500, "on fire") if opening_of(body) in broken else right(body)

    with ModelServer(answering) as first:
        result = evaluate(first, "--tasks", "3", "--json")
        assert result.json["unjudged"] == 1
    with ModelServer(right) as second:
        again = evaluate(second, "--tasks", "3", "--moved-from", first.url, "--json")
    assert again.code == 0, again.err
    assert again.json["run"] == {**result.json["run"], "resumed": 3}
    assert len(kintsugi("rollouts", "ls", "--json").json) == 4
    assert {opening_of(body) for body in second.requests} == broken


def test_the_user_moves_with_the_agent_unless_it_has_an_address_of_its_own(
    evaluate: Evaluate,
) -> None:
    def name_run(server: ModelServer, *more: str) -> str:
        result = evaluate(server, "--tasks", "1", "--user-model", "large", *more, "--json")
        return str(result.json["run"]["evaluation"])

    def stop(_: dict[str, Any]) -> Any:
        return said("###STOP###")

    with ModelServer(stop) as first, ModelServer(stop) as second:
        shared = name_run(first)
        apart = name_run(first, "--user-base-url", second.url)
        moved = ["--moved-from", first.url]
        assert name_run(second, *moved) == shared
        back = ["--user-base-url", first.url, "--user-moved-from", second.url]
        assert name_run(second, *moved, *back) == apart
        assert name_run(second, *moved, "--user-base-url", second.url) == apart
        assert name_run(second) != shared != apart


def test_a_complete_run_is_not_mixed_with_the_next_one(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    with ModelServer(oracle(SHOP, shop_tasks(2))) as server:
        first = evaluate(server, "--tasks", "2", "--json").json
        second = evaluate(server, "--tasks", "2", "--json").json
        other = evaluate(server, "--tasks", "2", "--seed", "1", "--json").json
    assert (first["run"]["number"], second["run"]["number"]) == (1, 2)
    assert second["run"]["evaluation"] == first["run"]["evaluation"] != other["run"]["evaluation"]
    assert second["run"]["resumed"] == 0
    assert len(kintsugi("rollouts", "ls", "--json").json) == 6


def test_how_much_is_played_at_once_makes_no_other_evaluation(evaluate: Evaluate) -> None:
    with ModelServer(oracle(SHOP, shop_tasks(2))) as server:
        one = evaluate(server, "--tasks", "2", "--concurrency", "1", "--json").json
        two = evaluate(server, "--tasks", "2", "--concurrency", "2", "--json").json
    assert one["run"]["evaluation"] == two["run"]["evaluation"]
    assert one["pass_hat"] == two["pass_hat"]


def test_tasks_are_chosen_by_id_kind_or_mixture(evaluate: Evaluate) -> None:
    with ModelServer(lambda _: said("No.")) as server:
        by_id = evaluate(server, "--task", "shop/cancel/99", "--task", "shop/refund/3", "--json")
        by_kind = evaluate(server, "--capability", "cancel", "--tasks", "3", "--json")
        mixed = evaluate(server, "--mix", "cancel=1,refund=3", "--tasks", "40", "--json")
    assert set(by_id.json["per_capability"]) == {"cancel", "refund"}
    assert {kind: one["tasks"] for kind, one in by_kind.json["per_capability"].items()} == {
        "cancel": 3
    }
    shares = {kind: one["tasks"] for kind, one in mixed.json["per_capability"].items()}
    assert shares["cancel"] + shares["refund"] == 40
    assert shares["refund"] > shares["cancel"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--mix", "cancel=1"], 2, "--tasks"),
        (["--mix", "cancel", "--tasks", "1"], 2, "'cancel' is not KIND=SHARE"),
        (["--mix", "cancel=-1", "--tasks", "1"], 2, "must not be negative"),
        (["--mix", "cancel=nan", "--tasks", "1"], 2, "must not be negative"),
        (["--mix", "dance=1", "--tasks", "1"], 1, "no capability 'dance'"),
        (["--mix", "cancel=1", "--task", "x", "--tasks", "1"], 2, "exclude each other"),
        (["--task", "shop/dance/1"], 1, "no task 'shop/dance/1'"),
        (["--task", "shop/cancel/1", "--task", "shop/cancel/1"], 1, "is there twice"),
        (["--capability", "dance"], 1, "no task of capability 'dance'"),
        (["--capability", "cancel", "--tasks", "99"], 1, "--mix cancel=1 --tasks 99"),
        (["--split", "test"], 1, "no split 'test'"),
        (["--trials", "0"], 2, "--trials"),
        (["--extra", "[1]"], 2, "is no JSON object"),
        (["--extra", "{"], 2, "is no JSON"),
        (["--user-best-of", "3"], 2, "--user-model"),
        (["--alias", "a" * 200], 2, "1 to 128"),
        (["--inject", "argument"], 2, "'argument' is not OP=RATE"),
        (["--inject", "recorded=0.5"], 2, "with argument, redundant, swap, missing"),
        (["--inject", "swap=0"], 2, "a rate above 0 and at most 1"),
        (["--inject", "swap=nan"], 2, "a rate above 0 and at most 1"),
        (["--inject", "swap=0.1", "--inject", "swap=0.1"], 2, "once for an operator"),
        (["--inject", "swap=0.6", "--inject", "missing=0.6"], 2, "the rates sum to 1.2"),
        (["--user-moved-from", "http://127.0.0.1:1/v1"], 2, "--user-model"),
        (["--base-url", "127.0.0.1:1/v1"], 2, "must begin with http://"),
        (["--base-url", "http://127.0.0.1:99999/v1"], 2, "has the port 99999"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused(
    evaluate: Evaluate, arguments: list[str], code: int, says: str
) -> None:
    with ModelServer(lambda _: said("No.")) as server:
        result = evaluate(server, *arguments)
        assert (result.code, result.out) == (code, ""), result.err
        assert says in result.err
        assert not server.requests


def test_an_endpoint_that_is_not_there_is_unavailable(evaluate: Evaluate) -> None:
    with ModelServer(lambda _: said("No.")) as server:
        pass
    result = evaluate(server, "--tasks", "1")
    assert result.code == 4
    assert server.url in result.err


def test_an_endpoint_that_does_not_know_the_model_is_wrong_usage(
    evaluate: Evaluate, kintsugi: Kintsugi
) -> None:
    with ModelServer(lambda _: refused(404, "no model 'small'")) as server:
        result = evaluate(server, "--tasks", "20", "--concurrency", "2")
    assert result.code == 2
    assert "no model 'small'" in result.err
    assert kintsugi("rollouts", "ls", "--json").json == []


def test_the_key_is_sent_and_written_nowhere(
    evaluate: Evaluate, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with ModelServer(lambda _: said("No.")) as server:
        result = evaluate(server, "--tasks", "1", "--api-key-env", "MY_KEY")
        assert server.keys == {"Bearer sk-very-secret"}
    assert "sk-very-secret" not in result.out + result.err
    stored = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"sk-very-secret" not in stored


def test_a_model_can_play_the_user(evaluate: Evaluate, kintsugi: Kintsugi) -> None:
    (task,) = shop_tasks(1)
    assert task.script is not None
    lines = iter([task.script.opening, "Yes.", "###STOP###"])
    agent = oracle(SHOP, [task])

    def answering(body: dict[str, Any]) -> Any:
        return agent(body) if body["model"] == "small" else said(next(lines, "###STOP###"))

    with ModelServer(answering) as server:
        found = evaluate(server, "--tasks", "1", "--user-model", "large", "--json").json
    assert found["terminations"] == {"user_stop": 1}
    (event,) = kintsugi("log", "cat", "rollouts").lines
    assert event["data"]["simulator"] == "large"


MUTE = """
from envs.lessons.observation import Observation
from envs.shop.environment import Shop

class Kiosk(Shop):
    name = "kiosk"

    def generate(self, capability, seed):
        return super().generate(capability, seed).model_copy(update={"script": None})
"""


def test_a_user_without_a_script_or_a_model_is_warned_of(
    kintsugi: Kintsugi, home: Path, clean: Path
) -> None:
    (clean / "kiosk.py").write_text(MUTE)
    with ModelServer(lambda _: said("No.")) as server:
        common = ["--base-url", server.url, "--model", "small", "--tasks", "2"]
        result = kintsugi("eval", "--env", "./kiosk.py", *common, "--json")
    assert (result.code, result.json["tasks"]) == (0, 2)
    assert "2 of 2 tasks have no script for their user" in result.err
    assert "--user-model" in result.err


JUDGED = """
from envs.catalog import CATALOGS
from envs.lessons.observation import Observation
from envs.shop.environment import Shop

class Salon(Shop):
    name = "salon"
    catalog = CATALOGS["shop"]

    def generate(self, capability, seed):
        task = super().generate(capability, seed)
        if capability != "cancel":
            return task
        basis = (*task.criteria.reward_basis, "NL_ASSERTION")
        asserted = {"reward_basis": basis, "nl_assertions": ("The agent was kind.",)}
        criteria = task.criteria.model_copy(update=asserted)
        return task.model_copy(update={"criteria": criteria})
"""


def test_tasks_that_need_a_judge_are_named_and_not_counted(
    kintsugi: Kintsugi, home: Path, clean: Path
) -> None:
    (clean / "salon.py").write_text(JUDGED)
    given = ["cancel/0", "cancel/1", "refund/0", "refund/1"]
    right = oracle(SHOP, [SHOP.task(f"shop/{task}") for task in given])
    with ModelServer(right) as server:
        common = ["eval", "--env", "./salon.py", "--base-url", server.url, "--model", "small"]
        chosen = [word for task in given for word in ("--task", f"salon/{task}")]
        found = kintsugi(*common, *chosen, "--json").json
        only_judged = kintsugi(*common, "--task", "salon/cancel/0")
    assert found["unevaluated"] == {"NL_ASSERTION": ["salon/cancel/0", "salon/cancel/1"]}
    assert list(found["per_capability"]) == ["refund"]
    assert found["pass_hat"]["1"]["value"] == 1.0
    assert found["without_judge"]["tasks"] == 4
    assert found["without_judge"]["pass_hat"]["1"]["value"] == 1.0
    assert found["unjudged"] == 0
    assert only_judged.code == 0
    assert "1 tasks need a judge (NL_ASSERTION) and are not counted" in only_judged.out


KILLED_TASKS, KILLED_TRIALS = 20, 2


@pytest.mark.processes
def test_a_killed_run_goes_on_where_the_log_ends(tmp_path: Path, kintsugi: Kintsugi) -> None:
    given = shop_tasks(KILLED_TASKS)
    right = oracle(SHOP, given)
    by_opening = {task.script.opening: task.id for task in given if task.script}

    def slowly(body: dict[str, Any]) -> Any:
        time.sleep(0.01)
        return right(body)

    home = str(tmp_path / "home")
    with ModelServer(slowly) as server:
        command = [
            sys.executable, "-m", "daemon", "eval", "--env", "shop", "--base-url", server.url,
            "--model", "small", "--tasks", str(KILLED_TASKS), "--trials", str(KILLED_TRIALS),
            "--concurrency", "4", "--json", "--home", home,
        ]  # fmt: skip
        for requests in (30, 60):
            _kill_after(requests, server, command, tmp_path)
        recorded = _recorded(kintsugi, home)
        before = len(server.requests)
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, timeout=100, check=False
        )
        after = server.requests[before:]
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert 0 < len(recorded) < KILLED_TASKS * KILLED_TRIALS
    assert found["run"]["resumed"] == len(recorded)
    assert found["pass_hat"]["2"]["value"] == 1.0
    assert found["terminations"] == {"user_stop": KILLED_TASKS * KILLED_TRIALS}

    now = _recorded(kintsugi, home)
    everything = {(task.id, trial) for task in given for trial in range(KILLED_TRIALS)}
    assert Counter(now) == dict.fromkeys(everything, 1)
    # A task is opened once for each of its attempts that was not in the log yet.
    opened = Counter(by_opening[opening_of(body)] for body in after if len(body["messages"]) == 2)
    missing = Counter(task for task, _ in everything - set(recorded))
    assert opened == missing


INJECTED: dict[Operator, float] = {"argument": 0.5, "redundant": 0.3}
OPTIONS = [f"--inject={operator}={rate}" for operator, rate in INJECTED.items()]


def repairing(tasks: list[TaskDefinition], stays_wrong: Callable[[TaskDefinition], bool]) -> Any:
    """The oracle behind each task's mistake, with a reflection; some tasks are given up there."""
    by_opening = {task.script.opening: task for task in tasks if task.script}

    def answering(body: dict[str, Any]) -> Any:
        messages = messages_of(body)
        task = by_opening[opening_of(body)]
        if task.lesson and stays_wrong(task):
            return said("I do not know.")
        seen = [
            message.model_copy(update={"sampled": False}) if place <= len(task.prefix) else message
            for place, message in enumerate(messages)
        ]
        reply = SHOP.oracle(task).reply(seen)
        if task.lesson and len(messages) == len(task.prefix) + 1:
            content = f"<reflect>It was wrong.</reflect>{reply.text}"
            reply = reply.model_copy(update={"content": content})
        return on_the_wire(reply)

    return answering


@pytest.mark.long
def test_repairs_of_injected_mistakes_are_measured_beside_clean_tasks(evaluate: Evaluate) -> None:
    tasks = list(inject(SHOP, shop_tasks(44), INJECTED, 0))
    of = {name: [t for t in tasks if t.lesson and t.lesson.operator == name] for name in INJECTED}
    wrong = {task.id for task in of["argument"][::2]}
    with ModelServer(repairing(tasks, lambda task: task.id in wrong)) as server:
        result = evaluate(server, "--tasks", "44", "--trials", "3", *OPTIONS, "--json")
        shown = evaluate(server, "--tasks", "4", "--trials", "3", *OPTIONS)
    assert result.code == 0, result.err
    document = result.json
    assert document["clean"]["tasks"] == sum(task.lesson is None for task in tasks) > 0
    assert document["clean"]["pass_hat"]["3"]["value"] == 1.0
    assert document["injected"]["tasks"] == len(of["argument"]) + len(of["redundant"])
    repair = document["repair"]
    assert repair["redundant"]["n"] == len(of["redundant"]) > 0
    assert (repair["redundant"]["1"], repair["redundant"]["official"]["3"]) == (1.0, 1.0)
    share = 1 - len(wrong) / len(of["argument"])
    assert repair["argument"]["n"] == len(of["argument"]) > 3
    assert repair["argument"]["1"] == pytest.approx(share)
    assert repair["argument"]["3"] == pytest.approx(share), "a task is given up in every trial"
    assert "5" not in repair["argument"], "there are three trials"
    assert document["redundant_calls"] == {"clean": 0.0, "injected": 0.0}
    assert "Repair@3" in shown.out


def test_a_run_with_mistakes_that_went_on_measures_what_was_played_before(
    evaluate: Evaluate,
) -> None:
    tasks = list(inject(SHOP, shop_tasks(22), INJECTED, 0))
    right, broken = repairing(tasks, lambda task: False), [True]

    def answering(body: dict[str, Any]) -> Any:
        return refused(503, "busy") if broken[0] and len(server.requests) > 30 else right(body)

    with ModelServer(answering) as server:
        first = evaluate(server, "--tasks", "22", *OPTIONS, "--concurrency", "1", "--json")
        broken[0] = False
        document = evaluate(server, "--tasks", "22", *OPTIONS, "--json").json
    assert first.code == 4, first.err
    assert document["run"]["resumed"] > 0
    assert [row["1"] for row in document["repair"].values()] == [1.0, 1.0]
    assert document["redundant_calls"]["injected"] == 0.0


BROKEN = """
from envs.lessons.observation import Observation
from envs.shop.environment import Shop

class Broken(Shop):
    name = "broken"

    def oracle(self, task):
        raise ValueError("the oracle is out of order")
"""


def test_an_environment_that_raises_where_a_mistake_is_made_ends_the_evaluation(
    kintsugi: Kintsugi, home: Path, clean: Path
) -> None:
    (clean / "broken.py").write_text(BROKEN)
    with ModelServer(lambda _: said("No.")) as server:
        common = ["--base-url", server.url, "--model", "small", "--tasks", "1"]
        result = kintsugi("eval", "--env", "./broken.py", *common, "--inject", "swap=1")
    assert result.code == 1, result.out
    assert "a mistake of swap" in result.err
    assert "the oracle is out of order" in result.err


def test_a_lesson_that_is_asked_for_counts_for_its_own_operator() -> None:
    (task,) = [t for t in inject(SHOP, shop_tasks(1), {"redundant": 1.0}, 0) if t.lesson]
    (again,) = inject(SHOP, [task], {"argument": 1.0}, 0)
    assert again == task, "it has its mistake already"
    seen = (Observation(repeated=0, repaired=True, official=True),)
    result = report_repairs({task.id: InjectedTask(task.lesson, seen)}, {"argument": 1.0}, {})
    assert {name: row["n"] for name, row in result["repair"].items()} == {
        "argument": 0,
        "redundant": 1,
    }


def _kill_after(requests: int, server: ModelServer, command: list[str], folder: Path) -> None:
    """Start the program, and kill it when the server has had so many requests."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        while len(server.requests) < requests:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def _recorded(kintsugi: Kintsugi, home: str) -> list[tuple[str, int]]:
    """(task, trial) of every rollout event in the log, repetitions included."""
    events = kintsugi("log", "cat", "rollouts", "--home", home).lines
    return [(event["data"]["task"]["id"], event["data"]["trial"]) for event in events]
