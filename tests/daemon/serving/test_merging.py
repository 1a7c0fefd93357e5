"""`kintsugi adapters merge`: one adapter of several, from the home to an engine that has it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from daemon.adapters.directory import CONFIG, WEIGHTS
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.engine.merging import read_members
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.merging import MergeRefusal, merge_adapters
from events.jobs import LoraSettings
from events.lifecycle import State
from ops.random_adapters import Adapters
from tests.consumers.cycling import (
    cycle_id,
    diagnosed,
    directed,
    job_over,
    over,
    requested,
    started,
)
from tests.consumers.deciding import moved, produced
from tests.daemon.conftest import Kintsugi
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA

BASE = ("--checkpoint", CHECKPOINT, "--json")


@pytest.fixture
def pushed(home: Path, kintsugi: Kintsugi, adapters: Adapters) -> list[str]:
    """Two adapters of the home, which no engine has."""
    names = []
    for version in ("v1", "v2"):
        result = kintsugi("adapters", "push", adapters[version], "--base", "reference", "--json")
        assert result.code == 0, result.err
        names.append(result.json["adapter"])
    return names


def merge(kintsugi: Kintsugi, *arguments: Any) -> dict[str, Any]:
    result = kintsugi("adapters", "merge", *arguments, *BASE)
    assert result.code == 0, result.err
    return dict(result.json)


@pytest.mark.long
def test_two_adapters_become_one_of_the_home(pushed: list[str], kintsugi: Kintsugi) -> None:
    first, second = sorted(pushed)
    made = merge(kintsugi, f"{second}=0.5", f"{first}=1", "--rank", "16", "--actor", "ada")
    assert made["adapter"].startswith("merged-")
    assert (made["state"], made["origin"], made["new"]) == ("produced", "push", True)
    assert made["merge"]["members"] == [
        {"adapter": first, "weight": 1.0}, {"adapter": second, "weight": 0.5},
    ]  # fmt: skip
    rows = [kintsugi("adapters", "show", name, "--json").json for name in (first, second)]
    parts = read_members([Path(row["path"]) for row in rows], [1.0, 0.5])
    weights = load_file(Path(made["path"]) / WEIGHTS)
    config = json.loads((Path(made["path"]) / CONFIG).read_text())
    scale = config["lora_alpha"] / config["r"]
    assert scale == LoraSettings().alpha / LoraSettings().rank, "a job can go on from it"
    for layer, factors in parts[0].layers.items():
        name = f"base_model.model.{layer}.lora_"
        change = scale * (weights[f"{name}B.weight"] @ weights[f"{name}A.weight"]).double()
        other = parts[1].layers[layer]
        wanted = factors.up @ factors.down + 0.5 * other.up @ other.down
        assert (change - wanted).abs().max() < 1e-5
    again = merge(kintsugi, f"{first}=1", f"{second}=0.5", "--rank", "16", "--method", "sum")
    assert (again["adapter"], again["new"]) == (made["adapter"], False)
    shown = kintsugi("adapters", "show", made["adapter"])
    told = " ".join(shown.out.split())
    assert f"merged by sum, rank 16: 1 of {first}, 0.5 of {second}" in told
    assert kintsugi("rebuild", "--json").json["equal"] is True


@pytest.mark.long
def test_it_is_explained_and_exported_with_its_members(
    pushed: list[str], kintsugi: Kintsugi, tmp_path: Path
) -> None:
    made = merge(kintsugi, *pushed, "--name", "both", "--method", "core_tsv")
    assert {part["weight"] for part in made["merge"]["members"]} == {1.0}
    tree = kintsugi("explain", "both", "--json").json
    assert [(node["kind"], node["node"]) for node in tree["because"]] == [
        ("adapter", name) for name in sorted(pushed)
    ]
    assert f"merged by core_tsv, rank {made['merge']['rank']}: 1 of" in tree["said"]
    assert kintsugi("explain", "both", "--html", tmp_path / "page.html").code == 0
    out = tmp_path / "bundle"
    assert kintsugi("adapters", "export", "both", "--out", out).code == 0
    card = (out / "README.md").read_text()
    assert all(f"1 of {name}" in card for name in pushed)
    assert "Nothing was trained for it." in card


@pytest.mark.long
def test_engines_answer_with_it_at_the_rank_that_they_take(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Staging proves that each replica answers as its probes say."""
    home = make_home(1, upstream={"max_lora_rank": 12, "checkpoint": CHECKPOINT})
    names = [home.push(adapters[version]) for version in ("v1", "v2")]
    parts = [(name, 1.0) for name in names]
    made = merge_adapters(home.app, home.fleet, parts, ADA, rank=12).pushed.adapter
    assert made.merge is not None
    assert made.merge.rank == 12
    with pytest.raises(MergeRefusal, match="rank 13 is more than the engines take, 12"):
        merge_adapters(home.app, home.fleet, parts, ADA, rank=13)
    staged = home.publisher.stage(made.adapter, ADA)
    assert staged.state is State.STAGED
    assert staged.distance is not None
    assert staged.distance < 1e-3


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("{0}",), 1, "is merged with nothing"),
        (("{0}", "{0}", "{1}"), 1, "is named twice"),
        (("{0}=0", "{1}=1"), 1, "has the weight 0"),
        (("{0}=1", "{1}"), 2, "give all of them one, or none"),
        (("{0}", "nobody"), 1, "there is no adapter 'nobody'"),
        (("{0}=1", "{1}=much"), 2, "'much' is no weight"),
        (("{0}=1", "{1}=nan"), 2, "'nan' is no weight"),
        (("{0}", "{1}", "--rank", "1", "--method", "core_tsv"), 1, "it takes 2 at least"),
    ],
)
def test_wrong_input_is_a_sentence(
    pushed: list[str], kintsugi: Kintsugi, arguments: tuple[str, ...], code: int, why: str
) -> None:
    result = kintsugi("adapters", "merge", *(part.format(*pushed) for part in arguments), *BASE)
    assert (result.code, why in result.err) == (code, True), result.err
    assert {row["adapter"] for row in kintsugi("adapters", "ls", "--json").json} == set(pushed)


def test_adapters_of_two_agents_and_collected_ones_are_refused(
    pushed: list[str], kintsugi: Kintsugi, adapters: Adapters
) -> None:
    other = kintsugi(
        "adapters", "push", adapters["v1"], "--base", "reference", "--alias", "other", "--name",
        "elsewhere", "--json",
    )  # fmt: skip
    assert other.code == 0, other.err
    refused = kintsugi("adapters", "merge", pushed[0], "elsewhere", *BASE)
    assert (refused.code, "adapters of one agent" in refused.err) == (1, True)
    with App(load()) as app:
        for number, state in enumerate((State.REJECTED, State.UNLOADED, State.COLLECTED)):
            Decisions(app).take(moved(pushed[1], state.value), f"moved {number}", "a test")
    gone = kintsugi("adapters", "merge", *pushed, *BASE)
    assert (gone.code, "were collected" in gone.err) == (1, True)


def go_on(child: str, row: dict[str, Any], number: int, parent: str) -> None:
    """A cycle's job that went on from the folder of `parent` left an adapter with these files."""
    with App(load()) as app:
        app.settle()
        job = requested(number)
        spec = job.spec.model_copy(update={"parent": parent})
        left = produced(child, base="reference").model_copy(
            update={"job": job.job, "path": row["path"], "sha256": row["sha256"]}
        )
        steps = (
            started(number), diagnosed({"rollouts": {}}, number), directed(number),
            job.model_copy(update={"spec": spec}), job_over(number), left, over(number),
        )  # fmt: skip
        for place, data in enumerate(steps):
            Decisions(app).take(data, f"step {place} of {cycle_id(number)}", "a test")


@pytest.mark.long
def test_what_would_count_twice_is_refused_or_said(pushed: list[str], kintsugi: Kintsugi) -> None:
    rows = [kintsugi("adapters", "show", name, "--json").json for name in pushed]
    go_on("child", rows[1], 1, rows[0]["path"])
    refused = kintsugi("adapters", "merge", pushed[0], "child", *BASE)
    assert refused.code == 1
    assert f"child went on from {pushed[0]}, whose change would count twice" in refused.err
    go_on("sibling", rows[1], 2, rows[0]["path"])
    result = kintsugi("adapters", "merge", "child=1", "sibling=1", *BASE)
    assert result.code == 0, result.err
    told = " ".join(result.err.split())
    assert f"go on from {pushed[0]}, whose change counts 2 times" in told
    assert f"{pushed[0]}=-1 more" in told


def test_without_a_checkpoint_nothing_is_computed(pushed: list[str], kintsugi: Kintsugi) -> None:
    result = kintsugi("adapters", "merge", *pushed)
    assert (result.code, "name it with --checkpoint" in result.err) == (1, True)
