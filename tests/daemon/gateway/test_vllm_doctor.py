"""`kintsugi doctor --upstream` over real vLLMs: each flag that is wrong or missing is named."""

from pathlib import Path

import pytest

from tests.daemon.conftest import Kintsugi
from tests.daemon.gateway.conftest import fronting
from tests.daemon.gateway.test_doctor import EVERYWHERE, examined, failed, served

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

OF_VLLM = ["max-lora-rank", "max-loras", "max-cpu-loras", "tool-call-parser", "commands"]


def test_a_vllm_with_the_flags_that_are_needed_is_as_it_must_be(
    kintsugi: Kintsugi, vllm: str
) -> None:
    code, found = examined(kintsugi, vllm)
    assert (code, failed(found)) == (0, set()), found
    assert list(found) == [*EVERYWHERE, *OF_VLLM]
    shown = {"max-lora-rank": "16,", "max-loras": "4,", "tool-call-parser": "is read as one"}
    for name, words in shown.items():
        assert words in found[name][1]
    assert "by a guided chat" in found["tool-strict-level"][1]
    assert served(vllm) == ["tiny"], "nothing stays loaded"


@pytest.mark.long
def test_each_wrong_flag_of_vllm_fails_its_own_check(kintsugi: Kintsugi, raw_vllm: str) -> None:
    code, found = examined(kintsugi, raw_vllm)
    assert code == 1
    wrong = {
        "logprobs-mode": "--logprobs-mode processed_logprobs",
        "max-lora-rank": "8, by an adapter that was refused; --max-lora-rank 16",
        "max-loras": "--max-loras 4",
        "tool-call-parser": "--tool-call-parser hermes",
    }
    assert failed(found) == wrong.keys(), found
    for name, remedy in wrong.items():
        assert remedy in found[name][1]


@pytest.mark.long
def test_a_vllm_that_makes_a_grammar_of_every_tool_fails_and_is_not_believed(
    kintsugi: Kintsugi, strict_vllm: str, tmp_path: Path
) -> None:
    code, found = examined(kintsugi, strict_vllm)
    assert (code, failed(found)) == (1, {"tool-strict-level"}), found
    assert "start vLLM without --tool-strict-level" in found["tool-strict-level"][1]
    with fronting(tmp_path, [strict_vllm], proven=False) as front:
        assert front.wait_for(lambda: "--tool-strict-level" in front.unproven(), 300)


@pytest.mark.long
def test_each_missing_flag_of_vllm_fails_its_own_check(kintsugi: Kintsugi, bare_vllm: str) -> None:
    code, found = examined(kintsugi, bare_vllm)
    assert code == 1
    missed = {
        "generation-config": "--generation-config vllm",
        "enable-lora": "--enable-lora",
        "enable-auto-tool-choice": "--enable-auto-tool-choice",
    }
    assert failed(found) == missed.keys(), found
    for name, remedy in missed.items():
        assert remedy in found[name][1]
    assert "max-loras" not in found, "nothing is said of adapters that cannot be loaded"
