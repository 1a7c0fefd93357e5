"""The whole engine: events, quotas, rounds of reflection, and what goes wrong."""

from dataclasses import replace

import pytest

from daemon.methods.synthesis.engine import make_parts
from daemon.methods.synthesis.planner import plan_by_rule
from daemon.methods.synthesis.protocols import Failure, PlanHistory, PlanRequest, RevisionDraft
from daemon.methods.synthesis.reflection import RuleReviser
from daemon.methods.synthesis.stages import EarlierSet
from envs.environment import Environment
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.learning import PlanName, TaskProposed, TaskRejected
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import PlansRevised, PlansWritten
from tests.daemon.methods.synthesis.parts import FailingWriter, ask, count_proposals, run, select


def test_a_quota_is_filled_by_the_plans_in_turn() -> None:
    events = run(ask(12))
    ((event, written), *_) = events
    assert isinstance(written, PlansWritten)
    assert (event, len(written.entries)) == (written.plans, 4)
    assert written.patterns == ("wrong_value|cancel_order",)
    assert written.overlap <= 0.5
    proposals = select(events, TaskProposed)
    assert len(proposals) == 12
    names = [task.plan.plan for task in proposals if task.plan]
    assert names == [plan.plan for plan in written.entries] * 3
    assert len(select(events, TrajectoryVerified)) == 12
    assert not select(events, PlansRevised)
    assert len({event for event, _ in events}) == len(events)


def test_a_redo_writes_the_same_events() -> None:
    def failing() -> list[object]:
        environment = Shop()
        writer = FailingWriter(environment, share=2)
        return [*run(ask(24), replace(make_parts(environment), writer=writer), environment)]

    assert failing() == failing()


def test_a_rule_that_helps_stays_and_cites_its_failures() -> None:
    events = run(ask(48), replace(make_parts(Shop()), writer=FailingWriter(Shop())))
    first, *later = select(events, PlansRevised)
    kept = [revision for revision in first.revisions if revision.kept]
    assert kept
    rejections = {event for event, data in events if isinstance(data, TaskRejected)}
    for revision in first.revisions:
        assert set(revision.failures) <= rejections
        assert [rule.check for rule in revision.plan.rules] == ["leak"]
        assert "failed: leak" in revision.reason
    for revision in kept:
        assert revision.accepted == revision.tries > 0
        assert revision.accepted_before == 0
    last = select(events, TaskProposed)[-4:]
    assert {task.plan.revision for task in last if task.plan} == {1}
    assert len(later) <= 2


def test_tries_of_a_change_have_the_next_revision_until_it_stays() -> None:
    events = run(ask(48), replace(make_parts(Shop()), writer=FailingWriter(Shop())))
    place = next(n for n, (_, data) in enumerate(events) if isinstance(data, PlansRevised))
    (closed,) = (data for _, data in events[place : place + 1] if isinstance(data, PlansRevised))
    for revision in closed.revisions:
        name = revision.before
        named = [
            data
            for _, data in events[:place]
            if isinstance(data, TaskProposed | TaskRejected)
            and data.plan
            and data.plan.plan == name.plan
        ]
        later = [data for data in named if data.plan and data.plan.revision == name.revision + 1]
        assert len(later) == revision.tries
        assert sum(isinstance(data, TaskProposed) for data in later) == revision.accepted
        assert len(named) - len(later) == revision.tries_before


def test_a_rule_that_does_not_help_does_not_stay() -> None:
    writer = FailingWriter(Shop(), obeys=False)
    events = run(ask(32), replace(make_parts(Shop()), writer=writer))
    assert count_proposals(events) == 0
    rounds = select(events, PlansRevised)
    assert rounds
    assert not any(revision.kept for closed in rounds for revision in closed.revisions)
    assert "leak less with 0.50" in rounds[0].revisions[0].reason


def test_without_rounds_nothing_is_revised() -> None:
    events = run(ask(24, rounds=0), replace(make_parts(Shop()), writer=FailingWriter(Shop())))
    assert not select(events, PlansRevised)
    assert len(select(events, TaskRejected)) == 72


def test_a_writer_that_never_succeeds_ends_after_three_tries_a_place() -> None:
    writer = FailingWriter(Shop(), gives=False)
    events = run(ask(8), replace(make_parts(Shop()), writer=writer))
    rejections = select(events, TaskRejected)
    assert len(rejections) == 24
    assert {rejection.check for rejection in rejections} == {"synthesis"}


class Reckless(RuleReviser):
    """Renames plans, cites nothing, or is a model in trouble."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        draft = super().revise(environment, history)
        if draft is None:
            return None
        if self._fault == "renamed":
            return replace(draft, plan=draft.plan.model_copy(update={"plan": "other"}))
        if self._fault == "no failure":
            return replace(draft, failures=())
        if self._fault == "tool":
            return replace(draft, plan=draft.plan.model_copy(update={"tools": ("teleport",)}))
        self.trouble = "the model timed out"
        return replace(draft, writer="a-model")


@pytest.mark.parametrize("fault", ["renamed", "no failure", "tool"])
def test_a_revision_that_cannot_stand_is_not_tried(fault: str) -> None:
    parts = make_parts(Shop())
    parts = replace(parts, writer=FailingWriter(Shop()), reviser=Reckless(fault))
    events = run(ask(16), parts)
    assert not select(events, PlansRevised)
    assert count_proposals(events) == 0


def test_a_change_is_asked_for_only_of_plans_that_the_next_part_tries() -> None:
    """A model is paid for each."""

    class Counting(RuleReviser):
        asked = 0

        def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
            self.asked += 1
            return super().revise(environment, history)

    drafts = plan_by_rule(Shop(), PlanRequest("seed", 16)).entries
    failed = [Failure("event", "writing", "leak", "it names a tool")]
    entries = [
        PlanHistory(PlanName(plans="set", plan=plan.plan, revision=0), plan, 4, 2, failed)
        for plan in drafts
    ]
    reviser = Counting()
    request = ask(8, rounds=1, earlier=EarlierSet("set", tuple(entries)))
    (closed,) = select(run(request, replace(make_parts(Shop()), reviser=reviser)), PlansRevised)
    # The second part has four places, of which each second one tries the plan as it was.
    assert (reviser.asked, len(closed.revisions)) == (4, 2)


def test_a_place_has_no_more_tries_than_a_request_allows() -> None:
    environment = Shop()
    writer = FailingWriter(environment, obeys=False)
    events = run(ask(12, tries=1, rounds=0), replace(make_parts(environment), writer=writer))
    assert len(select(events, TaskRejected)) == 12


def test_the_trouble_of_a_model_that_revises_is_told() -> None:
    parts = make_parts(Shop())
    parts = replace(parts, writer=FailingWriter(Shop()), reviser=Reckless("trouble"))
    closed = select(run(ask(48), parts), PlansRevised)[0]
    assert (closed.writer, closed.trouble) == ("a-model", "the model timed out")


def test_an_environment_without_kinds_is_told_in_one_rejection() -> None:
    class Unplanned(Shop):
        capabilities: dict[str, str] = {}  # type: ignore[misc]

    ((_, rejected),) = run(ask(8), environment=Unplanned())
    assert isinstance(rejected, TaskRejected)
    assert rejected.check == "synthesis"
    assert "generates no tasks" in rejected.reason


def test_an_environment_that_raises_later_on_is_told_in_rejections() -> None:
    class Failing(Shop):
        broken = False

        def generate(self, capability: str, seed: int) -> TaskDefinition:
            if self.broken:
                raise RuntimeError("the disk is full")
            return super().generate(capability, seed)

    environment = Failing()
    plans = make_parts(environment)
    drafts = run(ask(4), plans, environment)
    assert count_proposals(drafts) == 4
    Failing.broken = True
    rejections = select(run(ask(4), plans, environment), TaskRejected)
    assert len(rejections) == 12
    assert all("RuntimeError: the disk is full" in data.reason for data in rejections)
