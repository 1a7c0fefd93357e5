"""Files and folders become events: detection, damage, identity, batches, duplicates."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from events.blobs import BlobStore
from events.codec import attach, decode
from events.log import Record
from events.memory import MemoryLog
from events.rollouts import RolloutEnded
from events.streams import ROLLOUTS
from producers.importers import importer
from producers.importers.documents import Damage, decode_at, items
from producers.importers.importer import (
    Notes,
    RolloutImport,
    append_rollouts,
    read_rollouts,
    total_bytes,
)
from tests.producers.samples import (
    bfcl_result,
    only,
    openai_call,
    openai_record,
    places,
    read,
    tau2_results,
    tau2_simulation,
    tau_bench_run,
    write,
)

SAMPLES = {
    "tau-bench": [tau_bench_run()],
    "tau2": tau2_results(),
    "openai": openai_record(),
    "bfcl": bfcl_result(),
}


def stored(log: MemoryLog) -> list[Record]:
    return [
        record
        for partition in range(ROLLOUTS.partitions)
        for record in log.read("rollouts", partition, 0)
    ]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("indent", [None, 2])
def test_each_format_is_told_by_its_content(tmp_path: Path, name: str, indent: int | None) -> None:
    path = tmp_path / "some.json"
    path.write_text(json.dumps(SAMPLES[name], indent=indent))
    assert only(path).data.source == name
    assert only(path, format=name).envelope == only(path).envelope


@pytest.mark.parametrize("name", SAMPLES)
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str) -> None:
    plain = write(tmp_path / "plain.json", SAMPLES[name])
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert only(marked).envelope == only(plain).envelope


@pytest.mark.parametrize("name", SAMPLES)
def test_the_id_is_that_of_the_record_whatever_the_file(tmp_path: Path, name: str) -> None:
    plain = only(write(tmp_path / "a.json", SAMPLES[name]))
    turned = tmp_path / "b" / "c.json"
    turned.parent.mkdir()
    turned.write_text(json.dumps(SAMPLES[name], indent=4, sort_keys=True, ensure_ascii=False))
    again = only(turned)
    assert again.envelope == plain.envelope
    assert again.data == plain.data
    assert again.record == plain.record
    assert plain.data.rollout == plain.envelope.id
    assert plain.envelope.subject == plain.data.key()


def test_alias_and_base_are_part_of_the_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", tau2_results())
    named = only(path, alias="shop", base="model-z")
    assert (named.data.alias, named.data.base, named.data.policy) == ("shop", "model-z", "model-z")
    ids = {only(path).envelope.id, only(path, alias="shop").envelope.id, named.envelope.id}
    assert len(ids) == 3
    assert only(path, base="model-a").envelope.id == only(path).envelope.id


def test_an_unknown_format_name_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'csv' is not one of auto, tau-bench"):
        read(tmp_path, format="csv")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n \n", "none of the formats"),
        (b"hello", "none of the formats"),
        (b"[1, 2]", "none of the formats"),
        (b'{"a": 1}\n{"a": 2}', "its first record has a"),
        (b'"text"', "none of the formats"),
        ('{"messages": []}'.encode("utf-16"), "none of the formats"),
        (b"\x00" * 100, "none of the formats"),
        (b'{"messages_display": "user: hi"}', "few-shot displays"),
        (b"[" * 50_000, "none of the formats"),
        (b'{"a":' * 50_000, "its first record has a"),
    ],
)
def test_what_is_no_file_of_rollouts_is_rejected_whole(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    rollouts, (rejection,) = read(path)
    assert not rollouts
    assert (rejection.file, rejection.position) == (str(path), "file")
    assert reason in rejection.reason


def test_a_missing_file_does_not_stop_the_others(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", openai_record())
    rollouts, (rejection,) = read(tmp_path / "none.json", good)
    assert len(rollouts) == 1
    assert "No such file" in rejection.reason


def test_a_folder_is_walked_in_order_and_hidden_or_other_files_are_left(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.JSON", "c.json", ".hidden.json", ".git/d.json", "b/read.me"):
        write(tmp_path / name, openai_record())
    rollouts, rejections = read(tmp_path)
    assert not rejections
    assert [Path(one.file).name for one in rollouts] == ["c.json", "1.JSON", "2.jsonl"]


def test_progress_adds_up_to_the_size_of_what_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", openai_record(), openai_record(trial=1))
    write(tmp_path / "b.json", [tau_bench_run(), tau_bench_run(trial=5)])
    write(tmp_path / "c.json", {"x": "ü"})
    write(tmp_path / "run" / "results.json", tau2_results(simulations=[]))
    write(tmp_path / "run" / "simulations" / "s.json", tau2_simulation())
    told: list[int] = []
    list(read_rollouts([tmp_path], progress=told.append))
    assert sum(told) == total_bytes([tmp_path])
    assert min(told) >= 0


def test_a_list_cut_between_records_says_that_the_rest_is_missing(tmp_path: Path) -> None:
    text = json.dumps([tau_bench_run(), tau_bench_run(trial=1)])
    for end in (text[:-1], text[:-1] + ", "):
        path = tmp_path / "a.json"
        path.write_text(end)
        rollouts, rejections = read(path)
        assert len(rollouts) == 2
        assert places(rejections) == ["[2]"]
        assert "ends before the array is closed" in rejections[0].reason


@pytest.mark.parametrize("torn", ['"reward": 1.0,', '"traj": [', '"actions": ['])
def test_damage_in_the_first_record_does_not_hide_the_format(tmp_path: Path, torn: str) -> None:
    text = json.dumps([tau_bench_run(trial=trial) for trial in range(3)])
    path = tmp_path / "a.json"
    path.write_text(text.replace(torn, torn + "!", 1))
    rollouts, rejections = read(path)
    assert [one.data.trial for one in rollouts] == [1, 2]
    assert places(rejections) == ["[0]"]


def test_simulations_without_their_tasks_are_no_chat_logs(tmp_path: Path) -> None:
    for path in (
        write(tmp_path / "a.json", [tau2_simulation()]),
        write(tmp_path / "b.jsonl", tau2_simulation(), tau2_simulation(trial=3)),
    ):
        rollouts, rejections = read(path)
        assert not rollouts
        assert places(rejections) == ["file"]


def test_what_follows_the_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([tau_bench_run()]) + "[]")
    rollouts, rejections = read(path)
    assert len(rollouts) == 1
    assert "is no part of the array" in rejections[0].reason


def test_damaged_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    good = json.dumps(openai_record()).encode()
    lines = [b'{"messages": [', good, b"", b"null", b'{"messages": "\xff"}', good + b"}", b"\0\0"]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\r\n".join(lines))
    rollouts, rejections = read(path)
    assert [one.position for one in rollouts] == ["line 2"]
    assert places(rejections) == ["line 1", "line 4", "line 5", "line 6", "line 7"]
    assert "0xff at byte 15" in rejections[2].reason


def test_a_byte_that_is_not_utf8_costs_one_record_of_a_list(tmp_path: Path) -> None:
    runs = [tau_bench_run(), tau_bench_run(trial=1), tau_bench_run(trial=3)]
    runs[1]["traj"][1]["content"] = "caf@"
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(runs).encode().replace(b"caf@", b"caf\xe9"))
    rollouts, rejections = read(path)
    assert len(rollouts) == 2
    assert places(rejections) == ["[1]"]
    assert "not UTF-8: byte 0xe9" in rejections[0].reason


def test_half_a_surrogate_pair_is_replaced_and_the_id_is_the_records(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "\\ud83d!"}]}')
    half = only(path)
    assert half.data.content is not None
    assert half.data.content.messages[0].content == "\ufffd!"
    path.write_text('{"messages": [{"role": "user", "content": "\\ufffd!"}]}')
    assert only(path).envelope.id != half.envelope.id


def test_a_string_that_never_ends_is_read_once() -> None:
    """Behind nesting that no parser takes: from each of its quotes to the end, it took hours."""
    text = "[" * 100_000 + '"' + '\\"' * 400_000
    damage = decode_at(text, 0, "line 1")
    assert isinstance(damage, Damage)
    assert (damage.end, damage.whole) == (len(text), False)


def test_what_follows_values_without_an_end_is_looked_for_in_linear_time() -> None:
    """From each of the first thousand, all of the text was read."""
    (damage,) = items("[<" + '[{"a":' * 40_000, 0, "", lambda value: False)
    assert isinstance(damage, Damage)
    assert damage.reason.endswith("no whole record follows")


def test_nesting_that_cannot_be_stored_is_rejected(tmp_path: Path) -> None:
    def record(depth: int) -> str:
        deep = "[" * depth + "]" * depth
        call = json.dumps(openai_call("f", {"a": 0})).replace("0", deep)
        return f'{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}'

    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(record(depth) for depth in (90, 150, 5_000, 10)))
    rollouts, rejections = read(path)
    assert [one.position for one in rollouts] == ["line 1", "line 4"]
    assert "nested deeper than 100" in rejections[0].reason
    assert "nested too deeply" in rejections[1].reason
    log = append(rollouts, tmp_path)[1]
    assert len([decode(record) for record in stored(log)]) == 2


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_records_behind_a_deep_one_are_read(tmp_path: Path, opening: str) -> None:
    closing = "".join({"[": "]", "{": "}"}.get(sign, "") for sign in reversed(opening))
    deep = opening * 20_000 + "0" + closing * 20_000
    runs = [json.dumps(tau_bench_run(trial=trial)) for trial in range(3)]
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join([runs[0], f'{{"traj": "]}}", "x": {deep}}}', *runs[1:]]) + "]")
    rollouts, rejections = read(path)
    assert [one.position for one in rollouts] == ["[0]", "[2]", "[3]"]
    assert places(rejections) == ["[1]"]


def test_an_integer_too_long_to_be_parsed_costs_its_record(tmp_path: Path) -> None:
    runs = [json.dumps(tau_bench_run(trial=trial)) for trial in range(3)]
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join([runs[0], runs[1].replace("7", "7" * 5_000), runs[2]]) + "]")
    rollouts, rejections = read(path)
    assert [one.position for one in rollouts] == ["[0]", "[2]"]
    assert places(rejections) == ["[1]"]


def append(
    items: list[Any], folder: Path, known: set[str] | None = None
) -> tuple[importer.ImportResult, MemoryLog]:
    log = MemoryLog()
    old = known or set()
    return append_rollouts(log, BlobStore(folder / "blobs"), items, old.intersection), log


def test_an_import_appends_once_and_counts_the_rest(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        *[openai_record(trial=trial % 5) for trial in range(12)],
        {"messages": 3},
    )
    items = list(read_rollouts([path]))
    result, log = append(items, tmp_path)
    assert (result.imported, result.duplicates, places(result.rejected)) == (5, 7, ["line 13"])
    assert len(stored(log)) == 5
    first = items[0]
    assert isinstance(first, RolloutImport)
    again, log = append(items, tmp_path, known={first.envelope.id})
    assert (again.imported, again.duplicates) == (4, 8)


def test_stored_events_are_what_was_read(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.json", sample) for name, sample in SAMPLES.items()]
    rollouts, _ = read(*paths)
    _, log = append(rollouts, tmp_path)
    events = {event.envelope.id: event for event in map(decode, stored(log))}
    assert {one.envelope.id for one in rollouts} == events.keys()
    for one in rollouts:
        event = events[one.envelope.id]
        assert event.envelope == one.envelope
        assert event.data == one.data


def test_more_than_a_batch_is_appended_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", *[openai_record(trial=trial) for trial in range(300)])
    asked: list[int] = []

    def known(ids: list[str]) -> set[str]:
        asked.append(len(ids))
        return set()

    log = MemoryLog()
    result = append_rollouts(log, BlobStore(tmp_path / "blobs"), read_rollouts([path]), known)
    assert result.imported == 300
    assert asked == [128, 128, 44]


def test_a_message_of_ten_megabytes_goes_to_a_blob(tmp_path: Path) -> None:
    # Text that does not compress, so that the body exceeds what a record holds.
    digits = "".join(format(number * 2654435761 % 2**32, "08x") for number in range(1_300_000))
    path = write(
        tmp_path / "a.jsonl", openai_record(messages=[{"role": "user", "content": digits}])
    )
    result, log = append([only(path)], tmp_path)
    (record,) = stored(log)
    event = decode(record)
    assert result.imported == 1
    assert event.blob is not None
    whole, _ = attach(event, BlobStore(tmp_path / "blobs").get(event.blob.sha256))
    assert isinstance(whole.data, RolloutEnded)
    assert whole.data.content is not None
    assert whole.data.content.messages[0].content == digits


def test_a_head_that_fits_no_record_is_rejected(tmp_path: Path) -> None:
    noise = "".join(format(number * 2654435761 % 2**32, "08x") for number in range(300_000))
    records = [openai_record(task_id=1, task={"instruction": noise}), openai_record()]
    items = list(read_rollouts([write(tmp_path / "a.jsonl", *records)]))
    result, log = append(items, tmp_path)
    assert (result.imported, places(result.rejected)) == (1, ["line 1"])
    assert "shorten its fields" in result.rejected[0].reason
    assert len(stored(log)) == 1


def test_warnings_are_counted_per_file(tmp_path: Path) -> None:
    bad = openai_record(tools=[])
    path = write(tmp_path / "a.jsonl", openai_record(), bad, bad | {"trial": 1})
    result, _ = append(list(read_rollouts([path])), tmp_path)
    assert [(one.warning, one.count, one.position) for one in result.warnings] == [
        ("calls the unknown tool 'get_order_details'", 2, "line 2")
    ]


def test_other_files_of_a_folder_are_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", openai_record())
    write(tmp_path / "analysis.json", {"failures": 3, "by_tool": {}})
    write(tmp_path / "notes.json", {"id": "summary", "result": "Most failures are dates."})
    write(tmp_path / "table.json", {"id": "simple_0", "result": {"accuracy": 0.5}})
    write(tmp_path / "checkpoint-3" / "trainer_state.json", {"epoch": 1.0})
    (tmp_path / ".cache").mkdir()
    for name in ("README.md", "data.csv", ".DS_Store", ".hidden.json"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    notes = Notes()
    rollouts, rejections = read(tmp_path, notes=notes)
    assert (len(rollouts), rejections) == (1, [])
    assert {Path(one.file).name: one.reason.split(":")[0] for one in notes.skips} == {
        ".cache": "is a hidden folder",
        ".DS_Store": "is a hidden file",
        ".hidden.json": "is a hidden file",
        "README.md": "is not named *.json or *.jsonl",
        "analysis.json": "is in none of the formats tau-bench, tau2, openai, bfcl",
        "data.csv": "is not named *.json or *.jsonl",
        "link": "is a link to a folder; name that folder to import it",
        "notes.json": "holds `id` and `result`, and they are no answer to a case of BFCL",
        "pipe.json": "is no regular file",
        "table.json": "holds `id` and `result`, and they are no answer to a case of BFCL",
        "trainer_state.json": "is in none of the formats tau-bench, tau2, openai, bfcl",
    }


def test_a_damaged_file_of_a_folder_is_rejected_and_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"failures": 3')
    (tmp_path / "b.json").write_text("")
    notes = Notes()
    _, rejections = read(tmp_path, notes=notes)
    assert (places(rejections), notes.skips) == (["file", "file"], [])


def test_a_file_that_the_caller_names_is_rejected_and_not_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "analysis.json", {"failures": 3})
    notes = Notes()
    _, rejections = read(path, tmp_path, notes=notes)
    assert (set(places(rejections)), notes.skips) == ({"file"}, [])
