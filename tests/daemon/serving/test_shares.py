"""Which shares of the sessions a route takes, and how others are refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from daemon.config.settings import Canary
from producers.gateway.routing.routes import SMALLEST_SHARE
from tests.daemon.commands import run_here


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (["ok1=0.5", "base=0.5000001"], "the shares sum to 1.0000001, not to 1"),
        (["ok1=0.3333", "base=0.6666"], "the shares sum to 0.9999, not to 1"),
        (["ok1=1e-320", "base=1"], "'1e-320' is no share"),
        (["ok1=1e-9", "base=1"], "give a number from 0.000001"),
        (["ok1=0.99999999", "base=0.00000001"], "'0.99999999' is no share"),
        (["ok1=nan", "base=1"], "'nan' is no share"),
        (["ok1=inf"], "'inf' is no share"),
        (["ok1=-0.5", "base=1.5"], "'-0.5' is no share"),
        (["ok1=0", "base=1"], "'0' is no share"),
        (["ok1=0.5,", "base=0.5"], "'0.5,' is no share"),
        (["ok1=", "base=1"], "'' is no share"),
        (["=1"], "'=1' is not ADAPTER=SHARE"),
        (["ok1"], "'ok1' is not ADAPTER=SHARE"),
        (["ok1=0.5", "ok1=0.5"], "ok1 has two shares"),
        (["base=0.5", "base=0.5"], "base has two shares"),
    ],
)
def test_shares_that_cannot_be_meant_are_refused_with_the_reason(
    parts: list[str], words: str, tmp_path: Path
) -> None:
    refused = run_here(["route", "set", "agent", *parts], {"KINTSUGI_HOME": str(tmp_path)})
    assert refused.code == 2
    assert words in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("share", ["1e-320", "nan", "0", "1.5", "half", "0.99999999"])
def test_a_canarys_share_is_one_that_sessions_can_have(share: str, tmp_path: Path) -> None:
    words = ["adapters", "promote", "ok1", "--share", share]
    refused = run_here(words, {"KINTSUGI_HOME": str(tmp_path)})
    assert refused.code == 2
    assert f"{share!r} is no share of the sessions" in refused.err


@given(share=st.floats(0, SMALLEST_SHARE, exclude_min=True, exclude_max=True))
def test_settings_have_no_share_that_gets_no_session(share: float) -> None:
    for values in ({"shares": (share,)}, {"holdout": share}):
        with pytest.raises(ValidationError, match=r"0\.000001"):
            Canary(**values)
