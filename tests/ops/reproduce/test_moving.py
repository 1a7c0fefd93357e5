"""A run whose endpoint came back at another address goes on."""

from pathlib import Path

import pytest

from daemon.solver.job import JOURNAL
from daemon.solver.journal import BadJournal, Journal
from daemon.solver.spec import digest, read_spec
from events.jobs import AdapterUser, EndpointSource, EndpointUser
from ops.reproduce.__main__ import main
from ops.reproduce.areal_sea.commands import build_evaluation
from ops.reproduce.areal_sea.jobs import plan_reinforced
from ops.reproduce.areal_sea.settings import Reproduction
from ops.reproduce.commands import Folder, write_model
from ops.reproduce.jobs import move_jobs
from tests.daemon.solver.tiny import groups
from tests.ops.reproduce.test_areal_sea import NOWHERE, options, planned

ELSEWHERE = "http://127.0.0.1:19/v1"
"""A URL at which nothing listens either."""


def read_plan(folder: Folder) -> Reproduction:
    return Reproduction.model_validate_json(folder.settings.read_bytes())


def test_the_address_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plan = planned(tmp_path / "first")
    assert main([*options(tmp_path / "second", ELSEWHERE), "--only", "check"]) == 4
    other = read_plan(Folder(tmp_path / "second"))
    assert other.base_url == ELSEWHERE
    assert other.digest == plan.digest
    assert other.model_copy(update={"seed": 1}).digest != plan.digest


def test_a_run_goes_on_at_another_address_and_says_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, folder = planned(tmp_path), Folder(tmp_path)
    folder.write("evaluate-base-shop", {"pass_hat": {}})
    assert main([*options(tmp_path, ELSEWHERE), "--plan"]) == 0
    assert read_plan(folder) == plan
    assert f"--base-url {ELSEWHERE} --moved-from {NOWHERE}" in capsys.readouterr().out
    assert main([*options(tmp_path, ELSEWHERE), "--only", "check"]) == 4
    assert ELSEWHERE in capsys.readouterr().err
    moved = read_plan(folder)
    assert (moved.base_url, [at.base_url for at in moved.before]) == (ELSEWHERE, [NOWHERE])
    assert moved.name_policy("sft", "shop") == plan.name_policy("sft", "shop")
    assert main(["areal-sea", "--out", str(tmp_path), "--only", "evaluate-base-shop"]) == 0
    assert main([*options(tmp_path), "--only", "check"]) == 4
    assert [at.base_url for at in read_plan(folder).before] == [NOWHERE, ELSEWHERE]
    assert main([*options(tmp_path), "--seed", "1"]) == 2
    assert "other options (seed)" in capsys.readouterr().err


def test_a_stages_result_says_where_the_endpoints_were(tmp_path: Path) -> None:
    planned(tmp_path)
    assert main(["areal-sea", "--out", str(tmp_path), "--only", "write-tasks-shop"]) == 0
    assert Folder(tmp_path).read("write-tasks-shop")["addresses"]["base_url"] == NOWHERE


def test_evaluations_name_the_address_that_they_were_begun_at(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--user-model", "large")
    moved = plan.move(plan.addresses.model_copy(update={"base_url": ELSEWHERE}))
    command = build_evaluation(moved, Folder(tmp_path), "sft", "shop")
    assert command[command.index("--moved-from") + 1] == NOWHERE
    assert command[command.index("--user-moved-from") + 1] == NOWHERE
    assert "--moved-from" not in build_evaluation(plan, Folder(tmp_path), "sft", "shop")


def test_jobs_that_have_not_ended_go_on_with_their_rollouts(tmp_path: Path) -> None:
    plan, folder = planned(tmp_path), Folder(tmp_path)
    user = AdapterUser(adapter="user", folder="/nowhere", sha256="0" * 64)
    accepted = [f"shop/cancel/{number}" for number in range(8)]
    specs = plan_reinforced(plan, folder, "shop", accepted, user)
    for arm, spec in specs.items():
        write_model(folder.spec(arm), spec)
    begun = folder.job("rl_base_user") / JOURNAL
    journal = Journal(begun, digest(specs["rl_base_user"]))
    journal.append(tuple(groups(0)))
    journal.close()
    folder.adapter("rl_tuned_user").mkdir(parents=True)
    moved = plan.move(plan.addresses.model_copy(update={"base_url": ELSEWHERE}))
    for _ in range(2):
        move_jobs(moved, folder)
        spec = read_spec(folder.spec("rl_base_user"))
        source, player = spec.sampler.source, spec.pools[0].user
        assert isinstance(source, EndpointSource)
        assert isinstance(player, EndpointUser)
        assert (source.url, player.url) == (ELSEWHERE, ELSEWHERE)
        again = Journal(begun, digest(spec))
        assert again.batches == journal.batches
        again.close()
    with pytest.raises(BadJournal, match="another spec"):
        Journal(begun, digest(specs["rl_base_user"]))
    assert read_spec(folder.spec("rl_tuned_user")) == specs["rl_tuned_user"]
