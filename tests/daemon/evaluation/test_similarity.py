"""`kintsugi eval --scenarios`: similarity by category, and damaged lines beside good ones."""

from pathlib import Path

from daemon.evaluation.similarity import GradedTask, report_similarity
from tests.daemon.conftest import Kintsugi
from tests.envs.model_server import Json, ModelServer, called, said
from tests.envs.toolsandbox.files import impossible, scenario, write_file

_GOLD = (
    called("set_cellular_service_status", {"on": True}),
    called("search_contacts", {"name": "Hugo Novak"}),
    called(
        "send_message_with_phone_number",
        {"phone_number": "+12065550101", "content": "Dinner at seven"},
    ),
    said("The message to Hugo Novak was sent"),
)


def _play_gold(body: Json) -> Json:
    """The gold of the first scenario, whatever the task."""
    done = sum(message["role"] == "assistant" for message in body["messages"])
    return _GOLD[min(done, len(_GOLD) - 1)]


def test_scenarios_are_scored_and_those_that_cannot_be_fulfilled_stand_apart(
    kintsugi: Kintsugi, home: Path, tmp_path: Path
) -> None:
    path = write_file(tmp_path, scenario(), "{}", impossible())
    with ModelServer(_play_gold) as server:
        options = ("--env", "toolsandbox", "--scenarios", str(path), "--model", "m")
        done = kintsugi("eval", *options, "--base-url", server.url, "--json")
        shown = kintsugi("eval", *options, "--base-url", server.url)
    assert done.code == 3
    assert f"{path}, line 2, is no scenario: name: Field required" in done.err
    assert done.json["similarity"] == done.json["perfect"] == 0.5
    assert done.json["others"] == {
        "n": 1, "similarity": 1.0, "perfect": 1.0, "do_nothing_similarity": 0.0,
    }  # fmt: skip
    assert done.json["insufficient_information"] == {
        "n": 1, "similarity": 0.0, "perfect": 0.0, "do_nothing_similarity": 1.0,
    }  # fmt: skip
    assert list(done.json["categories"]) == [
        "multiple_tool_call", "state_dependency", "insufficient_information",
    ]  # fmt: skip
    rows = [row["reward"] for row in kintsugi("rollouts", "ls", "--json").json]
    assert sorted(rows) == [0.0, 0.0, 1.0, 1.0]
    assert "all that cannot" in shown.out


def test_perfect_counts_scores_of_1_and_no_lenient_success() -> None:
    task = GradedTask(categories=("canonicalization",), scores=(1.0, 0.9), idle_score=0.0)
    assert report_similarity([task])["perfect"] == 0.5


def test_scenarios_belong_to_toolsandbox(kintsugi: Kintsugi, home: Path, tmp_path: Path) -> None:
    path = write_file(tmp_path, scenario())
    options = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--scenarios")
    refused = kintsugi("eval", "--env", "shop", *options, str(path))
    assert refused.code == 2
    assert "shop takes no scenarios; give --env toolsandbox" in refused.err
    absent = kintsugi("eval", "--env", "toolsandbox", *options, str(tmp_path / "absent"))
    assert absent.code == 2
