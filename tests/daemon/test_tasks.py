"""`kintsugi tasks`: what an operator adds, sees, plays and retires, in a home and in another."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.proposer.candidate import FIRST_HELD_OUT, MOST_BODY
from envs.episode import Episode, play
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from tests.daemon.conftest import Kintsugi
from tests.envs import mini
from tests.envs.model_server import ModelServer, oracle

SHOP: Final = Shop()


def edited(seed: int, kind: str = "cancel", **changes: Any) -> TaskDefinition:
    """A task of shop in words that its generator does not have."""
    task = SHOP.generate(kind, seed)
    reason = f"I am customer number {seed} today. {task.scenario.reason_for_call}"
    scenario = task.scenario.model_copy(update={"reason_for_call": reason})
    return task.model_copy(update={"scenario": scenario, **changes}).name_by_content()


def body(task: TaskDefinition, **changes: Any) -> dict[str, Any]:
    return {**task.dump_body(), **changes}


def write(path: Path, *definitions: Mapping[str, Any] | str) -> Path:
    """A file of JSON Lines."""
    lines = [line if isinstance(line, str) else json.dumps(line) for line in definitions]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


ONE: Final = edited(7)
TWO: Final = edited(8, "return")


def test_the_same_body_is_added_once_and_its_id_is_said_again(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    file = write(tmp_path / "tasks.jsonl", body(ONE), body(ONE), "", body(TWO, id=TWO.id))
    for _ in range(2):
        result = kintsugi("tasks", "add", file, "--actor", "ada", "--json")
        assert (result.code, result.err) == (0, "")
        assert result.json == {"added": [ONE.id, ONE.id, TWO.id], "rejected": []}
    assert kintsugi("tasks", "ls", "--json").json == [
        {
            "task": task.id, "env": "shop", "source": "operator", "state": "active",
            "patterns": [], "alias": "agent", "base": "unknown", "capability": task.capability,
            "cycle": None, "reason": "",
        }
        for task in (ONE, TWO)
    ]  # fmt: skip
    for name in (ONE.id, ONE.id[:18]):
        assert "added by ada; 9 checks passed" in kintsugi("explain", name).out
    shown = kintsugi("tasks", "show", ONE.id[:20], "--json").json
    assert shown["definition"] == ONE.model_dump(mode="json")
    assert (shown["by"], shown["pattern"], len(shown["verified"])) == ("ada", "operator", 9)
    assert ONE.scenario.reason_for_call in kintsugi("tasks", "show", ONE.id).out
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_one_definition_may_take_many_lines(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text(json.dumps(body(ONE), indent=2))
    assert kintsugi("tasks", "add", file, "--json").json["added"] == [ONE.id]


def test_what_a_generator_makes_keeps_the_generated_id(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    cancel, order = SHOP.generate("cancel", 3), Retail().generate("cancel", 3)
    file = write(
        tmp_path / "tasks.jsonl", cancel.model_dump(mode="json"), body(order), body(edited(9))
    )
    added = kintsugi("tasks", "add", file, "--json").json["added"]
    assert added == ["shop/cancel/3", "retail/cancel/3", edited(9).id]
    events = kintsugi("log", "cat", "learning").lines
    carried = [
        event["data"]["definition"] is not None
        for event in events
        if event["type"] == "TaskProposed"
    ]
    assert carried == [False, False, True]
    assert [line["task"] for line in kintsugi("tasks", "ls", "--env", "retail", "--json").json] == [
        "retail/cancel/3"
    ]


REFUSED: Final[dict[str, tuple[Mapping[str, Any] | str, str, str]]] = {
    "no JSON": ('{"environment": ', "schema", "no JSON"),
    "NaN": ('{"environment": NaN}', "schema", "no JSON"),
    "a list": ("[]", "schema", "give one definition, or one in each line"),
    "nothing": ("{}", "schema", "its environment is None"),
    "deep": ("[" * 100_000, "schema", "no JSON"),
    "no id": (body(ONE, id=3), "schema", "leave it out"),
    "unknown field": (body(ONE, color="red"), "schema", "color"),
    "wrong hash": (body(ONE, id=TWO.id), "schema", "its body is that of"),
    "no environment": (body(ONE, environment="nowhere"), "schema", "there is no environment"),
    "a path": (body(ONE, environment="./shop.py"), "schema", "no environment's name"),
    "other environment": (body(ONE, environment="retail"), "gold", "find_user"),
    "kind": (body(ONE, capability="juggle"), "schema", "no gate can draw"),
    "no kinds": (body(ONE, environment="bfcl"), "schema", "bfcl generates no tasks"),
    "long": (body(ONE, ticket="x" * MOST_BODY), "schema", "longer than"),
    "NUL": (body(edited(13), scenario={"reason_for_call": "a\\u0000b\x00"}), "schema", "NUL"),
    "benchmark": (body(ONE, split="base"), "contamination", "a benchmark's"),
    "held out": (
        body(ONE, id=f"shop/cancel/{FIRST_HELD_OUT}"), "contamination", "kept for reports",
    ),
    "held out itself": (
        body(Retail().generate("cancel", FIRST_HELD_OUT)), "contamination", "kept for reports",
    ),
    "tool": (
        body(edited(11, scenario=ONE.scenario.model_copy(update={"persona": "cancel_order"}))),
        "leak", "cancel_order",
    ),
    "unsolvable": (
        body(edited(12, criteria=TWO.criteria)), "gold", "is refused",
    ),
}  # fmt: skip


def test_a_wrong_definition_is_rejected_with_its_check_and_the_others_are_added(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    lines = [line for line, _, _ in REFUSED.values()]
    file = write(tmp_path / "tasks.jsonl", *lines, body(TWO), "?")
    with file.open("ab") as opened:
        opened.write(b"\xff\xfe\n")
    result = kintsugi("tasks", "add", file, "--json")
    assert result.code == 3
    assert result.json["added"] == [TWO.id]
    rejected = result.json["rejected"]
    for number, (name, (_, check, reason)) in enumerate(REFUSED.items(), start=1):
        item = rejected[number - 1]
        assert (item["position"], item["check"]) == (f"line {number}", check), name
        assert reason in item["reason"], name
    assert len(rejected) == len(REFUSED) + 2, "no text at all is none either"
    assert "more definitions were rejected" in result.err
    assert [line["task"] for line in kintsugi("tasks", "ls", "--json").json] == [TWO.id]


def test_nearly_the_same_words_for_the_same_calls_are_added_once(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    near = ONE.scenario.model_copy(
        update={"reason_for_call": f"{ONE.scenario.reason_for_call} Thanks."}
    )
    file = write(tmp_path / "tasks.jsonl", body(ONE), body(ONE, scenario=near.model_dump()))
    result = kintsugi("tasks", "add", file, "--json")
    assert (result.code, result.json["added"]) == (3, [ONE.id])
    assert result.json["rejected"][0]["check"] == "novelty"


def test_the_same_request_begun_at_another_place_is_another_task(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    whole = SHOP.generate("cancel", 7)
    episode = play(Episode(SHOP, whole), SHOP.oracle(whole), SHOP.user(whole))
    cuts = [
        whole.model_copy(update={"prefix": tuple(episode.messages[:place])}).name_by_content()
        for place in (1, 3)
    ]
    file = write(tmp_path / "tasks.jsonl", *map(body, cuts))
    assert kintsugi("tasks", "add", file, "--json").json["added"] == [task.id for task in cuts]
    near = whole.scenario.model_copy(
        update={"reason_for_call": f"{whole.scenario.reason_for_call} Thanks."}
    )
    write(file, body(cuts[1], scenario=near.model_dump()))
    again = kintsugi("tasks", "add", file, "--json")
    assert [item["check"] for item in again.json["rejected"]] == ["novelty"]
    with ModelServer(oracle(SHOP, [whole])) as server:
        done = kintsugi(
            "eval", "--env", "shop", "--task", cuts[1].id, "--base-url", server.url, "--model",
            "small", "--json",
        )  # fmt: skip
    assert done.json["pass_hat"]["1"]["value"] == 1.0
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_task_is_shown_where_its_environment_is_not_known(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    task = mini.task().model_copy(update={"prefix": (mini.heard("Hello."),)}).name_by_content()
    file = write(tmp_path / "tasks.jsonl", body(task))
    added = kintsugi("tasks", "add", file, "--env", mini.__file__, "--json")
    assert added.json == {"added": [task.id], "rejected": []}
    shown = kintsugi("tasks", "show", task.id, "--json")
    assert (shown.err, shown.json["definition"]) == ("", task.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("add", "nowhere.jsonl"), "does not exist"),
        (("add", "{file}", "--pattern", "tool_loop|fly"), "has no pattern 'tool_loop|fly'"),
        (("add", "{file}", "--alias", ""), "--alias"),
        (("retire", "shop/none", "--reason", "why"), "no task was written or added"),
    ],
)
def test_wrong_usage_is_named_and_adds_nothing(
    home: Path, kintsugi: Kintsugi, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    file = write(tmp_path / "tasks.jsonl", body(ONE))
    result = kintsugi("tasks", *(part.format(file=file) for part in arguments))
    assert result.code == (1 if arguments[0] == "retire" else 2)
    assert named in result.err
    assert kintsugi("tasks", "ls", "--json").json == []


def test_a_task_is_added_for_a_pattern_of_the_agent(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    pattern = kintsugi("patterns", "--json").json[0]["pattern"]
    file = write(tmp_path / "tasks.jsonl", body(ONE))
    assert kintsugi("tasks", "add", file, "--pattern", pattern).code == 0
    (line,) = kintsugi("tasks", "ls", "--json").json
    assert (line["alias"], line["base"], line["patterns"]) == ("agent", "small", [pattern])
    assert f" for {pattern}" in kintsugi("explain", ONE.id).out
    assert kintsugi("tasks", "add", file).err == ""
    write(file, body(TWO))
    kintsugi("tasks", "add", file)
    again = kintsugi("tasks", "add", file, "--pattern", pattern)
    assert f"{TWO.id} is there already, for operator, and stays so" in again.err
    other = kintsugi("tasks", "add", file, "--alias", "agnet")
    assert "no agent is called 'agnet' yet; there are agent" in other.err


def test_a_retired_task_stays_in_the_list_until_it_is_added_again(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    file = write(tmp_path / "tasks.jsonl", body(ONE))
    kintsugi("tasks", "add", file)
    kintsugi("tasks", "add", file, "--alias", "other")
    unclear = kintsugi("tasks", "retire", ONE.id)
    assert (unclear.code, "agent, other have" in unclear.err) == (2, True)
    options = ("--alias", "agent", "--reason", "sold no more", "--json")
    first = kintsugi("tasks", "retire", ONE.id, *options).json
    assert (first["state"], first["reason"]) == ("retired", "sold no more")
    assert kintsugi("tasks", "retire", ONE.id, *options).json["acted"] is None
    states = {line["alias"]: line["state"] for line in kintsugi("tasks", "ls", "--json").json}
    assert states == {"agent": "retired", "other": "active"}
    kintsugi("tasks", "add", file, "--alias", "agent")
    assert kintsugi("tasks", "ls", "--alias", "agent", "--json").json[0]["state"] == "active"
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_another_home_that_only_has_the_log_plays_and_replays_them(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    kintsugi("tasks", "add", write(tmp_path / "tasks.jsonl", body(ONE), body(TWO)))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(home / "log.db", other / "log.db")
    for folder in (home, other):
        if folder is other:
            kintsugi("rebuild", "--home", folder)
        with ModelServer(oracle(SHOP, [ONE, TWO])) as server:
            done = kintsugi(
                "eval", "--env", "shop", "--task", ONE.id, "--task", TWO.id, "--base-url",
                server.url, "--model", "small", "--home", folder, "--json",
            )  # fmt: skip
        assert done.code == 0, done.err
        assert done.json["pass_hat"]["1"]["value"] == 1.0
        rollouts = kintsugi("rollouts", "ls", "--home", folder, "--json").json
        assert {line["task"] for line in rollouts} == {ONE.id, TWO.id}
        rows = write(tmp_path / "rows.jsonl", *map(recorded, (ONE, TWO)))
        replayed = kintsugi("env", "replay", "--env", "shop", rows, "--home", folder, "--json")
        assert (replayed.code, replayed.json["equal"]) == (0, replayed.json["calls"])
        assert replayed.json["rows"] == 2
    assert kintsugi("tasks", "show", ONE.id, "--home", other, "--json").json["definition"] == (
        ONE.model_dump(mode="json")
    )
    kintsugi("tasks", "retire", ONE.id)
    measured = SHOP.generate("cancel", 3)
    with ModelServer(oracle(SHOP, [measured])) as server:
        kintsugi(
            "eval", "--env", "shop", "--task", measured.id, "--base-url", server.url, "--model",
            "small",
        )  # fmt: skip
    file = write(tmp_path / "tasks.jsonl", body(ONE), body(measured))
    again = kintsugi("tasks", "add", file, "--json").json
    assert again["added"] == [ONE.id], "a task of the buffer may be evaluated"
    assert [item["check"] for item in again["rejected"]] == ["contamination"]


def recorded(task: TaskDefinition) -> dict[str, Any]:
    """The gold calls of a task as `env replay` reads them."""
    database = SHOP.reset(task)
    tools = SHOP.open_tools(task, database)
    row: dict[str, Any] = {"task_id": task.id, "initial_db_hash": database.digest(), "calls": []}
    for action in task.criteria.gold_actions or ():
        result = tools.call(action.name, action.arguments, action.requestor)
        call = {"name": action.name, "arguments": action.arguments}
        row["calls"].append({**call, "error": result.error, "output": result.content})
    return {**row, "gold_db_hash": database.digest()}


def test_an_id_that_no_event_brought_is_named(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    done = kintsugi(
        "eval", "--env", "shop", "--task", ONE.id, "--base-url", "http://127.0.0.1:9/v1",
        "--model", "small",
    )  # fmt: skip
    assert done.code == 1
    assert f"the body of task {ONE.id} is not kept here" in done.err
    rows = write(tmp_path / "rows.jsonl", recorded(ONE))
    replayed = kintsugi("env", "replay", "--env", "shop", rows, "--json")
    assert replayed.code == 3
    (mismatch,) = replayed.json["mismatches"]
    assert ONE.id in mismatch["actual"]
