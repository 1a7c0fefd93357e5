"""Scores by milestones: measures, the assignment of rows and moments, order, and minefields."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from envs.database import Database
from envs.milestones.graph import Constraint, Measure, Milestone, MilestoneGraph, Milestones
from envs.toolsandbox.device.state import build_tables
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.matching import match, score
from envs.toolsandbox.similarity import measure_constraint, measure_rouge_l
from envs.toolsandbox.snapshots import Recording
from envs.toolsandbox.stemming import stem
from envs.users import STOP
from events.messages import Message, ToolCall
from tests.envs.toolsandbox.files import NOW, PEOPLE, SETTING


def says(role: Any, text: str) -> Message:
    return Message(role=role, content=text)


def calls(*named: tuple[str, dict[str, Any]]) -> Message:
    return Message(
        role="assistant",
        tool_calls=tuple(
            ToolCall(name=n, arguments=a, id=str(i)) for i, (n, a) in enumerate(named)
        ),
    )


def recording(*messages: Message) -> Recording:
    rows = {"SETTING": [SETTING], "CONTACT": PEOPLE}
    database = Database(build_tables(rows, NOW, ToolSandboxTools.tools()))
    return Recording((says("user", "Hello"), *messages), database)


def switched_on(name: str, reference: int | None = None) -> Milestone:
    constraints = [Constraint(table="SETTING", relation="snapshot", rows=({name: True},))]
    if reference is not None:
        constraints.append(Constraint(table="CONTACT", relation="guardrail", reference=reference))
    return Milestone(constraints=tuple(constraints))


def heard(text: str, measure: Any = "rouge_l") -> Milestone:
    row = {"sender": "AGENT", "recipient": "USER", "content": text}
    columns = {"content": Measure(name=measure)}
    return Milestone(
        constraints=(
            Constraint(table="SANDBOX", relation="snapshot", rows=(row,), columns=columns),
        )
    )


@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        ("Cellular service is on", "Your cellular service is on.", 8 / 9),
        ("It is 3 days till Christmas", "there are days", 2 / 9),
        ("The cat sat", "sat cat the", 1 / 3),
        ("connected carefully", "Connection, careful!", 1.0),
        ("anything", "", 0.0),
    ],
)
def test_texts_are_compared_by_their_longest_common_subsequence(
    target: str, text: str, expected: float
) -> None:
    assert measure_rouge_l(target, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("days", "day"), ("flies", "fli"), ("dies", "die"), ("relational", "relat"),
        ("hopping", "hop"), ("hoping", "hope"), ("technology", "technolog"), ("agreed", "agre"),
        ("carefully", "care"), ("controlling", "control"), ("skies", "sky"), ("at", "at"),
    ],
)  # fmt: skip
def test_words_are_stemmed_as_the_library_nltk_stems_them(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_rows_are_assigned_so_that_their_mean_is_largest() -> None:
    pytest.importorskip("scipy")
    rows = [{"name": "Ada Berg"}, {"name": "Hugo Novak"}, {"name": "Ines Xu"}]
    constraint = Constraint(
        table="CONTACT",
        relation="snapshot",
        rows=({"name": "Novak"}, {"name": "Ada Berg Xu"}, {"name": "Ines"}),
        columns={"name": Measure(name="rouge_l")},
    )
    expected = (2 / 3 * 0.8 * 2 / 3) ** (1 / 3)
    assert measure_constraint(constraint, rows, None) == pytest.approx(expected)
    unlike = constraint.model_copy(update={"rows": ({"name": "A"}, {"name": "B"}, {"name": "C"})})
    assert measure_constraint(unlike, rows, None) == 0.0
    assert measure_constraint(constraint, rows[:2], None) == 0.0


def test_an_addition_keeps_every_row_that_was_there() -> None:
    added = {"name": "Zoe"}
    constraint = Constraint(table="CONTACT", relation="addition", rows=(added,), reference=-1)
    before = [{"name": "Ada"}, {"name": "Hugo"}]
    assert measure_constraint(constraint, [*before, added], before) == 1.0
    assert measure_constraint(constraint, [before[0], added], before) == 0.0
    assert measure_constraint(constraint, before, before) == 0.0
    removal = constraint.model_copy(update={"relation": "removal"})
    assert measure_constraint(removal, before, [*before, added]) == 1.0


def test_the_calls_of_one_message_take_effect_with_the_first_answer() -> None:
    record = recording(
        calls(("set_cellular_service_status", {"on": True}), ("set_wifi_status", {"on": False})),
        says("assistant", "Done"),
        says("user", STOP),
    )
    states = [record.read_table(s, "SETTING")[0] for s in record.snapshots]
    assert [state["cellular"] for state in states] == [False] * 3 + [True] * 4
    assert [state["wifi"] for state in states] == [True] * 3 + [False] * 4
    assert [s.recipient for s in record.snapshots] == [
        "AGENT", "EXECUTION_ENVIRONMENT", "EXECUTION_ENVIRONMENT", "AGENT", "AGENT", "USER",
        "EXECUTION_ENVIRONMENT",
    ]  # fmt: skip


def test_a_failed_call_leaves_no_trace() -> None:
    record = recording(calls(("set_wifi_status", {"on": True}), ("get_wifi_status", {})))
    traces = [s.trace.name for s in record.snapshots if s.trace is not None]
    assert traces == ["get_wifi_status"]


def test_milestones_are_reached_in_order() -> None:
    graph = MilestoneGraph(
        milestones=(heard("first"), heard("second")),
        edges=((0, 1),),
    )
    forwards = recording(
        says("assistant", "first"), says("user", "ok"), says("assistant", "second")
    )
    backwards = recording(
        says("assistant", "second"), says("user", "ok"), says("assistant", "first")
    )
    assert match(graph, forwards).similarity == 1.0
    assert match(graph, backwards).similarity == 0.5
    free = MilestoneGraph(milestones=(*graph.milestones, heard("ok")), edges=((0, 2), (1, 2)))
    assert match(free, backwards).similarity == pytest.approx(2 / 3)


def test_a_guardrail_makes_a_milestone_worth_nothing() -> None:
    graph = MilestoneGraph(
        milestones=(heard("start"), switched_on("cellular", reference=0)), edges=((0, 1),)
    )
    on = ("set_cellular_service_status", {"on": True})
    removed = ("remove_contact", {"person_id": "p1"})
    careful = recording(says("assistant", "start"), says("user", "ok"), calls(on))
    careless = recording(says("assistant", "start"), says("user", "ok"), calls(removed), calls(on))
    assert match(graph, careful).similarity == 1.0
    assert match(graph, careless).similarity == 0.5


def test_a_minefield_makes_the_score_0_and_no_milestones_make_it_1() -> None:
    forbidden = MilestoneGraph(milestones=(switched_on("cellular"),))
    record = recording(calls(("set_cellular_service_status", {"on": True})))
    assert score(Milestones(forbidden=forbidden), record).similarity == 0.0
    assert score(Milestones(forbidden=forbidden), recording()).similarity == 1.0
    wanted = MilestoneGraph(milestones=(switched_on("cellular"),))
    assert score(Milestones(wanted=wanted), record).similarity == 1.0


def _best_of_all(graph: MilestoneGraph, record: Recording) -> float:
    """Every assignment tried, for graphs whose constraints refer to no milestone."""
    places = graph.places
    singles = {
        place: [
            match(
                MilestoneGraph(milestones=(graph.milestones[place],)), _only(record, moment)
            ).similarity
            for moment in range(len(record.snapshots))
        ]
        for place in places
    }
    best = 0.0
    for moments in product(range(len(record.snapshots)), repeat=len(places)):
        at = dict(zip(places, moments, strict=True))
        if all(at[a] <= at[b] for a, b in graph.edges):
            best = max(best, sum(singles[place][at[place]] for place in places))
    return best / len(graph.milestones)


def _only(record: Recording, moment: int) -> Recording:
    one = Recording.__new__(Recording)
    one.__dict__.update(record.__dict__)
    one.snapshots = [record.snapshots[moment]]
    return one


@pytest.mark.parametrize(
    "edges", [((0, 1), (1, 2)), ((0, 2), (1, 2)), ((0, 1), (0, 2)), ((2, 1), (1, 0))]
)
def test_the_assignment_is_the_best_of_all(edges: Sequence[tuple[int, int]]) -> None:
    texts = ["wifi is on now", "the cat", "cellular service", "wifi service", "on the cat now"]
    messages = [m for text in texts for m in (says("assistant", text), says("user", "go on"))]
    record = recording(*messages[:-1])
    graph = MilestoneGraph(
        milestones=(heard("the wifi is on"), heard("the cat service"), heard("wifi service now")),
        edges=tuple(edges),
    )
    assert match(graph, record).similarity == pytest.approx(_best_of_all(graph, record))


def test_six_milestones_that_are_never_reached_are_scored_at_once() -> None:
    milestones = tuple(switched_on("cellular", reference=i - 1 if i else -1) for i in range(6))
    graph = MilestoneGraph(milestones=milestones, edges=tuple((i, i + 1) for i in range(5)))
    talk = [m for _ in range(15) for m in (says("assistant", "hm"), says("user", "go on"))]
    assert match(graph, recording(*talk)).similarity == 0.0


def test_a_circle_and_a_milestone_that_there_is_not_are_refused() -> None:
    two = (heard("a"), heard("b"))
    with pytest.raises(ValueError, match="circle"):
        MilestoneGraph(milestones=two, edges=((0, 1), (1, 0)))
    with pytest.raises(ValueError, match="no milestone 2"):
        MilestoneGraph(milestones=two, edges=((0, 2),))
