"""What was learnt from a person's rollouts, and the fold of their erasure."""

from sqlalchemy import Engine

from consumers import database
from consumers.folds.erasures import find_dependent_adapters, read_erasure_keys
from consumers.tables import Erasure
from events.learning import Directive, DirectiveWritten, PersonErased, Quota
from events.serving import AdapterMerge, MergedAdapter
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
from tests.consumers.deciding import composed, produced
from tests.consumers.folding import ended, fold, folded_position


def directed(number: int, *examples: str) -> DirectiveWritten:
    quota = Quota(pattern=PATTERN, tasks=1, priority=0.5, status="NEW", examples=examples)
    return DirectiveWritten(
        cycle=cycle_id(number), round=number - 1, directive=Directive(quotas=(quota,))
    )


def learn(leading: Leading, number: int, parent: str | None, *examples: str) -> None:
    """A cycle over a round with a rollout of its own, and its adapter `a<number>`."""
    leading.log.append([ended(f"of-{number}", task=None)])
    leading.all(started(number))
    leading.all(diagnosed(folded_position(leading.engine), number), directed(number, *examples))
    job = requested(number)
    task = proposed(f"written-{number}", number)
    spec = job.spec.model_copy(update={"parent": parent})
    leading.all(
        task.model_copy(update={"source_rollout": examples[0] if examples else None}),
        job.model_copy(update={"spec": spec}),
        job_over(number),
        produced(f"a{number}").model_copy(update={"job": job.job}),
    )
    leading.all(over(number))


def test_every_way_from_a_rollout_to_an_adapter_is_found(engine: Engine) -> None:
    leading = Leading(engine)
    leading.log.append([ended("r1"), ended("r2", task=None)])
    fold(leading.log, engine)
    learn(leading, 1, None, "r1")
    learn(leading, 2, "/adapters/a1")
    learn(leading, 3, None, "r0")
    members = tuple(MergedAdapter(adapter=name, weight=1.0) for name in ("a2", "a3"))
    merge = AdapterMerge(method="sum", rank=32, members=members)
    leading.all(
        produced("m").model_copy(update={"job": None, "origin": "push", "merge": merge}),
        produced("pushed").model_copy(update={"job": None, "origin": "push"}),
        composed("p", {"refunds": "a2", "rebooking": "a3"}),
        composed("q", {"refunds": "a3"}, router="pushed"),
    )
    with database.read_transaction(engine) as connection:
        found = {one.adapter: one.because for one in find_dependent_adapters(connection, ["r1"])}
        counted = {one.adapter: one.because for one in find_dependent_adapters(connection, ["r2"])}
        assert find_dependent_adapters(connection, ["r9"]) == []
    assert found == {
        "a1": ("counted", "example", "task"), "a2": ("parent",), "m": ("parent",),
        "p": ("parent",),
    }  # fmt: skip
    heirs = dict.fromkeys(("a2", "m", "p"), ("parent",))
    assert counted == {"a1": ("counted",), **heirs}


def test_an_erasure_counts_once(engine: Engine) -> None:
    leading = Leading(engine)
    leading.all(PersonErased(keyid="k1", events=3, rollouts=1), PersonErased(keyid="k2"))
    leading.all(PersonErased(keyid="k1", events=0, rollouts=0))
    with database.read_transaction(engine) as connection:
        assert read_erasure_keys(connection) == {"k1", "k2"}
        rows = connection.execute(Erasure.table().select().order_by("keyid")).all()
    assert [(row.keyid, row.events, row.rollouts) for row in rows] == [("k1", 3, 1), ("k2", 0, 0)]
