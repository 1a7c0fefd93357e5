"""Options of every table: which are refused, and with which words."""

from pathlib import Path

import pytest

from ops.reproduce.__main__ import main
from ops.reproduce.commands import Folder
from tests.ops.reproduce.test_areal_sea import NOWHERE, options, planned


def test_options_of_a_run_are_refused_where_the_folders_own_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path)
    Folder(tmp_path).write("evaluate-base-shop", {"pass_hat": {}})
    command = ["areal-sea", "--out", str(tmp_path), "--only", "evaluate-base-shop"]
    assert main(command) == 0
    others = ["--base-url", NOWHERE, "--seed", "0", "--env", "telecom", "--small"]
    assert main([*command, *others]) == 2
    assert "--base-url, --env, --small, --seed" in capsys.readouterr().err
    assert main([*command, "--plan", "--tokens-per-second", "10"]) == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--tokens-per-second", "0"], "no number above 0"),
        (["--tokens-per-second", "nan"], "no number above 0"),
        (["--device", "tpu"], "give cpu, cuda"),
        (["--max-tokens", "-3"], "no whole number above 0"),
        (["--concurrency", "0"], "no whole number above 0"),
        (["--base-url", "127.0.0.1:18001/v1"], "such as http://"),
        (["--user-base-url", "http://"], "such as http://"),
        (["--proposer-base-url", "http://me:key@h/v1"], "http://h/v1"),
    ],
)
def test_values_that_cannot_be_meant_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*options(tmp_path), *changed, "--plan"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {changed[0]}" in said
    assert reason in said
    assert "me:key" not in said


def test_an_address_of_users_without_their_model_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(tmp_path), "--user-base-url", NOWHERE, "--plan"]) == 2
    assert "--user-model" in capsys.readouterr().err


def test_a_plan_writes_nothing_and_its_first_command_has_all_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*options(out), "--seed", "1", "--plan"]) == 0
    assert not out.exists()
    text = capsys.readouterr().out
    (first,) = [line for line in text.splitlines() if line.endswith("--only check")]
    assert "--seed 1" in first
    assert "--plan" not in first
    planned(out, "--seed", "2")
    assert main([*options(out), "--seed", "2", "--plan"]) == 0
    assert f"areal-sea --out {out} --only check" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"pass_hat": {"1"', "", "[1]", "\udcff"])
def test_a_damaged_result_is_named_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    planned(tmp_path)
    path = Folder(tmp_path).result("evaluate-base-shop")
    path.parent.mkdir()
    path.write_bytes(content.encode(errors="surrogateescape"))
    for stage in ("evaluate-base-shop", "report"):
        assert main(["areal-sea", "--out", str(tmp_path), "--only", stage]) == 1
        said = capsys.readouterr().err
        assert f"{path} was damaged" in said
        assert "remove the file" in said
