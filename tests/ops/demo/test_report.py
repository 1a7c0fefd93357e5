"""The demo's report: the promised shape, figures that follow from verdicts, a page that needs
nothing else."""

import json
import re
from typing import Any

import pytest

from consumers.reads.explanation import Node
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.rollouts import PatternLine
from consumers.reads.serving import AdapterRow
from events.algorithm import Algorithm
from events.gate import Check, GatePlan, GateReport
from events.jobs import JobSpec, OptimizerSettings, Sampler, TaskPool
from events.lifecycle import State
from ops.demo import heldout
from ops.demo.ending import short
from ops.demo.mixture import MIX
from ops.demo.report import _STYLE, PolicyResult, Story, build_report, page, plot
from ops.demo.watch import Point, Tally

PROMISED = {
    "seconds", "traffic", "target", "others", "patterns", "tasks_written", "tasks_rejected",
    "adapter", "gate", "rebuild_equal",
}  # fmt: skip
NASTY = '<script src="http://evil.example/x.js">alert(1)</script>'


def outcomes(**passed: int) -> heldout.Outcomes:
    """Eight tasks of every kind, three trials each, all of which pass but those of the kinds
    named: of these so many tasks do."""
    return {
        kind: {f"shop/{kind}/{n}": [n < passed.get(kind, 8)] * 3 for n in range(8)} for kind in MIX
    }


def story(**changes: Any) -> Story:
    report = GateReport(
        decision="PROMOTE", test="sign_flip", alpha=0.05, p_value=0.001, tasks=130,
        checks=(Check(name="target", verdict="PASS", value=0.4, limit=0.02, low=0.3, tasks=130),),
        plan=GatePlan(gain=0.1, trials=2, between=0.01, within=0.4, planned=130, power=0.81),
    )  # fmt: skip
    spec = JobSpec(
        job="j", base="reference", checkpoint="/models/base", environment="shop", seed=1,
        pools=(TaskPool(name="p", share=1.0, tasks=("shop/two_writes/1",)),),
        sampler=Sampler(rollouts=128), algorithm=Algorithm(), optimizer=OptimizerSettings(lr=1e-3),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "cycle": CycleRow(
            cycle="c", alias="agent", base="reference", number=1, environment="shop",
            trigger="rollouts", reason="240 new rollouts", position={}, slot=None, acted=None,
            round=0, directive=None, findings=(), summary=None, analyzer=None, trouble=None,
            accepted=192, rejected=16, job="j", version=None, outcome="promoted",
            ended_because="it is no worse", event="e", started=None, diagnosed=None,
            directed=None, ended=None,
        ),
        "patterns": [
            PatternLine(
                "agent", "reference", NASTY, "missing_write_action", "modify_address", 12, 12, 0,
                0.07, 0.3, "NEW", ["r"], 0, [0.3],
            )
        ],
        "live": [Tally("reference", 300, 260), Tally("better", 100, 97)],
        "job": JobRow(
            job="j", cycle="c", alias="agent", base="reference", capability="two_writes",
            branch=None, teaches=None, spec=spec, minutes=120.0, outcome="trained", reason="",
            adapter="/a", sha256="0" * 64, steps=48, rollouts=3072, seconds=150.0, attempts=1,
            event="e", requested=None, ended=None,
        ),
        "adapter": AdapterRow(
            adapter="agent-two_writes-1", alias="agent", base="reference", sha256="0" * 64,
            path="/a", capability="two_writes", job="j", origin="job", state=State.PROMOTED,
            reason="", replicas=("http://127.0.0.1:1/v1",), distance=0.0, from_base=1.0,
            incumbent=None, gate=report, since=None, cause="e", offset=1,
        ),
        "before": outcomes(two_writes=2, exchange=4),
        "after": PolicyResult([Point(64, 0.2, 1.0, 0.5), Point(128, 0.6, 1.0, 0.6)],
                         outcomes(two_writes=6, exchange=4)),
        "general": None,
        "explained": Node("agent-two_writes-1", "adapter", "promoted", (Node("j", "job", NASTY),)),
        "rebuild_equal": True,
        "mix": MIX,
        "cycles": [],
    }  # fmt: skip
    return Story(**(fields | changes))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Of a demo with both arms."""
    general = PolicyResult([Point(64, None, 0.9, 0.1)], outcomes())
    return json.loads(json.dumps(build_report(story(general=general), 321.04)))  # type: ignore[no-any-return]


def test_the_document_has_what_was_promised(document: dict[str, Any]) -> None:
    report = document
    assert set(report) >= PROMISED
    assert set(report["traffic"]) >= {"before", "after"}
    assert set(report["target"]) >= {
        "capability", "traffic_share", "tasks", "before", "after", "low", "high",
    }  # fmt: skip
    assert set(report["others"]) == set(MIX) - {"two_writes"}
    assert all(set(one) >= {"before", "after"} for one in report["others"].values())
    assert set(report["gate"]) >= {"decision", "p_value", "tasks"}
    assert (report["seconds"], report["tasks_written"], report["tasks_rejected"]) == (
        321.0,
        192,
        16,
    )


def test_its_figures_follow_from_the_verdicts(document: dict[str, Any]) -> None:
    report, target, traffic = document, document["target"], document["traffic"]
    assert (target["before"], target["after"], target["tasks"]) == (0.25, 0.75, 8)
    assert target["low"] < 0.5 < target["high"]
    gained = traffic["after"] - traffic["before"]
    assert gained == pytest.approx(0.5 * MIX["two_writes"])
    assert traffic["low"] <= gained <= traffic["high"]
    assert report["others"]["exchange"] == report["others"]["exchange"] | {
        "before": 0.5, "after": 0.5,
    }  # fmt: skip


def test_without_a_difference_the_interval_holds_zero() -> None:
    same = outcomes(two_writes=2)
    found = heldout.gain(same, same, "two_writes")
    assert found.low < 0 == found.value < found.high
    overall = heldout.overall_gain(same, same, MIX)
    assert (overall.low, overall.value, overall.high) == (0, 0, 0)


@pytest.mark.parametrize("compared", [True, False])
def test_the_page_is_one_file_and_runs_nothing(document: dict[str, Any], compared: bool) -> None:
    text = page(document if compared else {**document, "general": None})
    tags = re.findall(r"<(\w+)([^>]*)>", text)
    assert not {"script", "link", "img", "iframe", "object"} & {name for name, _ in tags}
    assert not re.search(r"\b(src|href|on\w+)\s*=|url\(|@import", str(tags) + _STYLE)
    assert "&lt;script" in text
    assert "two_writes: 25% → 75%" in text
    assert "<svg" in text
    assert ("general RL" in text) == compared
    assert "+0.300" in text, "the bound of the gate's check"


def test_a_curve_of_nothing_is_drawn_as_nothing() -> None:
    assert "<polyline" in plot([("none", "#000", [])])


def test_a_terminal_names_a_few_and_says_how_many_more() -> None:
    rollouts = tuple(Node(f"r{n}", "rollout", "failed") for n in range(5))
    node = short(Node("p", "pattern", "", (*rollouts, Node("t", "task", ""))))
    assert [one.node for one in node.because] == ["r0", "r1", "3 more", "t"]
