"""The graph of an explanation: every thing once, nothing over another, drawn by a real browser."""

import json
import re
from html import unescape
from itertools import combinations
from pathlib import Path

import pytest

from consumers.reads.explanation import Node
from daemon.replay.lineage import KINDS, MOST, compute_layout, page
from ops.browser import BrowserUnavailable, dom, program
from tests.conftest import missing
from tests.daemon.conftest import Kintsugi

WIDE = "W" * 60
"""Of the widest letters, and longer than a box."""

MEASURE = """<script>
const boxes = [...document.querySelectorAll("g.box")];
const wide = boxes.filter(box => {
  const frame = box.querySelector("rect").getBBox();
  return [...box.querySelectorAll("text")].some(text => {
    const at = text.getBBox();
    return at.width === 0 || at.x + at.width > frame.x + frame.width || at.x < frame.x
      || at.y + at.height > frame.y + frame.height || at.y < frame.y;
  });
});
document.title = JSON.stringify({boxes: boxes.length, wide: wide.length,
  paths: document.querySelectorAll("svg.lineage path").length,
  rows: document.querySelectorAll("tbody tr").length});
</script>"""


def explained(tasks: int = 3) -> Node:
    """A route, and all that is below one."""
    shared = Node("r1", "rollout", "failed <b>twice</b>")
    written = tuple(
        Node(f"task-{number}", "task", f"written for {WIDE}", (shared,)) for number in range(tasks)
    )
    pattern = Node("wrong_entity|cancel", "pattern", "12 failures", (shared, *written))
    cycle = Node("0f8fad5b-d9cb-469f-a165-70867728950e", "cycle", "so", (pattern,))
    job = Node(WIDE, "job", "trained", (cycle,))
    adapters = (Node("better", "adapter", "promoted", (job,)), Node("own", "adapter", "pushed",
                (Node("/srv/own", "push", "an operator's directory"),)))  # fmt: skip
    return Node("agent", "route", "better 90%, own 10%", adapters)


def test_every_thing_is_drawn_once_and_nothing_over_another() -> None:
    layout = compute_layout(explained())
    assert len(layout.boxes) == 1 + 2 + 1 + 1 + 1 + 1 + 3 + 1
    places = {(box.x, box.y) for box in layout.boxes.values()}
    assert len(places) == len(layout.boxes)
    for one, other in combinations(layout.boxes.values(), 2):
        assert abs(one.x - other.x) > 200 or abs(one.y - other.y) > 40, (one, other)
    assert all(layout.boxes[one].x < layout.boxes[other].x for one, other in layout.edges)
    order = [kind for kind, _ in KINDS]
    assert [kind for _, kind in layout.columns] == order
    panel = Node("panel-1", "panel", "answers refunds by better", explained().because)
    layout = compute_layout(Node("agent", "route", "panel-1 100%", (panel,)))
    assert [kind for _, kind in layout.columns] == ["route", "panel", *order[1:]]
    assert sum(other == ("rollout", "r1") for _, other in layout.edges) == 4


def test_a_kind_without_a_column_of_its_own_stands_behind_what_rests_on_it() -> None:
    pattern = Node("wrong_entity|cancel", "pattern", "12 failures")
    plan = Node("set/1", "plan", "refund", (Node("set", "plans", "4 plans", (pattern,)),))
    task = Node("task-1", "task", "written", (pattern, plan))
    columns = [kind for _, kind in compute_layout(task).columns]
    assert columns == ["pattern", "task", "plan", "plans"]


def test_of_very_many_some_are_drawn_and_the_others_counted() -> None:
    layout = compute_layout(explained(tasks=MOST + 1_200))
    tasks = [name for kind, name in layout.boxes if kind == "task"]
    assert len(tasks) == MOST + 1
    assert tasks[-1].startswith("and 1,200 more")


def test_what_a_box_cuts_short_is_read_in_words_above_the_drawing() -> None:
    words, drawing = page(explained()).split("<svg", 1)
    for node in ("route agent", "adapter better", f"job {WIDE}", "pattern wrong_entity|cancel"):
        assert f"<dt>{node}</dt>" in words
    assert "better 90%, own 10%" in words
    assert "task-0" in drawing
    assert "task-0" not in words


def test_an_adapter_that_a_job_went_on_from_keeps_what_is_known_of_it() -> None:
    job = Node("j2", "job", "trained", (Node("better", "adapter", "the job went on from it"),))
    route = explained()
    canary = Node("newer", "adapter", "canary", (job,))
    layout = compute_layout(Node("agent", "route", "two", (canary, *route.because)))
    assert layout.boxes["adapter", "better"].said == "promoted"
    assert (("job", "j2"), ("adapter", "better")) in layout.edges


def test_the_page_runs_and_fetches_nothing() -> None:
    text = page(explained())
    tags = re.findall(r"<(\w+)([^>]*)>", text)
    assert not {"script", "link", "img", "iframe", "object", "b"} & {name for name, _ in tags}
    assert not re.search(r"\b(src|href|on\w+)\s*=|url\(|@import", str(tags))
    assert WIDE in unescape(text), "what a box has no room for stands below"


@pytest.mark.browser
def test_a_browser_draws_it_with_every_name_in_its_box(tmp_path: Path) -> None:
    try:
        program()
    except BrowserUnavailable as error:
        missing(str(error))
    file = tmp_path / "page.html"
    file.write_text(page(explained()).replace("</body>", f"{MEASURE}</body>"))
    shown = dom(file.as_uri())
    found = re.search(r"<title>(.*?)</title>", shown)
    assert found is not None
    layout = compute_layout(explained())
    assert json.loads(unescape(found[1])) == {
        "boxes": len(layout.boxes), "wide": 0, "paths": len(layout.edges),
        "rows": len(layout.boxes),
    }  # fmt: skip


def test_the_command_leaves_a_page(imported: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    rollout = kintsugi("rollouts", "ls", "--failed", "--json").json[0]["rollout"]
    done = kintsugi("explain", rollout, "--html", tmp_path / "why.html", "--json")
    assert (done.code, done.json["kind"]) == (0, "rollout")
    assert rollout in (tmp_path / "why.html").read_text()
    nowhere = kintsugi("explain", rollout, "--html", tmp_path / "no" / "why.html")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (1, True)
