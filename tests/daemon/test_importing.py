"""`kintsugi import`: what is counted, what is refused, and that nothing is imported twice."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from events.codec import encode
from events.envelope import Envelope, new_id
from events.log import now_ms
from events.rollouts import RolloutEnded
from producers.importers.importer import append_rollouts, read_rollouts
from tests.daemon.commands import (
    failed_rollout,
    passed_rollout,
    unjudged_rollout,
    write_examples,
    write_lines,
)
from tests.daemon.conftest import Kintsugi


def test_importing_again_changes_nothing(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    first = kintsugi("import", path, "--json")
    assert (first.code, first.json) == (0, {"imported": 5, "duplicates": 0, "rejected": []})
    before = kintsugi("rebuild", "--json").json["hash"]
    again = kintsugi("import", path, "--json")
    assert (again.code, again.json) == (0, {"imported": 0, "duplicates": 5, "rejected": []})
    assert kintsugi("rebuild", "--json").json["hash"] == before
    assert kintsugi("log", "stats", "--json").json["streams"]["learning"]["events"] == 1


def test_what_is_rejected_is_named_and_the_rest_imported(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", failed_rollout(), {"messages": "none"})
    result = kintsugi("import", path, "--json")
    assert result.code == 3
    (rejected,) = result.json["rejected"]
    assert list(rejected) == ["file", "position", "reason"]
    assert (rejected["file"], rejected["position"]) == (str(path), "line 2")
    assert "line 2" in result.err


def test_where_nothing_can_be_read_the_import_failed(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    missing = kintsugi("import", tmp_path / "nowhere.json", "--json")
    assert missing.code == 1
    assert missing.json["rejected"][0]["file"].endswith("nowhere.json")
    (tmp_path / "empty").mkdir()
    empty = kintsugi("import", tmp_path / "empty", "--json")
    assert (empty.code, empty.json) == (1, {"imported": 0, "duplicates": 0, "rejected": []})
    assert "nothing to import" in empty.err
    binary = tmp_path / "binary.json"
    binary.write_bytes(bytes(range(256)) * 20)
    assert kintsugi("import", binary, "--json").code == 1
    together = kintsugi("import", binary, write_examples(tmp_path / "a.jsonl"), "--json")
    assert together.code == 3


def test_skipped_files_and_warnings_of_files_are_printed(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "README.md").write_text("Runs.")
    write_lines(folder / "a_result.json", {"id": "irrelevance_0", "result": "No."})
    summary = {"accuracy": 0.5, "correct_count": 1, "total_count": 2}
    row = {"id": "irrelevance_1", "valid": False, "model_name": "m"}
    write_lines(folder / "a_score.json", summary, row)
    result = kintsugi("import", folder, "--json")
    assert (result.code, result.json["imported"], result.json["rejected"]) == (0, 1, [])
    assert [Path(one["file"]).name for one in result.json["skipped"]] == ["README.md"]
    (warning,) = result.json["warnings"]
    assert (warning["position"], "says 0.5 (1 of 2)" in warning["warning"]) == ("file", True)
    plain = kintsugi("import", folder)
    assert "skipped 1 files" in plain.out
    assert "README.md: is not named *.json or *.jsonl" in plain.err
    assert "the pass rate is 1 (1 of 1 judged)" in plain.err


def test_a_line_break_in_the_name_of_a_file_begins_no_line(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    write_lines(folder / "a\nwarning: b.json", {"messages": [{"role": "x"}]})
    (folder / "c\nwarning: d.txt").write_text("Runs.")
    warnings = kintsugi("import", folder).err.splitlines()
    assert len(warnings) == 2
    assert all("␊warning: " in line for line in warnings)


def test_an_unknown_format_is_wrong_usage(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    result = kintsugi("import", tmp_path, "--format", "csv")
    assert (result.code, result.out) == (2, "")
    assert "'csv' is not one of auto, tau-bench, tau2" in result.err


def test_alias_and_base_are_the_callers_word(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    kintsugi("import", path, "--alias", "desk", "--base", "large")
    kintsugi("import", path)
    pairs = {(line["alias"], line["base"]) for line in kintsugi("patterns", "--json").json}
    assert pairs == {("desk", "large"), ("agent", "small")}
    only = kintsugi("patterns", "--alias", "desk", "--json").json
    assert {line["alias"] for line in only} == {"desk"}


def test_a_round_can_be_left_to_later(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    assert kintsugi("import", path, "--no-diagnose").code == 0
    assert len(kintsugi("rollouts", "ls", "--json").json) == 5
    empty = kintsugi("patterns")
    assert empty.out == ""
    assert "kintsugi diagnose" in empty.err
    assert kintsugi("diagnose", "--json").json["round"] == 0
    assert kintsugi("patterns", "--json").json


def test_without_waiting_nothing_is_folded_and_nothing_imported_twice(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    assert kintsugi("import", path, "--no-wait", "--json").json["imported"] == 5
    assert kintsugi("rollouts", "ls", "--json").json == []
    assert kintsugi("status", "--json").json["lag"]["rollouts"] == 5
    assert kintsugi("import", path, "--no-wait", "--json").json["duplicates"] == 5
    assert kintsugi("import", path, "--json").json["duplicates"] == 5
    assert kintsugi("patterns", "--json").json


@pytest.mark.parametrize("folded", [False, True])
def test_a_round_is_closed_after_a_crash_before_it(
    home: Path, kintsugi: Kintsugi, tmp_path: Path, folded: bool
) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    with App(load()) as app:
        append_rollouts(app.spool, app.blobs, read_rollouts([path]), lambda _: set())
        if folded:
            app.settle()
    assert kintsugi("import", path, "--json").json["duplicates"] == 5
    assert kintsugi("status", "--json").json["undiagnosed"] == 0
    assert kintsugi("patterns", "--json").json


def test_rounds_follow_each_other(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    for number in range(3):
        records = [failed_rollout(f"t{n}", number) for n in range(4)]
        kintsugi("import", write_lines(tmp_path / f"{number}.jsonl", *records))
    (line,) = kintsugi("patterns", "--json").json
    assert (line["round"], len(line["trend"])) == (2, 3)
    assert kintsugi("status", "--json").json["cycle"]["round"] == 2


def test_two_homes_share_nothing(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    kintsugi("import", path)
    other = tmp_path / "other"
    assert kintsugi("rollouts", "ls", "--json", "--home", other).json == []
    assert kintsugi("--home", other, "import", path, "--json").json["imported"] == 5
    kintsugi(
        "import", write_lines(tmp_path / "b.jsonl", unjudged_rollout("again")), "--home", other
    )
    assert len(kintsugi("rollouts", "ls", "--json").json) == 5
    assert len(kintsugi("rollouts", "ls", "--json", "--home", other).json) == 6


@pytest.mark.processes
def test_two_imports_at_once_import_everything_once(home: Path, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.jsonl")
    from tests.daemon.commands import spawn

    results: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(
                spawn(["import", str(path), "--json"], tmp_path, {"KINTSUGI_HOME": str(home)})
            )
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.code for result in results] == [0, 0], results
    listed = spawn(["rollouts", "ls", "--json"], tmp_path, {"KINTSUGI_HOME": str(home)})
    assert len(listed.json) == 5
    assert sorted(result.json["imported"] for result in results) == [0, 5]


def test_a_large_rollout_is_read_back_from_its_blob(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    import random

    noise = "".join(random.Random(1).choices("0123456789abcdef", k=2_500_000))
    record = passed_rollout()
    record["messages"][1]["content"] = noise
    kintsugi("import", write_lines(tmp_path / "a.jsonl", record))
    (line,) = kintsugi("rollouts", "ls", "--json").json
    shown = kintsugi("rollouts", "show", line["rollout"], "--json").json
    assert shown["messages"][1]["content"] == noise
    (event,) = kintsugi("log", "cat", "rollouts").lines
    assert event["data"]["messages"][1]["content"] == noise
    assert kintsugi("log", "verify", "--json").json["ok"]
    (blob,) = [path for path in (home / "blobs").rglob("*") if path.is_file()]
    blob.unlink()
    verified = kintsugi("log", "verify", "--json")
    assert (verified.code, verified.json["ok"]) == (1, False)
    assert blob.name in verified.json["problems"][0]
    (event,) = kintsugi("log", "cat", "rollouts").lines
    assert blob.name in event["error"]
    lost = kintsugi("rollouts", "show", line["rollout"])
    assert (lost.code, lost.out) == (1, "")


def test_token_arrays_are_printed_on_demand(home: Path, kintsugi: Kintsugi) -> None:
    from array import array

    data = RolloutEnded(rollout="r", alias="a", base="b", policy="b", source="test")
    envelope = Envelope(new_id(), data.TYPE, 1, data.key())
    tokens: dict[str, array[Any]] = {
        "token_ids": array("i", [1, 2]),
        "logprobs": array("f", [-0.5, -1.0]),
    }
    with App(load()) as app:
        app.append([encode(envelope, data, now_ms(), tokens).entry])
    (without,) = kintsugi("log", "cat", "rollouts").lines
    assert "token_ids" not in without["data"]
    (event,) = kintsugi("log", "cat", "rollouts", "--tokens").lines
    assert (event["data"]["token_ids"], event["data"]["logprobs"]) == ([1, 2], [-0.5, -1.0])
    assert json.dumps(without["data"])
