"""A bundle is used by a stranger: loaded by PEFT, proven by its probes, pushed elsewhere."""

import hashlib
import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from daemon.adapters.bundle import MANIFEST
from daemon.adapters.directory import WEIGHTS, verify
from daemon.adapters.fingerprint import Expectation, distance
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.engine.fingerprint import fingerprint
from daemon.engine.reference.weights import CHECKPOINT
from events.gate import Check, GateReport
from events.lifecycle import State
from ops.random_adapters import Adapters
from tests.consumers.cycling import (
    cycle_id,
    diagnosed,
    directed,
    job_over,
    over,
    proposed,
    requested,
    started,
)
from tests.consumers.deciding import decided, evaluated, moved, produced, staged
from tests.consumers.folding import at, ended, rollout
from tests.daemon.conftest import Kintsugi

GATE = GateReport(
    decision="PROMOTE", test="sign_flip", alpha=0.05, p_value=0.001, tasks=64,
    checks=(
        Check(name="target", verdict="PASS", value=0.25, limit=0.02, tasks=64),
        Check(name="overall", verdict="PASS", value=0.1, limit=-0.01, low=0.05, tasks=256),
    ),
)  # fmt: skip


@pytest.fixture
def pushed(home: Path, kintsugi: Kintsugi, adapters: Adapters) -> str:
    """The name of an adapter in the home, which no engine has."""
    result = kintsugi("adapters", "push", adapters["v1"], "--base", "reference", "--json")
    assert result.code == 0, result.err
    return str(result.json["adapter"])


def export(kintsugi: Kintsugi, name: str, place: Path, *more: str) -> Path:
    result = kintsugi("adapters", "export", name, "--out", place, *more)
    assert result.code == 0, result.err
    return place


def unpack(archive: Path, folder: Path) -> Path:
    """The one folder of an archive."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (bundle,) = folder.iterdir()
    return bundle


def documents(bundle: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in bundle.glob("*.json")}


def test_the_unpacked_folder_is_loaded_by_peft_and_answers_as_its_probes_say(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    bundle = unpack(export(kintsugi, pushed, tmp_path / "b.tar.gz"), tmp_path / "there")
    assert bundle.name == pushed
    expected = Expectation.model_validate_json((bundle / "probes.json").read_bytes())
    base: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    with warnings.catch_warnings():
        # Of PEFT: about what transformers will do.
        warnings.simplefilter("ignore")
        model: Any = PeftModel.from_pretrained(base, bundle / "adapter")
    answers = fingerprint(model, expected.prompts)
    assert distance(answers, expected.adapter) < 1e-4
    assert distance(answers, expected.base) > 0.1, "the adapter changes what is answered"


def test_the_manifest_names_every_file_with_its_sha256(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    bundle = export(kintsugi, pushed, tmp_path / "folder")
    manifest = json.loads((bundle / MANIFEST).read_text())
    files = {str(p.relative_to(bundle)): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
    del files[MANIFEST]
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert manifest == {"format": 1, "adapter": pushed, "files": digests}
    assert {"README.md", "gate.json", "lineage.json", "probes.json"} <= set(files)
    assert f"adapter/{WEIGHTS}" in files


def test_the_same_adapter_gives_the_same_bytes(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    first = export(kintsugi, pushed, tmp_path / "first.tar.gz").read_bytes()
    for path in Path(kintsugi("adapters", "show", pushed, "--json").json["path"]).iterdir():
        path.touch()
    assert export(kintsugi, pushed[:9], tmp_path / "second.tgz").read_bytes() == first
    with tarfile.open(tmp_path / "first.tar.gz") as packed:
        members = packed.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(0, 0, "")}


def test_a_bundle_is_pushed_into_another_home(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    bundle = export(kintsugi, pushed, tmp_path / "folder")
    other = ("--home", tmp_path / "other")
    again = kintsugi(
        "adapters", "push", bundle / "adapter", "--base", "reference", "--json", *other
    )
    assert again.code == 0, again.err
    assert again.json["adapter"] == pushed, "named by its content"
    anew = kintsugi("adapters", "export", pushed, "--out", tmp_path / "anew", "--json", *other)
    assert anew.code == 0, anew.err
    probes = [(folder / "probes.json").read_bytes() for folder in (bundle, tmp_path / "anew")]
    assert probes[0] == probes[1]


def test_evidence_and_lineage_go_down_to_the_failed_rollouts(
    home: Path, kintsugi: Kintsugi, adapters: Adapters, tmp_path: Path
) -> None:
    name = _bring_from_a_job(kintsugi, adapters)
    bundle = export(kintsugi, name, tmp_path / "folder")
    known = documents(bundle)
    assert known["gate"]["report"] == GATE.model_dump(mode="json")
    assert [line["candidate_pass"] for line in known["gate"]["evaluations"]] == [0.75]
    assert "alpha" in known["gate"]["settings"]["gate"]
    (job,) = known["lineage"]["because"]
    (cycle,) = job["because"]
    assert (job["kind"], cycle["node"]) == ("job", cycle_id())
    (pattern,) = cycle["because"]
    assert [(node["kind"], node["node"]) for node in pattern["because"]] == [
        ("rollout", "fails"), ("task", "shop/1"),
    ]  # fmt: skip
    provenance = verify(adapters["v2"])
    assert known["lineage"]["base"] == {"name": "base", "sha256": provenance.base.sha256}
    card = (bundle / "README.md").read_text()
    for words in (
        "| target | PASS | +25.0 |  | +2.0 | 64 |",
        "| overall | PASS | +10.0 | +5.0 | -1.0 | 256 |",
        "pass^1 0.750, of its base 0.500",
        "PeftModel.from_pretrained",
        "vllm serve",
        "| missing_write_action\\|cancel_order | 1 |",
    ):
        assert words in card
    everything = b"".join(path.read_bytes() for path in bundle.rglob("*") if path.is_file())
    assert b"secret words of a person" not in everything


def _bring_from_a_job(kintsugi: Kintsugi, adapters: Adapters) -> str:
    """An adapter that a cycle's job left and that passed its gate."""
    source = kintsugi("adapters", "push", adapters["v2"], "--base", "base", "--json").json
    with App(load()) as app:
        app.append([ended("fails", at(1), content=rollout("secret words of a person").content)])
        app.settle()
        written = directed()
        (quota,) = written.directive.quotas
        shown = quota.model_copy(update={"examples": ("fails",)})
        directive = written.directive.model_copy(update={"quotas": (shown,)})
        written = written.model_copy(update={"directive": directive})
        decisions = Decisions(app)
        name = "cancel-better"
        left = produced(name).model_copy(
            update={"job": job_over().job, "path": source["path"], "sha256": source["sha256"]}
        )
        gate = decided(name, "PROMOTE").model_copy(update={"report": GATE})
        for number, data in enumerate(
            (started(), diagnosed({"rollouts": {}}), written, proposed("shop/1"), requested(),
             job_over(), left, staged(name), evaluated(name), gate, over())
        ):  # fmt: skip
            decisions.take(data, f"step {number}", "a test")
    return name


def test_an_unknown_name_a_taken_place_and_collected_files_are_refused(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    unknown = kintsugi("adapters", "export", "nobody", "--out", tmp_path / "x.tar.gz")
    assert (unknown.code, "'nobody'" in unknown.err) == (2, True)
    archive = export(kintsugi, pushed, tmp_path / "x.tar.gz")
    taken = kintsugi("adapters", "export", pushed, "--out", archive)
    assert (taken.code, "--force" in taken.err) == (1, True)
    export(kintsugi, pushed, archive, "--force")
    own = tmp_path / "mine"
    own.mkdir()
    (own / "letter.txt").write_text("dear")
    foreign = kintsugi("adapters", "export", pushed, "--out", own, "--force")
    assert (foreign.code, "is no bundle" in foreign.err) == (1, True)
    assert (own / "letter.txt").read_text() == "dear"
    with App(load()) as app:
        for number, state in enumerate((State.REJECTED, State.UNLOADED, State.COLLECTED)):
            Decisions(app).take(moved(pushed, state.value), f"moved {number}", "a test")
    gone = kintsugi("adapters", "export", pushed, "--out", tmp_path / "y.tar.gz")
    assert (gone.code, "were collected" in gone.err) == (1, True)
    assert not (tmp_path / "y.tar.gz").exists()


def test_only_a_folder_that_holds_nothing_but_a_bundle_is_replaced(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / MANIFEST).write_text('{"name": "a page of mine"}')
    foreign = kintsugi("adapters", "export", pushed, "--out", site, "--force")
    assert (foreign.code, "is no bundle" in foreign.err) == (1, True)
    bundle = export(kintsugi, pushed, tmp_path / "bundle")
    notes = bundle / "adapter" / "notes.txt"
    notes.write_text("mine")
    kept = kintsugi("adapters", "export", pushed, "--out", bundle, "--force")
    assert (kept.code, str(notes) in kept.err) == (1, True)
    assert notes.read_text() == "mine"
    notes.unlink()
    (bundle / "README.md").write_text("damaged")
    monkeypatch.chdir(bundle)
    export(kintsugi, pushed, Path("."), "--force")
    assert (bundle / "README.md").read_text() != "damaged"


def test_an_archive_of_another_kind_is_refused(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    refused = kintsugi("adapters", "export", pushed, "--out", tmp_path / "x.zip")
    assert (refused.code, ".tar.gz" in refused.err) == (1, True)
    assert not (tmp_path / "x.zip").exists()


def test_files_that_changed_since_are_not_exported(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    path = Path(kintsugi("adapters", "show", pushed, "--json").json["path"])
    weights = path / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    refused = kintsugi("adapters", "export", pushed, "--out", tmp_path / "x.tar.gz")
    assert (refused.code, "is not what was" in refused.err) == (1, True)
    assert list(tmp_path.glob("x.tar.gz*")) == []


def test_a_place_that_cannot_be_written_leaves_nothing_behind(
    pushed: str, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    refused = kintsugi("adapters", "export", pushed, "--out", tmp_path / "file" / "x.tar.gz")
    assert (refused.code, "could not be written" in refused.err) == (1, True)
