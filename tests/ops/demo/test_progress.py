"""Cycle after cycle: whose figures an entry has, which adapter the report is about, the picture."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from consumers.reads.learning import CycleRow
from envs.shop.kinds import KINDS
from events.learning import CycleOutcome
from events.lifecycle import State
from ops.demo import progress, progress_chart
from ops.demo.mixture import MIX
from ops.demo.progress import CycleResult, build_entries, choose_subject, list_adapters
from ops.demo.report import build_report, page
from ops.demo.view import describe_past, number_of, picture, steps, stop
from ops.demo.watch import DemoState, PastCycle, select_current
from tests.ops.demo.test_report import outcomes, story

STORY = story()


def result(
    number: int, outcome: CycleOutcome, incumbent: str | None, *, gated: bool = True
) -> CycleResult:
    """A cycle whose job left the adapter `c{number}`."""
    row = replace(STORY.cycle, cycle=f"cycle-{number}", number=number, outcome=outcome)
    gate = STORY.adapter.gate if gated else None
    left = replace(STORY.adapter, adapter=f"c{number}", gate=gate, state=State.REJECTED)
    answers = None if incumbent is None else replace(STORY.adapter, adapter=incumbent)
    return CycleResult(row, STORY.job, left, answers)


def nothing(number: int, incumbent: str | None) -> CycleResult:
    return replace(result(number, "nothing_learnable", incumbent), job=None, candidate=None)


THREE = [
    result(1, "promoted", "c1"), result(2, "rejected", "c1"), nothing(3, "c1"),
    result(4, "promoted", "c4"),
]  # fmt: skip


def test_an_entry_has_the_figures_of_whoever_answers_after_its_cycle() -> None:
    measured: dict[str | None, Any] = {
        None: outcomes(two_writes=2), "c1": outcomes(two_writes=4), "c4": outcomes(two_writes=6),
    }  # fmt: skip
    entries = build_entries(THREE, measured, MIX)
    assert [entry["number"] for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry["adapter"] for entry in entries] == [None, "c1", "c1", "c1", "c4"]
    assert [entry["candidate"] for entry in entries] == [None, "c1", "c2", None, "c4"]
    assert [entry["outcome"] for entry in entries] == [
        None, "promoted", "rejected", "nothing_learnable", "promoted",
    ]  # fmt: skip
    assert [entry["kinds"]["two_writes"] for entry in entries] == [0.25, 0.5, 0.5, 0.5, 0.75]
    rise = MIX["two_writes"] * 0.5
    assert entries[-1]["traffic"] - entries[0]["traffic"] == pytest.approx(rise)
    assert all(set(entry) == set(entries[0]) for entry in entries)


def test_a_policy_that_goes_on_answering_is_played_once_and_a_rejected_one_not_at_all() -> None:
    subject = choose_subject(THREE)
    assert subject is THREE[3]
    assert [row.adapter for row in list_adapters(THREE, subject)] == ["c4", "c1"]


def test_the_report_is_about_the_last_promoted_else_the_last_gated_adapter() -> None:
    rejected = [result(1, "rejected", None), result(2, "failed", None, gated=False)]
    assert choose_subject([*THREE, result(5, "rejected", "c4")]) is THREE[3]
    assert choose_subject(rejected) is rejected[0]
    assert choose_subject(rejected[1:]) is rejected[1]
    assert choose_subject([nothing(1, None)]) is None
    assert [row.adapter for row in list_adapters(rejected, rejected[0])] == ["c1"]
    assert progress.sum_budgets([*rejected, nothing(3, None)]) == 2 * 128


# The picture of the report


def entries(cycles: int, kinds: int) -> list[dict[str, Any]]:
    """Figures of cycles of which every second promoted."""
    names = list(KINDS)[:kinds]
    return [
        {
            "number": number,
            "outcome": None if not number else ("promoted", "rejected")[number % 2],
            "why": "<b>why</b>" if number else None,
            "adapter": f"agent-{number // 2}" if number > 1 else None,
            "candidate": f"agent-{number}",
            "capability": "two_writes" if number else None,
            "traffic": 0.8 + 0.01 * number,
            "kinds": {name: 0.9 if place % 3 else 0.5 for place, name in enumerate(names)},
        }
        for number in range(cycles + 1)
    ]


@pytest.mark.parametrize("cycles", [2, 8, 30])
def test_the_picture_has_a_line_per_kind_and_every_promotion(cycles: int) -> None:
    svg = ElementTree.fromstring(progress_chart.draw(entries(cycles, 12)))
    lines = svg.findall("polyline")
    assert len(lines) == 12 + 1
    assert all(len((line.get("points") or "").split()) == cycles + 1 for line in lines)
    looks = {(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}
    assert len(looks) == len(lines)
    marked = [path for path in svg.findall("path") if path.get("fill") == "#137333"]
    assert len(marked) == len([n for n in range(1, cycles + 1) if n % 2 == 0])


@pytest.mark.parametrize("kinds", [1, 12, 22])
def test_labels_of_lines_that_end_together_do_not_overlap_and_stay_inside(kinds: int) -> None:
    svg = ElementTree.fromstring(progress_chart.draw(entries(4, kinds)))
    labels = [text for text in svg.findall("text") if "→" in (text.text or "")]
    heights = sorted(float(text.get("y") or "nan") for text in labels)
    assert len(heights) == kinds + 1
    assert min((b - a for a, b in pairwise(heights)), default=99) >= 12
    assert heights[0] >= 12
    assert heights[-1] <= 460
    colours = {(text.text or "").split()[0]: text.get("fill") for text in labels}
    assert set(colours) >= set(list(KINDS)[:kinds])


def test_the_page_shows_several_cycles_and_runs_nothing() -> None:
    document = build_report(story(cycles=entries(3, 5)), 5.0)
    text = page(document)
    assert "Cycle after cycle" in text
    assert "1 of 3 cycles promoted an adapter" in text
    assert "<script" not in text
    assert "&lt;b&gt;why" in text
    assert not re.search(r"\b(src|href|on\w+)\s*=|url\(", progress_chart.section(entries(3, 5)))
    assert "Cycle after cycle" not in page(build_report(story(cycles=entries(1, 5)), 5.0))


# The live picture


def seen(rows: list[CycleRow], past: tuple[PastCycle, ...] = ()) -> DemoState:
    return DemoState(
        events=5, live=(), patterns=(), missing=("240 more rollouts, of 240",),
        cycle=select_current(rows, 3), job=None, curve=(), adapter=None, trial=None, routes=(),
        turned="", cycles=3, past=past,
    )  # fmt: skip


def test_it_is_over_when_the_last_cycle_has_ended_however_it_ended() -> None:
    ended = [replace(STORY.cycle, outcome="rejected"), replace(STORY.cycle, outcome="failed")]
    running = replace(STORY.cycle, outcome=None)
    assert select_current([], 3) is None
    assert select_current(ended, 3) is None
    assert select_current([*ended, running], 3) is running
    last = replace(STORY.cycle, outcome="nothing_learnable")
    assert select_current([*ended, last], 3) is last
    assert [seen(rows).over for rows in (ended, [*ended, running], [*ended, last])] == [
        False, False, True,
    ]  # fmt: skip


def test_the_live_picture_says_which_cycle_it_is_and_how_the_earlier_ones_came_out() -> None:
    past = (
        PastCycle(1, "promoted", "two_writes"), PastCycle(2, "nothing_learnable", ""),
    )  # fmt: skip
    assert describe_past(past) == "1 two_writes promoted, 2 nothing learnable"
    ended = [replace(STORY.cycle, outcome="promoted")] * 2
    waiting = seen(ended, past)
    assert (number_of(waiting), stop(waiting)) == (3, 0)
    names = dict(steps(waiting))
    assert names["2 end"] == "ended     2 nothing learnable"
    assert any(words.startswith("3/3  rollout") for words in names.values())
    panel: Any = picture(waiting, 61)
    assert panel.title == "kintsugi, cycle 3 of 3, 1:01"
