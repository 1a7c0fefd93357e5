"""What the reading commands print: keys, types and order are a promise to scripts."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from events.sqlite.log import SqliteLog
from tests.consumers.folding import diagnosed
from tests.daemon.commands import failed_rollout, tau_bench_run, write_lines
from tests.daemon.conftest import Kintsugi

ROLLOUT = {
    "rollout": str, "task": (str, type(None)), "trial": (int, type(None)),
    "success": (bool, type(None)), "reward": (float, int, type(None)),
    "category": (str, type(None)), "categories": list, "policy": str, "source": str,
    "verdicts": list,
}  # fmt: skip

PATTERN = {
    "alias": str, "base": str, "pattern": str, "category": str, "pivot": str, "failures": int,
    "attempts": int, "pass_rate": float, "priority": float, "status": str, "examples": list,
}  # fmt: skip

EVENT = [
    "stream", "partition", "offset", "id", "type", "version", "time", "subject", "cause", "data",
]  # fmt: skip

READING = [
    ["rollouts", "ls"], ["patterns"], ["status"], ["log", "stats"], ["log", "cat", "rollouts"],
    ["log", "tail", "learning"], ["log", "verify"], ["dlq", "list"], ["dlq", "retry"], ["rebuild"],
    ["config", "show"], ["config", "show", "--origin"], ["config", "check"], ["config", "schema"],
    ["db", "check"], ["doctor"], ["diagnose"],
]  # fmt: skip


def typed(line: dict[str, Any], promise: dict[str, Any]) -> None:
    assert list(line)[: len(promise)] == list(promise)
    for name, kind in promise.items():
        assert isinstance(line[name], kind), f"{name} is {line[name]!r}"


def test_rollouts_are_listed_by_time_and_task(imported: Path, kintsugi: Kintsugi) -> None:
    lines = kintsugi("rollouts", "ls", "--json").json
    for line in lines:
        typed(line, ROLLOUT)
        assert set(line) == set(ROLLOUT)
    assert [(line["task"], line["trial"], line["success"]) for line in lines if line["task"]] == [
        ("t1", 0, False), ("t1", 1, True), ("t2", 0, False), ("t3", 0, True),
    ]  # fmt: skip
    (unjudged,) = [line for line in lines if line["success"] is None]
    assert (unjudged["reward"], unjudged["category"], unjudged["categories"]) == (None, None, [])


def test_a_listing_can_be_narrowed(imported: Path, kintsugi: Kintsugi) -> None:
    def count(*flags: str) -> int:
        return len(kintsugi("rollouts", "ls", *flags, "--json").json)

    assert (count(), count("--failed"), count("--passed"), count("--diagnosed")) == (5, 2, 2, 2)
    assert count("--limit", "3") == 3
    both = kintsugi("rollouts", "ls", "--failed", "--passed")
    assert both.code == 2
    assert "--failed and --passed" in both.err


def test_a_rollout_is_shown_with_what_was_expected_and_made(
    imported: Path, kintsugi: Kintsugi
) -> None:
    listed = kintsugi("rollouts", "ls", "--failed", "--json").json[0]
    shown = kintsugi("rollouts", "show", listed["rollout"], "--json").json
    typed(shown, ROLLOUT)
    assert {name: shown[name] for name in ROLLOUT} == listed
    assert [message["role"] for message in shown["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [action["arguments"] for action in shown["gold_actions"]] == [{"order_id": "#1"}]
    (made,) = shown["executed_actions"]
    assert (made["name"], made["arguments"], made["turn"], made["failed"]) == (
        "cancel_order", {"order_id": "#2"}, 2, False,
    )  # fmt: skip
    assert shown["category"] in shown["evidence"]


def test_the_beginning_of_an_id_is_enough(imported: Path, kintsugi: Kintsugi) -> None:
    ids = [line["rollout"] for line in kintsugi("rollouts", "ls", "--json").json]
    assert kintsugi("rollouts", "show", ids[0][:13], "--json").json["rollout"] == ids[0]
    missing = kintsugi("rollouts", "show", "zzz")
    assert (missing.code, missing.out) == (1, "")
    assert "'zzz'" in missing.err
    ambiguous = kintsugi("rollouts", "show", "")
    assert ambiguous.code == 1


def test_a_beginning_of_several_ids_names_them(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    from tests.daemon.commands import unjudged_rollout

    # 40 ids over 16 first digits: some digit begins several.
    records = [unjudged_rollout(f"number {n}") for n in range(40)]
    kintsugi("import", write_lines(tmp_path / "many.jsonl", *records))
    ids = [line["rollout"] for line in kintsugi("rollouts", "ls", "--json").json]
    first = next(digit for digit in "0123456789abcdef" if sum(i[0] == digit for i in ids) > 1)
    result = kintsugi("rollouts", "show", first)
    assert result.code == 1
    assert sum(i in result.err for i in ids) >= 2


def test_a_transcript_marks_the_evidence_and_compares_calls(
    imported: Path, kintsugi: Kintsugi
) -> None:
    ids = {
        (line["task"], line["success"]): line["rollout"]
        for line in kintsugi("rollouts", "ls", "--json").json
    }
    failed = kintsugi("rollouts", "show", ids["t1", False]).out
    assert "▶ [2] assistant" in failed
    assert 'cancel_order(order_id="#1")' in failed
    assert 'cancel_order(order_id="#2")' in failed
    passed = kintsugi("rollouts", "show", ids["t1", True]).out
    assert '✓ [2] cancel_order(order_id="#1")' in passed
    unjudged = kintsugi("rollouts", "show", ids[None, None]).out
    assert "nobody wrote them down" in unjudged


def test_a_transcript_cannot_drive_the_terminal(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    from tests.daemon.commands import unjudged_rollout

    hostile = unjudged_rollout("\x1b]0;owned\x07 [bold]not markup[/bold] \x9b31m")
    kintsugi("import", write_lines(tmp_path / "a.jsonl", hostile))
    (line,) = kintsugi("rollouts", "ls", "--json").json
    shown = kintsugi("rollouts", "show", line["rollout"]).out
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "[bold]not markup[/bold]" in shown


def test_patterns_are_ranked(imported: Path, kintsugi: Kintsugi) -> None:
    lines = kintsugi("patterns", "--json").json
    for line in lines:
        typed(line, PATTERN)
    assert [line["priority"] for line in lines] == sorted(
        (line["priority"] for line in lines), reverse=True
    )
    assert (lines[0]["alias"], lines[0]["base"], lines[0]["failures"]) == ("agent", "small", 2)
    # All judged ones have the same tool in their gold; the unjudged one counts in neither.
    assert (lines[0]["attempts"], lines[0]["passes"]) == (4, 2)
    failed = {line["rollout"] for line in kintsugi("rollouts", "ls", "--failed", "--json").json}
    assert set(lines[0]["examples"]) == failed
    assert kintsugi("patterns", "--alias", "nobody", "--json").json == []
    text = kintsugi("patterns").out
    assert lines[0]["category"] in text
    assert "█" in text


def test_status_says_what_exists_and_what_is_missing(imported: Path, kintsugi: Kintsugi) -> None:
    status = kintsugi("status", "--json").json
    assert list(status["streams"]) == ["rollouts", "learning"]
    assert status["streams"]["rollouts"]["events"] == 5
    assert status["lag"] == {"rollouts": 0, "learning": 0}
    assert (status["unjudged"], status["rollouts"], status["undiagnosed"]) == (1, 5, 0)
    assert (status["cycle"]["round"], status["cycle"]["trigger"]) == (0, "import")
    assert status["next_cycle"]["due"] is False
    (missing,) = status["next_cycle"]["missing"]
    assert missing.startswith("agent has no executable environment")
    assert (status["routes"], status["adapters"]) == ([], [])
    assert status["projection"] == {"state": "live", "halted": [], "gaps": []}


def test_status_names_the_rollouts_that_a_round_waits_for(
    imported: Path, kintsugi: Kintsugi
) -> None:
    with closing(SqliteLog(imported / "log.db")) as log:
        log.append([diagnosed({"rollouts": {"0": {"nobody": 3}}}, "lost")])
    status = kintsugi("status", "--json").json
    (gap,) = status["projection"]["gaps"]
    assert "up to sequence 3 of source nobody" in gap
    assert status["lag"]["learning"] == 1


def test_statistics_count_events_and_bytes(imported: Path, kintsugi: Kintsugi) -> None:
    stats = kintsugi("log", "stats", "--json").json
    assert list(stats) == ["streams"]
    assert list(stats["streams"]) == ["rollouts", "learning"]
    assert stats["streams"]["learning"]["events"] == 1
    assert all(set(of) == {"events", "bytes"} for of in stats["streams"].values())


def test_events_are_printed_in_order(imported: Path, kintsugi: Kintsugi) -> None:
    lines = kintsugi("log", "cat", "rollouts").lines
    assert [list(line)[:10] for line in lines] == [EVENT] * 5
    places = [(line["partition"], line["offset"]) for line in lines]
    assert places == sorted(places)
    assert {line["type"] for line in lines} == {"RolloutEnded"}
    # Head and content are one object.
    assert all(line["data"]["rollout"] and line["data"]["messages"] for line in lines)
    (round_,) = kintsugi("log", "cat", "learning", "--json").lines
    assert (round_["type"], round_["data"]["trigger"]) == ("PatternsDiagnosed", "import")


def test_events_are_printed_from_a_place(imported: Path, kintsugi: Kintsugi) -> None:
    every = kintsugi("log", "cat", "rollouts").lines
    partition = every[-1]["partition"]

    def cat(start: str) -> list[Any]:
        return kintsugi("log", "cat", "rollouts", "--from", start).lines

    assert cat("0") == every
    assert cat("1") == [line for line in every if line["offset"] >= 1]
    assert cat(f"{partition}:0") == [line for line in every if line["partition"] == partition]
    zeros = ",".join("0" * 8)
    assert cat(f"rollouts@{zeros};learning@1") == every
    ends = [sum(line["partition"] == p for line in every) for p in range(8)]
    assert cat(f"rollouts@{','.join(map(str, ends))}") == []


@pytest.mark.parametrize(
    "start", ["x", "8:0", "-1", "learning@0", "rollouts@1", "rollouts@0,0,0,0,0,0,0,x"]
)
def test_a_place_that_is_none_is_wrong_usage(
    imported: Path, kintsugi: Kintsugi, start: str
) -> None:
    result = kintsugi("log", "cat", "rollouts", f"--from={start}")
    assert (result.code, result.out) == (2, "")
    assert start in result.err


def test_a_place_beyond_the_end_is_not_passed_over(imported: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("log", "cat", "learning", "--from", "0:7")
    assert (result.code, result.out) == (4, "")
    assert "offset 7" in result.err


def test_tail_prints_the_newest(imported: Path, kintsugi: Kintsugi) -> None:
    assert len(kintsugi("log", "tail", "rollouts", "-n", "2", "--json").lines) == 2
    assert kintsugi("log", "tail", "rollouts", "-n", "0").out == ""
    assert "PatternsDiagnosed control" in kintsugi("log", "tail", "learning").out


def test_an_unknown_stream_is_named(home: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("log", "cat", "nothing")
    assert result.code == 2
    assert "'nothing' is not one of rollouts, learning" in result.err


def test_a_rebuild_is_equal_and_has_a_hash(imported: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("rebuild", "--json")
    assert result.code == 0
    assert list(result.json)[:4] == ["events", "seconds", "hash", "equal"]
    assert (result.json["events"], result.json["equal"]) == (6, True)
    assert len(result.json["hash"]) == 64
    assert kintsugi("rebuild", "--json").json["hash"] == result.json["hash"]


def test_verify_reads_everything(imported: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("log", "verify", "--json")
    assert (result.code, result.json) == (0, {"ok": True, "events": 6, "problems": []})


def test_diagnosing_again_changes_nothing(imported: Path, kintsugi: Kintsugi) -> None:
    first = kintsugi("diagnose", "--json").json
    assert set(first) == {"round", "patterns", "unjudged", "other"}
    assert (first["round"], first["unjudged"]) == (0, 1)
    assert kintsugi("diagnose", "--json").json == first
    assert kintsugi("log", "stats", "--json").json["streams"]["learning"]["events"] == 1


def test_a_tau_bench_run_is_imported_and_shown(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([tau_bench_run()]))
    assert kintsugi("import", path, "--base", "gpt-4o", "--json").json["imported"] == 1
    (line,) = kintsugi("rollouts", "ls", "--json").json
    assert (line["source"], line["task"], line["policy"]) == ("tau-bench", "airline/7", "gpt-4o")
    shown = kintsugi("rollouts", "show", line["rollout"], "--json").json
    assert shown["executed_actions"] == []
    assert shown["gold_actions"][0]["arguments"] == {"reservation_id": "R1"}


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_fresh_home_answers(home: Path, kintsugi: Kintsugi, command: list[str]) -> None:
    text = kintsugi(*command)
    assert text.code == 0, text.err
    data = kintsugi(*command, "--json")
    assert data.code == 0
    if command[:2] == ["log", "cat"] or command[:2] == ["log", "tail"]:
        assert data.out == ""
    else:
        assert len(data.out.splitlines()) == 1
        assert data.json is not None


@pytest.mark.parametrize("command", [["rollouts", "ls"], ["patterns"], ["status"]], ids=" ".join)
def test_an_empty_answer_comes_with_a_hint(
    home: Path, kintsugi: Kintsugi, command: list[str]
) -> None:
    assert "kintsugi import" in kintsugi(*command).err
    assert kintsugi(*command, "--quiet").err == ""


def test_a_name_with_line_breaks_stays_on_its_line_in_every_list(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    name = "t1\nforged-rollout  forged-task\tpassed\u2028again\u202e"
    kintsugi("import", write_lines(tmp_path / "a.jsonl", failed_rollout(name)))
    (line,) = kintsugi("rollouts", "ls", "--json").json
    assert line["task"] == name
    for command in (("rollouts", "ls"), ("rollouts", "show", line["rollout"]), ("patterns",)):
        shown = kintsugi(*command).out
        assert not any(text.lstrip().startswith("forged") for text in shown.splitlines())
        assert not {"\u2028", "\u202e"} & set(shown)
    assert "t1␊forged-rollout" in kintsugi("rollouts", "ls").out
