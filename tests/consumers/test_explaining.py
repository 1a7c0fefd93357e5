"""Why something is as it is: from a route back to the rollouts, by tables of real decisions."""

import pytest
from sqlalchemy import Engine

from consumers.explaining import Node, Unexplained, explain
from events.learning import Directive, DirectiveWritten, Quota
from tests.consumers.cycling import (
    PATTERN,
    Leading,
    cycle_id,
    diagnosed,
    job_over,
    over,
    proposed,
    requested,
    started,
)
from tests.consumers.deciding import decided, evaluated, produced, routed, staged
from tests.consumers.folding import at, ended, fold, folded_position

ADAPTER = "agent-cancel"


@pytest.fixture
def home(engine: Engine) -> Leading:
    """One cycle, from two failures to a promotion."""
    leading = Leading(engine)
    leading.log.append([ended("fails", at(1)), ended("fails-too", at(2))])
    fold(leading.log, engine)
    quota = Quota(
        pattern=PATTERN, tasks=1, priority=0.5, status="NEW", examples=("fails", "fails-too")
    )
    directive = DirectiveWritten(cycle=cycle_id(), round=0, directive=Directive(quotas=(quota,)))
    job = requested()
    leading.claim(1)
    leading.all(started(), diagnosed(folded_position(engine)), directive, epoch=1)
    task = proposed("shop/1").model_copy(update={"source_rollout": "fails"})
    leading.all(task, job, epoch=1)
    made = produced(ADAPTER).model_copy(update={"job": job.job})
    leading.all(job_over(), made, staged(ADAPTER), evaluated(ADAPTER), decided(ADAPTER, "PROMOTE"))
    leading.all(routed("promoted", {ADAPTER: 1.0}))
    leading.all(over(), epoch=1)
    return leading


def explained(home: Leading, name: str) -> Node:
    with home.tables() as connection:
        return explain(connection, name)


def kinds(node: Node) -> list[str]:
    """What stands on the way down the first branch."""
    return [node.kind, *(kinds(node.because[0]) if node.because else [])]


def leaves(node: Node) -> set[str]:
    """What it rests on in the end."""
    if not node.because:
        return {f"{node.kind} {node.node}"}
    return set().union(*map(leaves, node.because))


def test_a_route_is_explained_down_to_its_rollouts(home: Leading) -> None:
    found = explained(home, "agent")
    assert kinds(found) == ["route", "adapter", "job", "cycle", "pattern", "rollout"]
    assert leaves(found) == {"rollout fails", "rollout fails-too"}
    assert found.said.startswith("promoted: agent-cancel 100%")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        (ADAPTER, "adapter", "promoted; gate PROMOTE over 64 tasks"),
        (requested().job, "job", "trained; 3 steps, 64 rollouts"),
        (cycle_id(), "cycle", "rollouts: 200 new rollouts; promoted; is promoted"),
        ("shop/1", "task", f"written for {PATTERN}; inherit; 1 checks passed"),
        ("fails", "rollout", "failed; "),
    ],
)
def test_each_thing_says_what_is_known_of_it(
    home: Leading, name: str, kind: str, said: str
) -> None:
    found = explained(home, name)
    assert (found.node, found.kind) == (name, kind)
    assert found.said.startswith(said)


def test_a_written_task_rests_on_the_rollout_that_it_inherits_from(home: Leading) -> None:
    assert kinds(explained(home, "shop/1")) == ["task", "rollout"]


def test_a_pushed_adapter_ends_at_its_directory(engine: Engine) -> None:
    leading = Leading(engine)
    leading.all(produced("pushed").model_copy(update={"job": None, "origin": "push"}))
    found = explained(leading, "pushed")
    assert [(one.kind, one.node) for one in found.because] == [("push", "/adapters/pushed")]


def test_what_nobody_knows_is_not_explained(home: Leading) -> None:
    with pytest.raises(Unexplained, match="'nobody'"):
        explained(home, "nobody")
