"""The program as a process: exit codes, one sentence per error, and nothing but data on stdout."""

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.cli.output import plain
from tests.daemon.commands import (
    environment,
    failed_rollout,
    spawn,
    start,
    write_examples,
    write_lines,
)

pytestmark = pytest.mark.processes


def run(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    result = spawn(arguments, folder, {"KINTSUGI_HOME": str(folder / "home"), **variables})
    return result.code, result.out, result.err


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "said"),
    [
        (["nothing"], {}, 2, "'nothing'"),
        (["rollouts", "ls", "--limit", "many"], {}, 2, "many"),
        (["status"], {"KINTSUGI_HOEM": "/tmp"}, 2, "KINTSUGI_HOME"),
        (["status"], {"KINTSUGI_LOG__DURABILITY": "none"}, 2, "'none'"),
        (["status"], {"KINTSUGI_CONFIG": "nowhere.toml"}, 2, "nowhere.toml"),
        (["status"], {"KINTSUGI_DATABASE_URL": "mysql://u:hush@h/d"}, 2, "'mysql'"),
        (["status"], {"KINTSUGI_DATABASE_URL": "postgresql://u:hush@127.0.0.1:1/d"}, 4, ":1/d"),
        (["diagnose"], {"KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, 4, "127.0.0.1:1"),
        (["status", "--home", "/dev/null/home"], {}, 4, "/dev/null/home"),
        (["rollouts", "show", "zzz"], {}, 1, "'zzz'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_is_one_sentence(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], code: int, said: str
) -> None:
    found, out, err = run(tmp_path, *arguments, **variables)
    assert (found, out) == (code, ""), err
    (line,) = err.splitlines()
    assert line.startswith("kintsugi: ")
    assert said in line
    assert "hush" not in err


def test_a_traceback_comes_on_demand(tmp_path: Path) -> None:
    _, _, err = run(tmp_path, "rollouts", "show", "zzz", "--debug")
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("kintsugi: ")


def test_stdout_holds_data_only(tmp_path: Path) -> None:
    examples = str(write_examples(tmp_path / "a.jsonl"))
    imported = spawn(["import", examples, "--json"], tmp_path, {"KINTSUGI_HOME": f"{tmp_path}/h"})
    assert (imported.code, imported.json["imported"]) == (0, 5)
    assert "kintsugi patterns" in imported.err
    listed = spawn(["patterns", "--json"], tmp_path, {"KINTSUGI_HOME": f"{tmp_path}/h"})
    assert listed.json
    assert listed.err == ""


def test_a_reader_that_has_enough_is_no_failure(tmp_path: Path) -> None:
    records = [failed_rollout(f"t{n}", size=2000) for n in range(40)]
    run(tmp_path, "import", str(write_lines(tmp_path / "a.jsonl", *records)))
    with start(
        ["log", "cat", "rollouts"], {"KINTSUGI_HOME": str(tmp_path / "home")},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith('{"stream":"rollouts"')
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=30), err) == (0, "")


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "daemon", "config", "schema"],
            cwd=tmp_path, env=environment(KINTSUGI_HOME=str(tmp_path / "home")),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line


@pytest.mark.long
def test_ascii_output_is_still_json(tmp_path: Path) -> None:
    record = failed_rollout("größe")
    run(tmp_path, "import", str(write_lines(tmp_path / "a.jsonl", record)))
    listed = spawn(
        ["rollouts", "ls", "--json"],
        tmp_path,
        {"KINTSUGI_HOME": str(tmp_path / "home"), "PYTHONIOENCODING": "ascii"},
    )
    assert listed.json[0]["task"] == "größe"
    shown = spawn(
        ["rollouts", "ls"],
        tmp_path,
        {"KINTSUGI_HOME": str(tmp_path / "home"), "PYTHONIOENCODING": "ascii"},
    )
    assert (shown.code, "Traceback" in shown.err) == (0, False)


def test_colour_can_be_switched_off(tmp_path: Path) -> None:
    examples = str(write_examples(tmp_path / "a.jsonl"))
    run(tmp_path, "import", examples)
    _, plainly, _ = run(tmp_path, "patterns", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[3" not in plainly


def test_help_and_version_need_nothing(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--help")
    assert (code, err) == (0, "")
    assert "import" in out
    assert run(tmp_path, "patterns", "--help")[0] == 0
    assert run(tmp_path)[0] == 0
    assert run(tmp_path, "--version")[1].startswith("kintsugi ")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        (
            ["--help"],
            [
                "sqlalchemy",
                "kafka",
                "pydantic",
                "pydantic_settings",
                "alembic",
                "rich.progress",
                "events.serving",
                "daemon.status.stages",
                "numpy",
                "torch",
            ],
        ),
        (["patterns", "--json"], ["kafka", "alembic", "zstandard", "events.codec", "rich"]),
    ],
    ids=" ".join,
)
def test_a_command_imports_only_what_it_needs(
    tmp_path: Path, command: list[str], heavy: list[str]
) -> None:
    run(tmp_path, "status")  # the home is made and migrated once, by whoever comes first
    script = (
        "import sys; from daemon.__main__ import main; main(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=tmp_path, env=environment(KINTSUGI_HOME=str(tmp_path / "home")),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert not set(heavy) & set(done.stderr.splitlines()[-1].split())


def test_common_options_stand_before_or_after_the_command(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    for arguments in (
        ["--home", other, "--json", "config", "show"],
        ["config", "show", "--home", other, "--json"],
    ):
        found = spawn(arguments, tmp_path, {"KINTSUGI_HOME": str(tmp_path / "home")})
        assert found.json["home"] == other


@pytest.mark.long
def test_a_home_may_have_any_name(tmp_path: Path) -> None:
    home = str(tmp_path / "50% off? #1 ü")
    examples = str(write_examples(tmp_path / "a.jsonl"))
    assert spawn(["import", examples, "--home", home], tmp_path).code == 0
    assert (Path(home) / "kintsugi.db").exists()
    assert len(spawn(["rollouts", "ls", "--json", "--home", home], tmp_path).json) == 5


def test_control_characters_become_visible() -> None:
    assert plain("a\x1b[31mb\x07\x7f\x9b\n\tc") == "a␛[31mb␇␡�\n\tc"
    assert plain("pay \u202eyppah\u202c \u2066x\u2069") == "pay \ufffdyppah\ufffd \ufffdx\ufffd"
