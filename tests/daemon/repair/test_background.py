"""The role `work` repairs a few failed rollouts at a time; a command repairs all."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from consumers.diagnosis.labels import label_rollout
from consumers.reads.repairs import REPAIR_RULES, count_repairs, read_repair_candidates
from daemon.config.settings import Environments, Settings, load
from daemon.core.app import App
from daemon.repair.background import AWAY_SECONDS, BACKLOG_SECONDS, RepairQueue
from envs.registry import open_place
from events.codec import encode
from events.envelope import Envelope
from events.log import now_ms
from events.privacy.sealing import Key
from events.rollouts import RolloutEnded
from tests.consumers.plans import plans_of
from tests.daemon.commands import environment
from tests.daemon.conftest import Kintsugi
from tests.daemon.repair.shop import SHOP, failure, gold

TWO = SHOP.task("shop/two_writes/0")
PAYMENT = SHOP.task("shop/payment/0")
LOOP = SHOP.task("shop/return/0")


def looping(rollout: str = "loop") -> RolloutEnded:
    """The rules say tool_loop; the replay says one wrong argument."""
    ((name, arguments),) = gold(LOOP)
    return failure(LOOP, [(name, {**arguments, "payment_id": "P0"})] * 5, rollout=rollout)


def record(app: App, *rollouts: RolloutEnded, owner: Key | None = None) -> None:
    """Append rollouts, one per second."""
    entries = []
    for second, data in enumerate(rollouts):
        moment = datetime.fromtimestamp(1_700_000_000 + second, UTC)
        envelope = Envelope(data.rollout, data.TYPE, data.VERSION, data.key(), moment)
        entries.append(encode(envelope, data, now_ms(), owner=owner).entry)
    app.append(entries)
    app.settle()


def results(kintsugi: Kintsugi) -> list[dict[str, Any]]:
    """The data of every RepairSearched in the log."""
    lines = kintsugi("log", "cat", "learning", "--json").lines
    return [line["data"] for line in lines if line["type"] == "RepairSearched"]


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(load(home=home)) as opened:
        yield opened


def test_a_command_repairs_everything_and_the_round_counts_what_is_proven(
    app: App, kintsugi: Kintsugi
) -> None:
    record(app, looping(), failure(TWO, [], rollout="two"))
    done = kintsugi("diagnose", "--repair", "--json")
    assert (done.code, done.json["repairs"], done.json["patterns"]) == (0, {"repaired": 2}, 2)
    patterns = {line["pattern"] for line in kintsugi("patterns", "--json").json}
    assert patterns == {
        "incorrect_arguments|return_item", "missing_write_action|modify_payment",
    }  # fmt: skip
    shown = kintsugi("rollouts", "show", "loop", "--json").json
    assert (shown["category"], shown["pivot"]) == ("incorrect_arguments", "return_item")
    assert shown["rule"] == "tool_loop|return_item"
    assert shown["categories"][0] == "tool_loop"
    assert shown["repair"]["edits"] == [
        {
            "operation": "arguments", "turn": 3, "call": 1, "tool": "return_item",
            "expected": "return_item", "gold": shown["repair"]["edits"][0]["gold"],
            "arguments": ["payment_id"],
        }
    ]  # fmt: skip
    text = kintsugi("rollouts", "show", "loop").out
    assert "return_item with other payment_id" in text
    assert "tool_loop at return_item" in text
    explained = kintsugi("explain", "loop").out
    assert "by its repair" in explained
    status = kintsugi("status", "--json").json["repairs"]
    assert status == {"repaired": 2, "state_right": 0, "exhausted": 0, "skipped": 0, "waiting": 0}
    assert kintsugi("rebuild", "--json").json["equal"] is True
    again = kintsugi("diagnose", "--repair", "--json").json
    assert (again["repairs"], len(results(kintsugi))) == ({}, 2)


def test_a_repair_after_the_round_changes_what_is_shown_and_the_rounds_after_it(
    app: App, kintsugi: Kintsugi
) -> None:
    record(app, looping())
    assert kintsugi("diagnose").err == ""
    late = kintsugi("diagnose", "--repair")
    assert (
        "nothing is new since round 0; what was repaired now counts in no closed round" in late.err
    )
    assert kintsugi("diagnose").err.strip() == "nothing is new since round 0"
    (line,) = kintsugi("patterns", "--json").json
    assert line["pattern"] == "tool_loop|return_item"
    assert kintsugi("rollouts", "show", "loop", "--json").json["category"] == "incorrect_arguments"
    record(app, looping("again"))
    kintsugi("diagnose", "--repair")
    counts = {one["pattern"]: one["failures"] for one in kintsugi("patterns", "--json").json}
    assert counts == {"incorrect_arguments|return_item": 1, "tool_loop|return_item": 0}
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_the_role_repairs_what_no_round_has_counted_first_and_then_the_newest(
    app: App, kintsugi: Kintsugi
) -> None:
    record(app, looping("old"), looping("older than new"))
    kintsugi("diagnose")
    record(app, failure(TWO, [], rollout="first"), failure(PAYMENT, [], rollout="second"))
    queue = RepairQueue(app)
    order: list[str] = []
    for _ in range(4):
        assert queue.advance(limit=1).searches == 1
        order.append(results(kintsugi)[-1]["rollout"])
    assert order == ["second", "first", "older than new", "old"]
    assert queue.advance().searches == 0


def test_what_a_round_has_counted_is_looked_for_once_in_a_minute(
    app: App, kintsugi: Kintsugi
) -> None:
    moments = [0.0]
    queue = RepairQueue(app, clock=lambda: moments[0])
    assert queue.advance().searches == 0
    record(app, looping("counted"))
    kintsugi("diagnose")
    assert queue.advance().searches == 0
    record(app, looping("new"))
    assert queue.advance().searches == 1
    moments[0] = BACKLOG_SECONDS
    assert queue.advance().searches == 1
    assert [line["rollout"] for line in results(kintsugi)] == ["new", "counted"]


def test_looking_for_nothing_goes_through_no_table(app: App) -> None:
    """Of the failures that were repaired those of closed rounds are not read with every round."""
    record(app, looping("a"))
    RepairQueue(app).drain()
    with app.reading() as connection:
        plans = plans_of(connection)
        assert read_repair_candidates(connection, REPAIR_RULES, 8, uncounted=True) == []
    steps = [step for plan in plans for step in plan.split("; ")]
    assert not [step for step in steps if step.startswith("SCAN rollouts")], steps


def test_a_round_of_the_role_repairs_and_reports_it(app: App, kintsugi: Kintsugi) -> None:
    record(app, looping())
    assert kintsugi("work", "--once").code == 0
    assert [line["category"] for line in results(kintsugi)] == ["incorrect_arguments"]


def test_rollouts_of_training_and_passed_ones_are_left_alone(app: App) -> None:
    record(app, failure(TWO, [], rollout="train", purpose="train"))
    assert RepairQueue(app).drain().outcomes == {}


CUT_SHORT = """
import os, signal
from daemon.config.settings import load
from daemon.core.app import App
from daemon.repair.background import RepairQueue

with App(load()) as app:
    append = app.append
    def stop(entries):
        if {appended}:
            append(entries)
        os.kill(os.getpid(), signal.SIGKILL)
    app.append = stop
    RepairQueue(app).advance()
"""


@pytest.mark.parametrize("appended", [False, True], ids=["searched", "appended"])
def test_a_search_that_was_killed_leaves_one_result(
    home: Path, kintsugi: Kintsugi, appended: bool
) -> None:
    with App(load(home=home)) as app:
        record(app, looping())
    done = subprocess.run(
        [sys.executable, "-c", CUT_SHORT.format(appended=appended)],
        cwd=Path(__file__).parents[3], env=environment(KINTSUGI_HOME=str(home)), check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert kintsugi("diagnose", "--repair").code == 0
    assert len(results(kintsugi)) == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_two_workers_at_once_leave_one_row_and_one_id(app: App, kintsugi: Kintsugi) -> None:
    record(app, looping())
    one, other = RepairQueue(app), RepairQueue(app)
    append = app.append

    def append_after_the_other(entries: Any) -> None:
        app.append = append  # type: ignore[method-assign]
        other.advance()
        append(entries)

    app.append = append_after_the_other  # type: ignore[method-assign]
    one.advance()
    assert len(results(kintsugi)) == 2
    ids = {line["id"] for line in kintsugi("log", "cat", "learning", "--json").lines}
    assert len(ids) == 1
    with app.reading() as connection:
        assert count_repairs(connection, REPAIR_RULES).repaired == 1


def sealed(app: App, person: str) -> str:
    """A person's rollout, as it is written when a session is closed; the id of the key."""
    key = app.keys.of(person)
    data = looping(f"of {person}")
    record(app, data.model_copy(update={"labels": label_rollout(data).labels}), owner=key)
    return key.id


def test_a_sealed_rollout_is_repaired_while_its_key_exists_and_quotes_nothing(
    app: App, kintsugi: Kintsugi
) -> None:
    sealed(app, "rosa")
    assert RepairQueue(app).advance().outcomes == {"repaired": 1}
    ((name, arguments),) = gold(LOOP)
    stored = json.dumps(results(kintsugi))
    assert name in stored
    assert not [value for value in (*arguments.values(), "P0") if f'"{value}"' in stored]
    assert kintsugi("erase", "--person", "rosa", "--yes").code == 0
    assert kintsugi("rollouts", "show", "of rosa", "--json").json["category"] == (
        "incorrect_arguments"
    )
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_an_erased_rollout_is_skipped_once(app: App, kintsugi: Kintsugi) -> None:
    sealed(app, "rosa")
    assert kintsugi("erase", "--person", "rosa", "--yes").code == 0
    queue = RepairQueue(app)
    assert queue.advance().outcomes == {"skipped": 1}
    assert queue.advance().outcomes == {}
    (result,) = results(kintsugi)
    assert "erased" in result["reason"]
    # A person who asks again is told the same, and nothing is written twice.
    assert kintsugi("diagnose", "--repair", "--json").json["repairs"] == {"skipped": 1}
    assert len(results(kintsugi)) == 1


def test_a_task_that_is_not_known_here_is_skipped_and_counted(app: App, kintsugi: Kintsugi) -> None:
    data = looping()
    assert data.task is not None
    unknown = data.task.model_copy(update={"id": "elsewhere/1", "environment": "elsewhere"})
    record(app, data.model_copy(update={"task": unknown}))
    assert RepairQueue(app).advance().outcomes == {"skipped": 1}
    assert "elsewhere/1" in results(kintsugi)[0]["reason"]
    assert kintsugi("status", "--json").json["repairs"]["skipped"] == 1
    assert "could not be replayed" in kintsugi("rollouts", "show", "loop").out


BROKEN = """
from tests.envs.mini import Mini

class Fragile(Mini):
    name = "fragile"

    def pristine(self, task):
        {trouble}
        return super().pristine(task)
"""


def fragile(folder: Path, trouble: str) -> Path:
    """The file of an environment whose states cannot be made."""
    folder.mkdir(exist_ok=True)
    file = folder / "fragile.py"
    file.write_text(BROKEN.format(trouble=trouble))
    return file


@pytest.mark.parametrize(
    ("trouble", "word"),
    [("raise ValueError('the secret O99')", "ValueError"), ("raise SystemExit(3)", "ends")],
)
def test_code_that_raises_is_an_event_with_the_reason_and_ends_nothing(
    home: Path, kintsugi: Kintsugi, tmp_path: Path, trouble: str, word: str
) -> None:
    file = fragile(tmp_path / "own", "pass")
    own = open_place(str(file))
    task = own.task("fragile/cancel/0")
    bad = failure(task, [], rollout="bad", login=False, environment=own)
    fragile(tmp_path / "own", trouble)
    settings = Settings(home=home, environments=Environments(paths=[file.parent]))
    with App(settings) as app:
        record(app, looping(), bad)
        assert RepairQueue(app).advance().outcomes == {"skipped": 1, "repaired": 1}
        reasons = {line["rollout"]: line["reason"] for line in results(kintsugi)}
        assert word in reasons["bad"]
        assert "O99" not in reasons["bad"], "the text of an error may quote a rollout"
        # Once it is mended a person asks for it again.
        fragile(tmp_path / "own", "pass")
        assert RepairQueue(app).advance().outcomes == {}
        assert RepairQueue(app).drain().outcomes == {"repaired": 1}


def test_an_environment_whose_folder_is_away_is_waited_for(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    folder = fragile(tmp_path / "own", "pass").parent
    with App(Settings(home=home, environments=Environments(paths=[folder]))) as app:
        record(app, looping())
        moments = [0.0]
        queue = RepairQueue(app, clock=lambda: moments[0])
        shutil.move(folder, tmp_path / "away")
        report = queue.advance()
        assert (report.outcomes, len(report.troubles)) == ({}, 1)
        assert queue.advance().troubles == [], "it is not asked for in every round"
        shutil.move(tmp_path / "away", folder)
        assert queue.advance().outcomes == {}
        moments[0] = AWAY_SECONDS + 1
        assert queue.advance().outcomes == {"repaired": 1}
        assert len(results(kintsugi)) == 1


@pytest.mark.benchmarks
def test_real_failures_are_repaired_after_an_import(
    home: Path, kintsugi: Kintsugi, benchmarks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_BENCHMARKS", str(benchmarks))
    file = benchmarks / "tau2_simulations" / "gpt-4.1_retail_1trial.json"
    assert kintsugi("import", file, "--base", "gpt-4.1").code == 0
    assert kintsugi("diagnose", "--repair", "--json").json["repairs"] == {"repaired": 6}
    assert {len(line["edits"]) for line in results(kintsugi)} == {1}
    assert kintsugi("rebuild", "--json").json["equal"] is True
