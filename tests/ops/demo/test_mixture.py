"""Mixtures of the demo's customers: which files are taken, and what is said of the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.shop.kinds import PLAIN
from ops.demo import mixture
from ops.demo.__main__ import main
from ops.demo.mixture import BadMixture, read_mixture

WEAK = Path(mixture.__file__).with_name("weak.json")
WEAK_KINDS = ("two_writes", "fallback", "question", "changed_mind")


def write(folder: Path, content: Any) -> Path:
    file = folder / "mix.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_four_weak_kinds_are_a_third_of_the_traffic_and_plain_ones_share_the_rest() -> None:
    shares = read_mixture(WEAK)
    assert set(shares) == {*PLAIN, *WEAK_KINDS}
    assert sum(shares[kind] for kind in WEAK_KINDS) == pytest.approx(0.34)
    assert {shares[kind] for kind in PLAIN} == {0.11}


def test_a_mixture_keeps_the_order_of_its_file_and_rounded_shares_are_taken(
    tmp_path: Path,
) -> None:
    third = 0.333333
    shares = {"question": third, "cancel": third, "address": third}
    assert list(read_mixture(write(tmp_path, shares)).items()) == list(shares.items())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"cancel": 0.5, "jokes": 0.5}, "'jokes'.*it has cancel"),
        ({"cancel": 1.2, "return": -0.2}, "return the share -0.2; give it a number above 0"),
        ({"cancel": 1, "return": 0}, "return the share 0;"),
        ({"cancel": True}, "share True"),
        ({"cancel": "1"}, "share '1'"),
        ({"cancel": float("nan")}, "share nan"),
        ({"cancel": 0.5, "return": 0.4}, "sum to 0.9; change them so that they sum to 1"),
        ({}, "no JSON object with a share"),
        ([0.5, 0.5], "no JSON object with a share"),
        ('{"cancel": 0.5, "cancel": 0.5}', "'cancel' stands in it twice"),
        ("cancel: 1", "write a JSON object"),
        (b"\xff\xfe".decode("latin-1"), "write a JSON object"),
        ('{"cancel": 1' + 400 * "0" + "}", "cancel the share 10*; give it a number"),
        ({"cancel": 1e308, "return": 1e308}, "sum to inf"),
        (100_000 * "[", "write a JSON object"),
    ],
)
def test_another_file_is_refused_with_the_value_and_the_remedy(
    tmp_path: Path, content: Any, named: str
) -> None:
    with pytest.raises(BadMixture, match=named):
        read_mixture(write(tmp_path, content))


def test_a_file_that_is_not_there_is_wrong_usage_and_makes_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    command = ["demo", "--home", str(home), "--mix", str(tmp_path / "none.json")]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "none.json cannot be read (No such file or directory)" in capsys.readouterr().err
    assert not home.exists()
