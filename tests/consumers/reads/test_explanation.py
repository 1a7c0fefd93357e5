"""Why something is as it is: the walk from a route back to the rollouts."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from consumers.reads.explanation import Node, UnknownNode, explain
from events.envelope import derive_id
from events.gate import Check
from events.learning import Directive, DirectiveWritten, JobRound, Quota
from events.rollouts import Task as TaskData
from events.serving import GateDecided
from tests.consumers.cycling import (
    PATTERN,
    Leading,
    cycle_id,
    diagnosed,
    job_over,
    proposed,
    requested,
    started,
)
from tests.consumers.deciding import passed, routed
from tests.consumers.folding import ended, folded_position

JOB = derive_id("job", cycle_id())
FAILED = ("r1", "r2")


def directed() -> DirectiveWritten:
    """Two tasks for one pattern, which two failures show."""
    quota = Quota(
        pattern=PATTERN, tasks=2, priority=0.5, status="NEW", examples=FAILED,
        description="It forgets the change.", root_cause="It takes a yes for the end.",
    )  # fmt: skip
    return DirectiveWritten(cycle=cycle_id(), round=0, directive=Directive(quotas=(quota,)))


@pytest.fixture
def promoted(engine: Engine) -> Leading:
    """An adapter that a cycle trained for a pattern, and that answers the agent now."""
    leading = Leading(engine)
    leading.log.append([ended(name, task=TaskData(id="t", environment="shop")) for name in FAILED])
    leading.all(started())
    first = proposed("written-1").model_copy(update={"source_rollout": "r2"})
    leading.all(
        diagnosed(folded_position(engine) or {"rollouts": {}}), directed(), first,
        proposed("written-2"), requested(), job_over(),
    )  # fmt: skip
    produced, *gated = passed("better")
    leading.all(
        produced.model_copy(update={"job": JOB}), *gated, routed("promoted", {"better": 1.0})
    )
    return leading


def walked(node: Node) -> Iterator[tuple[str, str]]:
    """Every node below, the first way down first."""
    yield node.kind, node.node
    for one in node.because:
        yield from walked(one)


def test_a_route_is_explained_down_to_its_rollouts(promoted: Leading) -> None:
    with promoted.tables() as connection:
        found = explain(connection, "agent")
    assert list(walked(found)) == [
        ("route", "agent"), ("adapter", "better"), ("job", JOB), ("cycle", cycle_id()),
        ("pattern", PATTERN), ("rollout", "r1"), ("rollout", "r2"), ("task", "written-1"),
        ("rollout", "r2"), ("task", "written-2"),
    ]  # fmt: skip
    assert found.said.startswith("promoted: better 100%")
    adapter = found.because[0]
    assert adapter.said.startswith(
        "promoted; answers agent now, 100%; for cancel; gate PROMOTE over 64 tasks"
    )


@pytest.mark.parametrize(
    ("name", "kind", "below"),
    [
        ("better", "adapter", 1), (JOB, "job", 1), (cycle_id(), "cycle", 1),
        ("written-1", "task", 1), ("written-2", "task", 0), ("r1", "rollout", 0),
    ],
)  # fmt: skip
def test_everything_on_the_way_can_be_asked_for(
    promoted: Leading, name: str, kind: str, below: int
) -> None:
    with promoted.tables() as connection:
        found = explain(connection, name)
    assert (found.node, found.kind, len(found.because)) == (name, kind, below)
    assert found.said


def test_what_a_later_job_of_a_cycle_wrote_in_its_round_was_not_written_before(
    engine: Engine,
) -> None:
    leading = Leading(engine)
    later = JobRound(job="job-b", number=1)
    weakness = Quota(pattern=PATTERN, tasks=1, priority=0.5, status="NEW", description="Later.")
    begun = DirectiveWritten(
        cycle=cycle_id(), round=0, directive=Directive(quotas=(weakness,)), job_round=later
    )
    leading.all(
        started(), diagnosed({"rollouts": {}}), directed(), proposed("before"),
        requested(name="job-a", skill="a"), requested(name="job-b", skill="b"), begun,
        proposed("within").model_copy(update={"job_round": later}),
    )  # fmt: skip
    with leading.tables() as connection:
        (pattern,) = explain(connection, cycle_id()).because
        written = explain(connection, "within")
    assert [node.node for node in pattern.because if node.kind == "task"] == ["before"]
    assert "Later." in written.said


def test_a_pattern_of_a_cycle_and_each_task_say_what_the_directive_says(promoted: Leading) -> None:
    words = "It forgets the change.; cause: It takes a yes for the end."
    with promoted.tables() as connection:
        (pattern,) = explain(connection, cycle_id()).because
        task = explain(connection, "written-1")
    assert pattern.said.endswith(words)
    assert task.said.startswith(f"written for {PATTERN}; inherit")
    assert task.said.endswith(f"new; {words}")


def test_a_route_after_a_rollback_names_the_adapter_that_was_taken_out(promoted: Leading) -> None:
    promoted.all(routed("rollback", {None: 1.0}))
    with promoted.tables() as connection:
        found = explain(connection, "agent")
    assert found.said.startswith("rollback: base 100%")
    assert [(one.node, one.said.split(";")[0]) for one in found.because] == [
        ("better", "rolled_back")
    ]
    assert "answers" not in found.because[0].said


def test_an_adapter_is_explained_by_what_it_won_and_by_what_it_went_on_from(
    promoted: Leading,
) -> None:
    job = requested(2, name=derive_id("job", "second"))
    spec = job.spec.model_copy(update={"parent": "/adapters/better"})
    won = Check(name="target", verdict="PASS", value=0.25, limit=0.02, low=0.1, tasks=64)
    produced, staged, evaluated, decided = passed("newer", "better")
    assert isinstance(decided, GateDecided)
    report = decided.report.model_copy(update={"checks": (won,)})
    promoted.all(
        job.model_copy(update={"cycle": None, "spec": spec}),
        produced.model_copy(update={"job": job.job, "capability": "cancel"}),
        staged, evaluated, decided.model_copy(update={"report": report}),
    )  # fmt: skip
    with promoted.tables() as connection:
        found = explain(connection, "newer")
    assert "for cancel" in found.said
    assert "points of pass^1: target +25.0" in found.said
    (second,) = found.because
    assert list(walked(second)) == [("job", job.job), ("adapter", "better")]


def test_what_nobody_has_heard_of_is_said(engine: Engine) -> None:
    with Leading(engine).tables() as connection, pytest.raises(UnknownNode, match="'nothing'"):
        explain(connection, "nothing")


def test_the_beginning_of_a_name_is_enough_while_it_is_the_only_one(promoted: Leading) -> None:
    with promoted.tables() as connection:
        assert explain(connection, cycle_id()[:13]) == explain(connection, cycle_id())
        assert explain(connection, JOB[:13]) == explain(connection, JOB)
        assert explain(connection, "bet").node == "better"
        with pytest.raises(UnknownNode, match="'r': r1, r2, "):
            explain(connection, "r")
        with pytest.raises(UnknownNode, match="is called ''"):
            explain(connection, "")


def test_who_pushed_is_the_end_of_a_pushed_adapter(engine: Engine) -> None:
    leading = Leading(engine)
    produced, *_ = passed("own")
    leading.all(produced.model_copy(update={"job": None, "origin": "push"}))
    with leading.tables() as connection:
        found = explain(connection, "own")
    assert [one.kind for one in found.because] == ["push"]
