"""What a rejected candidate learnt may be where the next job begins."""

from typing import Any

import pytest
from sqlalchemy import Engine

from consumers.reads import learning, succession
from consumers.reads.serving import AdapterRow
from daemon.cycle.parent import MOST_TRIES, describe_parent, find_rejected_parent, is_worth_training
from events.envelope import derive_id
from events.gate import Check, GateReport, TargetReport
from events.learning import JobRequested, SkillsContrasted
from events.serving import GateDecided
from tests.consumers.cycling import Leading, cycle_id, job_over, over, requested, started
from tests.consumers.deciding import evaluated, moved, passed, produced, routed, staged
from tests.consumers.methods.skills.test_skills import CLEAR, contrast


def target(gain: float) -> TargetReport:
    return TargetReport(
        name="cancel", kinds={"cancel": 1.0}, tasks=64, gain=gain, low=gain - 0.1, p_value=0.2,
        level=0.05, verdict="FAIL",
    )  # fmt: skip


def check(name: str, verdict: str) -> Check:
    return Check.model_validate(
        {"name": name, "verdict": verdict, "value": 0, "limit": 0, "tasks": 64}
    )


def rejection(gain: float = 0.04, **verdicts: str) -> GateReport:
    """A report that shows no gain; the other checks are as named."""
    checks = [check("target", "FAIL"), check("slice refund", "EXTEND")]
    checks += [check(name, verdict) for name, verdict in verdicts.items()]
    return GateReport(
        decision="REJECT", test="sign_flip", alpha=0.05, tasks=64, checks=tuple(checks),
        targets=(target(gain),),
    )  # fmt: skip


def job_of(number: int, parent: str | None, skill: str | None = None) -> JobRequested:
    job = requested(number)
    spec = job.spec.model_copy(update={"parent": parent})
    return job.model_copy(update={"spec": spec, "skill": skill})


class Tries:
    """Cycles of one agent, each of which left a rejected candidate."""

    def __init__(self, engine: Engine) -> None:
        self.leading = Leading(engine)
        self.number = 0

    def reject(
        self, report: GateReport, parent: str | None = None, incumbent: str | None = None,
        skill: str | None = None,
    ) -> str:  # fmt: skip
        """Another cycle; the name of its candidate."""
        self.number += 1
        name = f"try-{self.number}"
        job = derive_id("job", cycle_id(self.number))
        self.leading.all(
            started(self.number), job_of(self.number, parent, skill), job_over(self.number),
            produced(name).model_copy(update={"job": job}), staged(name),
            evaluated(name, incumbent),
            GateDecided(adapter=name, alias="agent", incumbent=incumbent, report=report),
            over(self.number, "rejected"),
        )  # fmt: skip
        return name

    def parent(self, incumbent: AdapterRow | None = None) -> AdapterRow | None:
        """What the next cycle's job would train on from."""
        self.leading.all(started(self.number + 1))
        with self.leading.tables() as connection:
            cycle = learning.cycle(connection, cycle_id(self.number + 1))
            assert cycle is not None
            found = find_rejected_parent(connection, cycle, incumbent)
        self.leading.all(over(self.number + 1, "nothing_learnable"))
        self.number += 1
        return found

    def needed(self) -> frozenset[str]:
        with self.leading.tables() as connection:
            return succession.list_training_bases(connection)


def test_the_newest_candidate_that_harmed_nothing_is_trained_on_from(engine: Engine) -> None:
    tries = Tries(engine)
    assert tries.parent() is None
    name = tries.reject(rejection())
    found = tries.parent()
    assert found is not None
    assert found.adapter == name
    assert describe_parent(found) == (
        "rejected without harm: cancel +4.0 points over 64 tasks (p = 0.2)"
    )
    tries.leading.all(moved(name, "unloaded"))
    assert tries.parent() is not None, "nothing of it is deleted"
    assert tries.needed() == {name}
    tries.leading.all(moved(name, "collected"))
    assert tries.parent() is None, "its files are gone"


@pytest.mark.parametrize(
    ("report", "worth"),
    [
        (rejection(), True),
        (rejection(gain=-0.01), False),
        (rejection(overall="FAIL"), False),
        (rejection(violations="FAIL"), False),
        (rejection(golden="FAIL"), False),
        (rejection(0.04, **{"slice refund": "FAIL"}), False),
        (rejection(0.04, **{"slice refund": "FAIL", "overall": "EXTEND"}), False),
        (rejection(0.04, **{"slice refund": "FAIL", "overall": "PASS"}), True),
        (rejection(0.04, **{"best refund": "FAIL", "overall": "PASS"}), True),
        (rejection(0.04, **{"slice after an error": "FAIL", "overall": "PASS"}), False),
        (rejection(0.04, **{"slice refund": "FAIL", "overall": "PASS", "format": "FAIL"}), False),
        (rejection(-0.01, **{"slice refund": "FAIL", "overall": "PASS"}), False),
        (rejection().model_copy(update={"decision": "PROMOTE"}), False),
        (rejection().model_copy(update={"targets": ()}), False),
    ],
)
def test_a_candidate_that_lost_more_than_a_kind_of_task_is_none_to_go_on_from(
    report: GateReport, worth: bool
) -> None:
    assert is_worth_training(report) is worth


def test_what_a_candidate_lost_is_named_beside_what_it_gained(engine: Engine) -> None:
    tries = Tries(engine)
    tries.reject(rejection(0.04, **{"slice exchange": "FAIL", "overall": "PASS"}))
    found = tries.parent()
    assert found is not None
    assert describe_parent(found) == (
        "rejected for slice exchange +0.0 points, and it gained: cancel +4.0 points over 64 tasks "
        "(p = 0.2)"
    )


def test_a_chain_of_rejected_candidates_ends(engine: Engine) -> None:
    """Two tries in a row are trained on from; then the incumbent is."""
    tries = Tries(engine)
    path: str | None = None
    for _ in range(MOST_TRIES):
        name = tries.reject(rejection(), parent=path)
        found = tries.parent()
        assert found is not None
        assert found.adapter == name
        path = found.path
    tries.reject(rejection(), parent=path)
    assert tries.parent() is None
    tries.reject(rejection())
    assert tries.parent() is not None, "a chain of its own"


def test_after_another_incumbent_answers_it_is_no_parent(engine: Engine) -> None:
    tries = Tries(engine)
    tries.reject(rejection())
    tries.leading.all(*passed("other"), routed("promoted", {"other": 1.0}))
    with tries.leading.tables() as connection:
        (incumbent,) = succession.list_promotions(connection, "agent", "base")
    assert incumbent.adapter == "other"
    assert tries.parent(incumbent) is None
    assert tries.parent() is not None, "beside the base it was compared with"


def test_a_rejected_candidate_that_was_taken_out_of_service_is_no_parent(engine: Engine) -> None:
    """An operator had it answer, and then had the incumbent of its gate answer again."""
    tries = Tries(engine)
    tries.leading.all(*passed("first"), routed("promoted", {"first": 1.0}))
    with tries.leading.tables() as connection:
        (incumbent,) = succession.list_promotions(connection, "agent", "base")
    name = tries.reject(rejection(), incumbent="first")
    assert tries.parent(incumbent) is not None
    tries.leading.all(routed("operator", {name: 1.0}), routed("rollback", {"first": 1.0}))
    tries.leading.all(moved(name, "unloaded"))
    with tries.leading.tables() as connection:
        row = succession.find_last_candidate(connection, "agent")
    assert row is None or row.state == "unloaded"
    assert tries.parent(incumbent) is None


def test_after_a_job_that_left_nothing_the_incumbent_is_trained_on_from(engine: Engine) -> None:
    """Else a candidate that cannot be trained on from would be tried in every cycle."""
    tries = Tries(engine)
    name = tries.reject(rejection())
    tries.number += 1
    parent: dict[str, Any] = {"parent": f"/adapters/{name}"}
    job = job_of(tries.number, parent["parent"])
    tries.leading.all(started(tries.number), job)
    assert tries.needed() == {name}, "the open job reads it"
    tries.leading.all(job_over(tries.number, "failed"), over(tries.number, "failed"))
    assert tries.needed() == frozenset()
    assert tries.parent() is None


def test_what_a_job_for_a_skill_left_is_kept_while_it_may_be_trained_on_from(
    engine: Engine,
) -> None:
    tries = Tries(engine)
    name = tries.reject(rejection(), skill="cancelling")
    assert tries.needed() == frozenset(), "no comparison selected the skill"
    cancelling = contrast("cancelling", *10 * [CLEAR], patterns=("missing|cancel",))
    selected = SkillsContrasted(
        alias="agent", base="base", since=0, round=0, failures=9, successes=9, skills=(cancelling,)
    )
    tries.leading.all(selected, *passed("first"), routed("promoted", {"first": 1.0}))
    assert tries.needed() == {name}
    tries.leading.all(routed("rebased", {None: 1.0}, base="new"))
    assert tries.needed() == frozenset(), "on another base it is worth nothing"


def test_who_was_rolled_back_counts_as_no_promotion(engine: Engine) -> None:
    leading = Leading(engine)
    leading.all(*passed("first"), routed("promoted", {"first": 1.0}))
    leading.all(*passed("second", "first"), routed("promoted", {"second": 1.0}))
    with leading.tables() as connection:
        rows = succession.list_promotions(connection, "agent", "base")
    assert [row.adapter for row in rows] == ["first", "second"]
    leading.all(routed("rollback", {"first": 1.0}))
    with leading.tables() as connection:
        rows = succession.list_promotions(connection, "agent", "base")
        assert succession.list_promotions(connection, "agent", "another") == []
    assert [row.adapter for row in rows] == ["first"]
