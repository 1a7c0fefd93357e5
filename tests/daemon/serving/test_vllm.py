"""A real vLLM as a replica: what it takes, what it refuses, and what its precision leaves."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import CONFIG, WEIGHTS, BadAdapter, verify
from daemon.adapters.fingerprint import COARSEST, EXACT, BaseMixup, NotProven, OtherBase, distance
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.replica import LoadRefusal, NameConflict, NoAnswer, Replica
from ops.isolated import InstallError
from ops.random_adapters import Adapters
from ops.vllm.server import Vllm
from tests.conftest import missing
from tests.daemon.adapters.test_compatibility import of_nothing, truncated
from tests.daemon.engine.heads import save_head
from tests.daemon.serving.planted import foreign_modules, load_adapter, no_numbers
from tests.daemon.serving.test_proof import busy

SLOTS = 4
"""--max-loras of ops/vllm."""

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture
def exact(vllm: Vllm) -> Iterator[Replica]:
    """The vLLM in float32."""
    with Replica(vllm.url) as replica:
        yield replica
        for name in replica.list_models().adapters:
            replica.unload(name)


@pytest.fixture
def copy(adapters: Adapters, tmp_path: Path) -> Path:
    """An adapter to be spoiled, as any trainer leaves one."""
    return Path(shutil.copytree(adapters["v1-bare"], tmp_path / "copy"))


def narrow(folder: Path) -> None:
    """One factor takes a column less than the layer has; the rest of the slot stays as it was."""
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, folder / WEIGHTS)


def high(folder: Path) -> None:
    """Of a rank above --max-lora-rank."""
    tensors = {
        name: torch.cat([tensor] * 4, dim=0 if "lora_A" in name else 1)
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    save_file(tensors, folder / WEIGHTS)
    config = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(config.replace('"r": 8', '"r": 32'))


Spoil = Callable[[Path], object]
REFUSED: dict[str, tuple[Spoil, str]] = {
    "a truncated file": (truncated, "see its log"),
    "no files": (shutil.rmtree, "share it with the engine, or set path_map"),
    "layers of other names": (of_nothing, "expected target modules"),
    "a rank above the limit": (high, "max_lora_rank 16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses_is_not_registered_and_the_engine_lives(
    exact: Replica, adapters: Adapters, copy: Path, name: str
) -> None:
    spoil, why = REFUSED[name]
    spoil(copy)
    with pytest.raises(LoadRefusal, match=why):
        exact.load("bad", copy)
    with pytest.raises(BadAdapter):
        fit(copy, CHECKPOINT, max_rank=16)
    assert exact.list_models().adapters == {}
    expected = adapters.read_fingerprint("v1")
    assert exact.prove(load_adapter(exact, adapters["v1"]), expected, EXACT).distance < EXACT


LOADED: dict[str, tuple[Spoil, str, str]] = {
    "layers that are not there": (foreign_modules, "the base has no such layer", "is its base"),
    "another width": (narrow, "belongs to another base", "from what the adapter computes"),
}


@pytest.mark.parametrize("name", LOADED)
def test_what_it_loads_and_cannot_serve_is_refused_before_and_found_after(
    exact: Replica, adapters: Adapters, copy: Path, name: str
) -> None:
    spoil, before, after = LOADED[name]
    spoil(copy)
    with pytest.raises(BadAdapter, match=before):
        fit(copy, CHECKPOINT)
    # Over an adapter with other weights, so that what is left of it in a slot is not the same.
    load_adapter(exact, adapters["strong"])
    with pytest.raises(NotProven, match=after):
        exact.prove(load_adapter(exact, copy), adapters.read_fingerprint("v1"), EXACT)


def test_a_name_never_leads_to_other_files(exact: Replica, adapters: Adapters) -> None:
    name = load_adapter(exact, adapters["v1"])
    exact.load(name, adapters["v1"])
    with pytest.raises(NameConflict, match="an adapter is never replaced"):
        exact.load(name, adapters["v2"])
    with pytest.raises(NameConflict, match="calls its base reference"):
        exact.load("reference", adapters["v2"])
    assert exact.list_models().adapters == {name: str(adapters["v1"])}
    exact.unload(name)
    exact.unload(name)
    assert exact.list_models().adapters == {}


def test_it_is_fit_to_be_used_and_tells_its_slots(exact: Replica, adapters: Adapters) -> None:
    exact.examine()
    exact.prove(load_adapter(exact, adapters["v1"]), adapters.read_fingerprint("v1"), EXACT)
    assert exact.slots() == 4


def test_a_base_that_answers_with_an_adapter_is_noticed(exact: Replica, adapters: Adapters) -> None:
    """vLLM 0.32 on a CPU gives base requests the adapter of the last slot while any adapter is
    answered, also one that was unloaded. Where this fails, vLLM was mended: take ops/vllm/mend, and
    what is said of it in `fingerprint` and in the documentation, away."""
    for name in [load_adapter(exact, adapters["strong"]) for _ in range(SLOTS)]:
        exact.unload(name)
    expected = adapters.read_fingerprint("v1")
    name = load_adapter(exact, adapters["v1"])
    with pytest.raises(BaseMixup, match=r"0\.\d+ nats from what it computes .* ops/vllm/mend"):
        exact.prove_base(name, expected, EXACT)
    with busy(exact.url, 4 * [name]), pytest.raises(OtherBase, match="while no adapter answers"):
        exact.measure_tolerance(expected)
    assert exact.measure_tolerance(expected) == EXACT


@pytest.fixture(scope="module")
def coarse() -> Iterator[Replica]:
    """One that computes in bfloat16, as most do; mended, so that no adapter reaches its base."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-vllm-") as folder:
        flags = ("--max-model-len=512", "--dtype=bfloat16")
        server = Vllm(CHECKPOINT, "reference", Path(folder), flags=flags, mended=True)
        try:
            server.start()
        except InstallError as error:
            missing(str(error))
        try:
            with Replica(server.url) as replica:
                yield replica
        finally:
            server.stop()


@pytest.mark.long
def test_in_bfloat16_the_tolerance_is_what_its_rounding_costs(
    coarse: Replica, adapters: Adapters
) -> None:
    tolerance = coarse.measure_tolerance(adapters.read_fingerprint("v1"))
    assert 20 * EXACT < tolerance < 3 * COARSEST
    strong = adapters.read_fingerprint("strong")
    proof = coarse.prove(load_adapter(coarse, adapters["strong"]), strong, tolerance)
    assert proof.distance < tolerance / 2
    assert proof.from_base > 2 * tolerance
    with pytest.raises(NotProven, match="nearest is its base"):
        coarse.prove("reference", strong, tolerance)
    with pytest.raises(OtherBase):
        coarse.measure_tolerance(adapters.read_fingerprint("strange"))


@pytest.mark.long
def test_what_rounding_hides_is_not_proven(coarse: Replica, adapters: Adapters) -> None:
    """One that stands nearer to its base, and two nearer to each other, than bfloat16 can tell."""
    expected = adapters.read_fingerprint("faint")
    tolerance = coarse.measure_tolerance(expected)
    with pytest.raises(NotProven, match=r"cannot be told from its base: .* higher precision"):
        coarse.prove(load_adapter(coarse, adapters["faint"]), expected, tolerance)
    name, rivals = load_adapter(coarse, adapters["v2"]), {"v1": adapters.read_fingerprint("v1")}
    with pytest.raises(NotProven, match="cannot be told from v1"):
        coarse.prove(name, adapters.read_fingerprint("v2"), tolerance, rivals)


@pytest.mark.long
def test_a_mended_one_answers_as_its_base_beside_adapters_in_all_slots(
    coarse: Replica, adapters: Adapters
) -> None:
    expected = adapters.read_fingerprint("strong")
    tolerance = coarse.measure_tolerance(expected)
    for name in [load_adapter(coarse, adapters["strong"]) for _ in range(SLOTS)]:
        assert coarse.prove(name, expected, tolerance).distance < tolerance
    assert coarse.prove_base(name, expected, tolerance) < tolerance
    assert distance(expected.base, expected.adapter) > 3 * tolerance, "else it would not be seen"


def test_it_loads_what_is_no_number_and_then_refuses_to_answer(
    coarse: Replica, adapters: Adapters, copy: Path
) -> None:
    """The last test of this engine: what it computed stays in the cache and is met by others."""
    no_numbers(copy)
    with pytest.raises(BadAdapter, match="is not finite"):
        fit(copy, CHECKPOINT)
    coarse.load("nan", copy)
    with pytest.raises(NoAnswer, match="unload it, and start the engine again"):
        coarse.prove("nan", adapters.read_fingerprint("v1"), EXACT)
    with pytest.raises(NoAnswer, match="refuses to answer as reference"):
        coarse.measure_tolerance(adapters.read_fingerprint("v1"))


def test_a_router_is_asked_as_the_embedded_engine_is(exact: Replica, replica: Replica) -> None:
    labels = ("A", "B", "C")
    tokens = [exact.tokenize("reference", label) for label in labels]
    assert tokens == [replica.tokenize("reference", label) for label in labels]
    ids = [token for (token,) in tokens]
    prompt = [
        {"role": "system", "content": "Reply with A, B or C."},
        {"role": "user", "content": "?"},
    ]
    theirs, ours = (engine.score_labels("reference", prompt, ids) for engine in (exact, replica))
    assert theirs == pytest.approx(ours, abs=1e-3)


def test_a_head_is_served_as_the_embedded_engine_does(
    exact: Replica, replica: Replica, adapters: Adapters, tmp_path: Path
) -> None:
    """Also of a base whose head is its embedding."""
    tokens = [token for label in ("A", "B") for token in exact.tokenize("reference", label)]
    folder = save_head(CHECKPOINT, tmp_path / "head", tokens)
    assert fit(folder, CHECKPOINT, 16).rank == len(tokens)
    expected = verify(folder).fingerprint
    assert expected is not None
    prompt = [{"role": "user", "content": "Where is my order?"}]
    scores = {}
    for name, engine in (("theirs", exact), ("ours", replica)):
        tolerance = engine.measure_tolerance(expected)
        engine.load("head", folder)
        engine.prove("head", expected, tolerance, {"v1": adapters.read_fingerprint("v1")})
        scores[name] = engine.score_labels("head", prompt, tokens)
        engine.unload("head")
    assert scores["theirs"] == pytest.approx(scores["ours"], abs=1e-3)
