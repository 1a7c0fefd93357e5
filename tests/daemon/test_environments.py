"""`kintsugi env ls`, `new` and `check`."""

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config.settings import load
from tests.daemon.commands import environment
from tests.daemon.conftest import Kintsugi

BUILT_IN = ["shop", "retail", "airline", "telecom", "toolsandbox"]
"""Those that generate tasks; bfcl shows nothing without the operator's folder."""


def test_ls_has_a_row_for_each_environment(kintsugi: Kintsugi) -> None:
    rows = kintsugi("env", "ls", "--json").json
    assert [row["env"] for row in rows] == BUILT_IN
    for row in rows:
        assert row["source"] == "built-in"
        assert row["split"] == "generated"
        assert row["tasks"] == 16 * len(row["capabilities"]) > 0


def test_ls_shows_files_of_the_settings(
    kintsugi: Kintsugi, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kintsugi("env", "new", "mine").code == 0
    (clean / "kintsugi.toml").write_text('[environments]\npaths = ["mine.py"]\n')
    row = kintsugi("env", "ls", "--json").json[-1]
    assert (row["env"], row["tasks"], row["source"]) == ("mine", 32, str(clean / "mine.py"))
    assert row["capabilities"] == ["lend", "tell"]
    assert kintsugi("env", "check", "mine", "--json").json["problems"] == []


def test_ls_lists_what_it_can_and_says_what_is_in_the_way_of_the_rest(
    kintsugi: Kintsugi, clean: Path
) -> None:
    assert kintsugi("env", "new", "whole").code == 0
    assert kintsugi("env", "new", "late").code == 0
    late = (clean / "late.py").read_text()
    (clean / "late.py").write_text(
        late.replace("    def ", "    splits = property(exit)\n\n    def ", 1)
    )
    (clean / "needs.py").write_text("import a_package_that_is_missing\n")
    (clean / "whole2.py").write_text((clean / "whole.py").read_text())
    files = ["needs.py", "whole.py", "gone.py", "whole2.py", "late.py"]
    (clean / "kintsugi.toml").write_text(f"[environments]\npaths = {files}\n")
    listed = kintsugi("env", "ls", "--json")
    assert listed.code == 3
    rows = {row["env"]: row for row in listed.json if row["reason"] is None}
    assert [*rows] == [*BUILT_IN, "whole"]
    reasons = {row["source"]: row["reason"] for row in listed.json if row["reason"] is not None}
    assert "a_package_that_is_missing" in reasons[str(clean / "needs.py")]
    assert "two environments are called" in reasons[str(clean / "whole2.py")]
    assert "no file and no folder" in reasons[str(clean / "gone.py")]
    assert str(clean / "late.py") in reasons
    shown = kintsugi("env", "ls")
    assert shown.code == 3
    assert "reason" in shown.out.splitlines()[0]
    assert "whole" in shown.out


def test_paths_of_a_variable_stand_side_by_side(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_ENVIRONMENTS__PATHS", "one.py:~/more")
    assert load().environments.paths == (clean / "one.py", Path("~/more").expanduser())
    monkeypatch.setenv("KINTSUGI_ENVIRONMENTS__PATHS", "")
    assert load().environments.paths == ()


@pytest.mark.benchmarks
def test_ls_shows_the_splits_of_real_tasks(
    kintsugi: Kintsugi, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_BENCHMARKS", str(benchmarks))
    rows = kintsugi("env", "ls", "--json").json
    real = {(row["env"], row["split"]): row for row in rows if row["split"] != "generated"}
    tasks = {key: row["tasks"] for key, row in real.items()}
    assert tasks == {
        ("retail", "base"): 114, ("retail", "train"): 74, ("retail", "test"): 40,
        ("airline", "base"): 50, ("airline", "train"): 30, ("airline", "test"): 20,
        **{
            ("telecom", f"{split}{variant}"): tasks
            for variant in ("", "-workflow", "-solo", "-workflow-solo")
            for split, tasks in (("base", 114), ("train", 74), ("test", 40), ("small", 20))
        },
        **{
            ("bfcl", f"{split}{variant}"): 100
            for variant in ("", "-fc")
            for split in ("base", "miss_func", "miss_param", "long_context")
        },
        ("toolsandbox", "scenarios"): 81,
    }  # fmt: skip
    assert {row["source"] for row in real.values()} == {str(benchmarks)}


def test_new_writes_an_environment_that_is_right_at_once(kintsugi: Kintsugi, clean: Path) -> None:
    made = kintsugi("env", "new", "book_club")
    assert made.code == 0
    assert "kintsugi env check book_club.py" in made.err
    text = (clean / "book_club.py").read_text()
    assert "class BookClub(Environment)" in text
    assert "keleton" not in text
    checked = kintsugi("env", "check", "book_club.py", "--json")
    assert checked.code == 0, checked.out
    assert checked.json["env"] == "book_club"
    assert checked.json["problems"] == []
    assert [path.name for path in clean.iterdir()] == ["book_club.py"]


def test_new_overwrites_nothing(kintsugi: Kintsugi, clean: Path) -> None:
    (clean / "mine.py").write_text("precious")
    refused = kintsugi("env", "new", "mine")
    assert refused.code == 2
    assert "mine.py exists already and is not overwritten" in refused.err
    assert (clean / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mine", "'Mine' is no name"),
        ("my-bots", "'my-bots' is no name"),
        ("../mine", "'../mine' is no name"),
        ("1st", "'1st' is no name"),
        ("a" * 41, "is no name"),
        ("none", "a class cannot be called 'None'"),
        ("environment", "a class cannot be called 'Environment'"),
        ("shop", "there is an environment 'shop' already (built-in)"),
    ],
)
def test_new_refuses_a_name_that_cannot_be_used(
    kintsugi: Kintsugi, clean: Path, name: str, said: str
) -> None:
    refused = kintsugi("env", "new", name)
    assert refused.code == 2
    assert said in refused.err
    assert not list(clean.iterdir())


def test_check_shows_each_capability_and_the_whole(kintsugi: Kintsugi) -> None:
    kintsugi("env", "new", "mine")
    shown = kintsugi("env", "check", "mine.py", "--tasks", "6")
    assert shown.code == 0
    cells = [line.split() for line in shown.out.splitlines()]
    assert cells[0] == ["capability", "tasks", "oracle", "null", "random"]
    assert ["tell", "3", "1.00", "0.00", "0.00"] in cells
    assert ["all", "6", "1.00", "0.00", "0.00"] in cells
    assert "deterministic: yes" in shown.out
    assert "no problems" in shown.out


def test_check_of_a_broken_environment_exits_with_1_and_names_the_task(
    kintsugi: Kintsugi, clean: Path
) -> None:
    kintsugi("env", "new", "mine")
    text = (clean / "mine.py").read_text()
    (clean / "mine.py").write_text(text.replace('["reader"] = reader', '["reader"] = None'))
    broken = kintsugi("env", "check", "./mine.py")
    assert broken.code == 1
    assert "- mine/lend/0: its gold actions write (lend_book), but the state stays" in broken.out
    found = kintsugi("env", "check", "./mine.py", "--json").json
    assert set(found) >= {"deterministic", "oracle", "null", "random", "problems"}
    assert found["capabilities"]["lend"]["oracle"] == 1.0
    assert found["problems"][0].startswith("mine/lend/0: ")


@pytest.mark.long
def test_check_takes_a_first_seed_and_a_number_of_tasks(kintsugi: Kintsugi) -> None:
    first = kintsugi("env", "check", "shop", "--tasks", "22", "--json").json
    other = kintsugi("env", "check", "shop", "--tasks", "22", "--seed", "7", "--json").json
    assert first["tasks"] == other["tasks"] == 22
    assert first["digest"] != other["digest"]


def test_check_takes_no_seed_that_an_id_cannot_hold(kintsugi: Kintsugi) -> None:
    most = ("env", "check", "shop", "--tasks", "2", "--json", "--seed")
    assert kintsugi(*most, str(10**17)).code == 0
    assert kintsugi(*most, str(10**18)).code == 2


def test_check_names_what_is_unknown(kintsugi: Kintsugi) -> None:
    assert "did you mean shop?" in kintsugi("env", "check", "shoop").err
    unknown = kintsugi("env", "check", "shop", "--split", "dev")
    assert unknown.code == 1
    assert "environment shop has no split 'dev'; it has generated" in unknown.err


@pytest.mark.processes
def test_a_file_beside_the_command_hides_none_of_our_packages(clean: Path) -> None:
    for package in ("events", "envs", "daemon"):
        (clean / f"{package}.py").write_text("raise SystemExit('the wrong module')\n")
    # As an installed command is started: without the working directory on its search path.
    command = [sys.executable, "-P", "-m", "daemon", "env", "check", "shop", "--tasks", "4"]
    done = subprocess.run(
        command, cwd=clean, env=environment(), capture_output=True, text=True, check=False
    )
    assert "no problems" in done.stdout, done.stdout + done.stderr
