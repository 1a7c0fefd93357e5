"""An engine as a replica: adapters come and go by name, and what is wrong is said."""

import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from starlette.responses import JSONResponse

from daemon.adapters.directory import WEIGHTS
from daemon.adapters.fingerprint import EXACT
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.replica import (
    LoadRefusal,
    NameConflict,
    NoAnswer,
    NoPath,
    NoSuchModel,
    NotUsable,
    PathMap,
    Replica,
    ReplicaDown,
    SeveralProcesses,
)
from ops.random_adapters import Adapters
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.serving.engines import balanced, models, saying, silent


def test_what_is_loaded_is_served_from_its_folder(replica: Replica, adapters: Adapters) -> None:
    replica.examine()
    assert replica.list_models().adapters == {}
    replica.load("a-1", adapters["v1"])
    replica.load("a-2", adapters["v2"])
    found = replica.list_models()
    assert found.base == "reference"
    assert found.adapters == {"a-1": str(adapters["v1"]), "a-2": str(adapters["v2"])}
    replica.unload("a-1")
    assert list(replica.list_models().adapters) == ["a-2"]


def test_the_same_load_and_unload_again_change_nothing(
    replica: Replica, adapters: Adapters, embedded: Live
) -> None:
    replica.load("a-1", adapters["v1"])
    before = embedded.server.adapters.policy("a-1")
    replica.load("a-1", adapters["v1"])
    assert embedded.server.adapters.policy("a-1") is before
    replica.unload("a-1")
    replica.unload("a-1")
    assert replica.list_models().adapters == {}


def test_a_name_never_leads_to_other_files(replica: Replica, adapters: Adapters) -> None:
    replica.load("a-1", adapters["v1"])
    with pytest.raises(NameConflict, match=r"serves a-1 from .*/v1, and it was to be .*/v2"):
        replica.load("a-1", adapters["v2"])
    assert replica.list_models().adapters == {"a-1": str(adapters["v1"])}


def test_the_base_keeps_its_name_and_its_place(replica: Replica, adapters: Adapters) -> None:
    with pytest.raises(NameConflict, match="calls its base reference"):
        replica.load("reference", adapters["v1"])
    with pytest.raises(NoSuchModel, match="reference is the base"):
        replica.unload("reference")


def test_a_refused_adapter_is_refused_with_the_engines_reason(
    replica: Replica, adapters: Adapters, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(adapters["v1-bare"], tmp_path / "nan"))
    tensors = {n: torch.full_like(t, torch.nan) for n, t in load_file(copied / WEIGHTS).items()}
    save_file(tensors, copied / WEIGHTS)
    with pytest.raises(LoadRefusal, match=r"does not load bad from .* is not finite"):
        replica.load("bad", copied)
    assert replica.list_models().adapters == {}


def test_a_folder_that_the_engine_does_not_see_is_a_matter_of_sharing_it(
    replica: Replica, tmp_path: Path
) -> None:
    with pytest.raises(LoadRefusal, match="share it with the engine, or set path_map"):
        replica.load("far", tmp_path / "nowhere")


def test_folders_are_named_as_the_engine_names_them(
    embedded: Live, adapters: Adapters, replica: Replica
) -> None:
    here = Path("/kintsugi/adapters")
    paths = PathMap({here: str(adapters.folder), Path("/kintsugi"): "/nowhere"})
    with Replica(f"{embedded.url}/v1/", paths=paths) as mapped:
        mapped.load("a-1", here / "v1")
    assert replica.list_models().adapters == {"a-1": str(adapters["v1"])}


def test_a_folder_that_no_prefix_fits_has_no_name_there() -> None:
    paths = PathMap({Path("/kintsugi"): "/mnt"})
    assert paths.there(Path("/kintsugi/a/b")) == "/mnt/a/b"
    with pytest.raises(NoPath, match=r"/kintsugi2/a is below none .*\(/kintsugi\)"):
        paths.there(Path("/kintsugi2/a"))
    with pytest.raises(NoPath, match="not absolute"):
        PathMap().there(Path("a"))


def test_a_model_that_is_not_there_says_nothing(replica: Replica, adapters: Adapters) -> None:
    with pytest.raises(NoSuchModel, match="serves no a-9"):
        replica.score("a-9", adapters.read_fingerprint("v1").prompts)


def test_its_base_is_itself_while_an_adapter_answers(replica: Replica, adapters: Adapters) -> None:
    expected = adapters.read_fingerprint("strong")
    replica.load("a-1", adapters["strong"])
    assert replica.prove_base("a-1", expected, EXACT) < EXACT / 20
    with pytest.raises(NoSuchModel, match="serves no a-9"):
        replica.prove_base("a-9", expected, EXACT)


def test_the_embedded_engine_does_not_tell_its_slots(replica: Replica) -> None:
    assert replica.slots() is None


@pytest.fixture
def twin() -> Iterator[Live]:
    policy = Policy.load(CHECKPOINT, "reference")
    with listening(policy, Chat(CHECKPOINT), slots=2) as live:
        yield live


def test_several_engines_behind_one_address_are_found_by_a_load(
    embedded: Live, replica: Replica, twin: Live, adapters: Adapters
) -> None:
    with balanced([embedded.url, twin.url]) as url, Replica(f"{url}/v1") as both:
        both.examine()
        with pytest.raises(SeveralProcesses, match="name each by an address of its own"):
            both.load("a-1", adapters["v1"])
        with pytest.raises(SeveralProcesses, match="are told different models"):
            both.examine()


def test_several_engines_are_found_by_when_they_began() -> None:
    said = {"/v1/models": models("vllm", "base"), "/version": {"version": "0.32.0"}}
    starts = ("process_start_time_seconds 1.5\n", "process_start_time_seconds 2.5\n")
    first, second = ({**said, "/metrics": start} for start in starts)
    with saying(first) as one, saying(second) as other, balanced([one, other]) as url:
        with Replica(f"{one}/v1") as alone:
            alone.examine()
        with Replica(f"{url}/v1") as both, pytest.raises(SeveralProcesses, match="2 processes"):
            both.examine()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"/v1/models": models("openai", "gpt")}, "is an engine of 'openai'"),
        (
            {"/v1/models": models("vllm", "base"), "/version": {"version": "0.24.0"}},
            r"vLLM 0\.24\.0, which may answer requests with another adapter.*install 0\.32\.0",
        ),
        ({"/v1/models": models("vllm", "base")}, "vLLM None"),
        ({"/v1/models": {"data": []}}, "gives no list of models"),
        ({"/v1/models": ["base"]}, "is it an engine"),
    ],
)
def test_an_engine_that_adapters_cannot_be_trusted_to_is_not_used(
    said: dict[str, object], why: str
) -> None:
    with (
        saying(said) as url,
        Replica(f"{url}/v1") as replica,
        pytest.raises(NotUsable, match=why),
    ):
        replica.examine()


def test_an_engine_without_adapters_says_how_to_start_it(tmp_path: Path) -> None:
    said = {"/v1/models": models("vllm", "base"), "/health": {}}
    with (
        saying(said) as url,
        Replica(f"{url}/v1") as replica,
        pytest.raises(LoadRefusal, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    ):
        replica.load("a-1", tmp_path)


def test_an_engine_that_is_gone_is_lost(adapters: Adapters) -> None:
    with silent() as url:
        pass
    with Replica(f"{url}/v1") as replica:
        for ask in (
            replica.examine,
            replica.list_models,
            lambda: replica.load("a-1", adapters["v1"]),
            lambda: replica.unload("a-1"),
            lambda: replica.score("a-1", adapters.read_fingerprint("v1").prompts),
        ):
            with pytest.raises(ReplicaDown, match="cannot be reached"):
                ask()


def test_an_engine_that_gives_no_answer_is_lost_in_time(adapters: Adapters) -> None:
    with silent() as url, Replica(f"{url}/v1", patience=0.2) as replica:
        with pytest.raises(ReplicaDown, match=r"no answer in 0\.2 s"):
            replica.unload("a-1")
        with pytest.raises(ReplicaDown, match=r"no answer in 0\.2 s"):
            replica.score("a-1", adapters.read_fingerprint("v1").prompts)


@contextmanager
def endless(head: bytes) -> Iterator[tuple[str, list[int]]]:
    """Whatever it is asked, it answers this head and then no end; its URL, and bytes it sent."""
    sent: list[int] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + head + b"\r\n")
                while sum(sent) < 1 << 30:
                    self.wfile.write(b"x" * (1 << 20))
                    sent.append(1 << 20)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", sent
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("head", "why"),
    [(b"content-type: application/json\r\n", "answers more than"),
     (b"content-encoding: gzip\r\n", "encodes its answer as 'gzip'")],
)  # fmt: skip
def test_an_engine_whose_answer_has_no_end_is_left(head: bytes, why: str) -> None:
    with (
        endless(head) as (url, sent),
        Replica(f"{url}/v1") as replica,
        pytest.raises(ReplicaDown, match=why),
    ):
        replica.list_models()
    assert sum(sent) < 64 << 20


def test_an_engine_that_cannot_go_on_is_lost_and_refuses_nothing(adapters: Adapters) -> None:
    policy = Policy.load(CHECKPOINT, "reference")
    with listening(policy, Chat(CHECKPOINT), slots=2) as live:
        live.engine.cache.keys.clear()
        with (
            Replica(f"{live.url}/v1") as replica,
            pytest.raises(ReplicaDown, match="its health is 503"),
        ):
            replica.score("reference", adapters.read_fingerprint("v1").prompts)


def test_labels_are_tokens_and_are_scored_after_a_prompt(
    replica: Replica, adapters: Adapters
) -> None:
    """As a router is asked: by an adapter other scores come than by the base."""
    chat = Chat(CHECKPOINT)
    tokens = [replica.tokenize("reference", label) for label in ("A", "B", "one and two")]
    assert tokens == [chat.encode(label) for label in ("A", "B", "one and two")]
    assert [len(ids) for ids in tokens[:2]] == [1, 1]
    replica.load("a-1", adapters["v1"])
    labels = [tokens[1][0], tokens[0][0]]
    prompt = [{"role": "system", "content": "Reply with A or B."}, {"role": "user", "content": "?"}]
    scores = {model: replica.score_labels(model, prompt, labels) for model in ("reference", "a-1")}
    assert all(list(row) == labels and max(row.values()) < 0 for row in scores.values())
    assert scores["reference"] != scores["a-1"]
    with pytest.raises(NoSuchModel, match="serves no nobody"):
        replica.score_labels("nobody", prompt, labels)
    with pytest.raises(NoSuchModel, match="serves no nobody"):
        replica.tokenize("nobody", "A")


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        (
            "expected target modules in ['q_proj'] but received ['lm_head']",
            r"received .*improve\.skills_router = \"trained\"",
        ),
        (
            "LoRA rank 32 is greater than max_lora_rank 16.",
            r"rank 32 .*start it with --max-lora-rank .* upstreams\[\]\.max_lora_rank",
        ),
    ],
)
def test_an_engine_that_does_not_take_an_adapter_is_named_with_the_remedy(
    tmp_path: Path, why: str, remedy: str
) -> None:
    refusal = JSONResponse({"error": {"message": why}}, 400)
    answers = {
        "/v1/models": models("vllm", "base"), "/v1/load_lora_adapter": refusal, "/health": "",
    }  # fmt: skip
    with (
        saying(answers) as url,
        Replica(f"{url}/v1") as replica,
        pytest.raises(LoadRefusal, match=remedy),
    ):
        replica.load("head", tmp_path)


def test_an_engine_that_scores_no_named_tokens_is_refused_with_the_remedy() -> None:
    """One of before vLLM 0.32 answers, and leaves the field out."""
    answer = {"choices": [{"logprobs": {"content": [{"token": "A", "top_logprobs": []}]}}]}
    with (
        saying({"/v1/chat/completions": answer, "/tokenize": {"count": 1}}) as url,
        Replica(f"{url}/v1") as replica,
    ):
        with pytest.raises(NoAnswer, match=r"log-probability of token 7, .* logprob_token_ids"):
            replica.score_labels("base", [{"role": "user", "content": "?"}], [7])
        with pytest.raises(NoAnswer, match="gives no token ids"):
            replica.tokenize("base", "A")
