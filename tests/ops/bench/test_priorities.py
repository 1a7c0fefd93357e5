"""The bench of the priorities: it finds a planted weakness, a broken task and a fix."""

import json

import pytest

from ops.bench.priorities import Scenario, main, measure


@pytest.mark.parametrize("ids", ["generated", "loaded", "none"])
def test_the_weakness_is_first_where_tasks_never_repeat(ids: str) -> None:
    assert measure(Scenario(ids=ids, rounds=3), range(2))["first"]["value"] == 1


def test_broken_tasks_are_below_the_weakness_once_they_are_known() -> None:
    row = measure(Scenario(repeat=True, broken=True, size=512, rounds=3), range(2))
    assert row["broken_below"]["value"] == row["first"]["value"] == 1


def test_a_large_healthy_kind_with_as_many_failures_is_below_the_weakness() -> None:
    row = measure(Scenario(large=True, share=0.06, size=256, rounds=3), range(2))
    assert row["first"]["value"] == 1


def test_a_fix_is_followed_within_two_rounds() -> None:
    row = measure(Scenario(fix=True, rounds=6), range(2))
    assert row["rounds_to_fall"]["worst"] <= 2


def test_the_command_prints_one_document_and_names_an_unknown_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["--seeds", "1", "--rows", "generated, never repeating, rounds of 32", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert list(document["rows"]) == ["generated, never repeating, rounds of 32"]
    with pytest.raises(SystemExit):
        main(["--rows", "no such row"])
    assert "no such row" in capsys.readouterr().err
