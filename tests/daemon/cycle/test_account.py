"""Where a cycle's gain went: constructed cycles, each of which lost it in another stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.reads.cycle_account import RoundPattern, TaskPair, TrafficCount, WrittenTask
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow
from daemon.cycle.account.account import CycleAccount, build_account, build_document, count_limits
from daemon.cycle.account.balance import LEAST, STAGES, Balance, find_limit
from daemon.cycle.account.estimates import estimate_gain, estimate_share, subtract
from daemon.cycle.account.facts import CanaryFacts, CycleFacts, PassCount, SampledRollout
from envs.statistics import Interval
from events.gate import Check, GateReport
from events.jobs import JobSpec, Sampler, TaskPool
from events.learning import CycleOutcome, Directive, JobOutcome, Quota
from events.lifecycle import State


def cycle(outcome: CycleOutcome, quotas: Mapping[str, int] | None) -> CycleRow:
    directive = None if quotas is None else Directive(
        quotas=tuple(
            Quota(pattern=pattern, tasks=tasks, priority=1.0, status="NEW")
            for pattern, tasks in quotas.items()
        )
    )  # fmt: skip
    return CycleRow(
        cycle="c", alias="agent", base="base", number=1, environment="shop", trigger="rollouts",
        reason="", position={}, slot=None, acted=None, round=0, directive=directive, findings=(),
        summary=None, analyzer=None, trouble=None, accepted=0, rejected=0, job=None, version=None,
        outcome=outcome, ended_because=f"it ended {outcome}", event="e", started="2026-01-01",
        diagnosed=None, directed=None, ended="2026-01-02",
    )  # fmt: skip


def job(outcome: JobOutcome, pools: Sequence[TaskPool]) -> JobRow:
    spec = JobSpec(
        job="j", base="base", checkpoint="/base", environment="shop", pools=tuple(pools),
        sampler=Sampler(groups=2, size=2, rollouts=64),
    )  # fmt: skip
    return JobRow(
        job="j", cycle="c", alias="agent", base="base", capability=None, branch=None,
        teaches=None, spec=spec, minutes=1.0,
        outcome=outcome, reason="", adapter=None, sha256=None, steps=4, rollouts=64, seconds=1.0,
        attempts=1, event="e", requested=None, ended=None,
    )  # fmt: skip


def candidate(*failed: str, overall: float = 0.0) -> AdapterRow:
    checks = [
        Check(name=name, verdict="FAIL", value=-0.2, limit=-0.05, tasks=64) for name in failed
    ]
    checks.append(
        Check(
            name="overall", verdict="PASS", value=overall, limit=-0.01, low=overall - 0.01, tasks=64
        )
    )
    report = GateReport(
        decision="REJECT" if failed else "PROMOTE", test="sign_flip", alpha=0.05, tasks=64,
        checks=tuple(checks),
    )  # fmt: skip
    return AdapterRow(
        adapter="a", alias="agent", base="base", sha256="0", path="/a", capability=None, job="j",
        origin="job", state=State.PROMOTED, reason="", replicas=(), distance=None, from_base=None,
        incumbent=None, gate=report, since=None, cause="e", offset=0,
    )  # fmt: skip


@dataclass
class Story:
    """A cycle over traffic of 1000 rollouts; each kind's failures have a pattern of its own, `x`
    for the kind `X`."""

    failures: Mapping[str, int] = field(default_factory=lambda: {"X": 150, "Y": 50})
    quotas: Mapping[str, int] | None = field(default_factory=lambda: {"x": 30, "y": 10})
    trained: Sequence[str] | None = ("X", "Y")
    """Kinds of the job's pools; None: no job."""
    job: JobOutcome = "trained"
    gains: Mapping[str, float] | None = field(default_factory=lambda: {"X": 0.3, "Y": 0.15})
    """Kind -> what the gate sees it gain, on 200 tasks of each; None: no adapter."""
    outcome: CycleOutcome = "promoted"
    failed: Sequence[str] = ()
    """Checks of the gate."""
    canary: CanaryFacts | None = None
    size: int = 500
    """Rollouts of each kind."""

    def facts(self) -> CycleFacts:
        traffic = []
        for kind, count in self.failures.items():
            passed = self.size - count
            traffic.append(TrafficCount(kind, None, True, passed))
            traffic.append(TrafficCount(kind, kind.lower(), False, count))
        row = cycle(self.outcome, self.quotas)
        facts = CycleFacts(
            row=row,
            traffic=tuple(count for count in traffic if count.rollouts),
            patterns=tuple(
                RoundPattern(kind.lower(), count, count / 100, "NEW")
                for kind, count in sorted(self.failures.items(), key=lambda item: -item[1])
            ),
        )
        if self.trained is None:
            return facts
        pools = [TaskPool(name=kind.lower(), tasks=(f"t/{kind}",)) for kind in self.trained]
        facts = replace(
            facts,
            row=replace(row, job="j"),
            job=job(self.job, pools),
            kinds={f"t/{kind}": kind for kind in self.trained},
            written=tuple(WrittenTask(f"t/{k}", k.lower(), k, "inherit") for k in self.trained),
        )
        if self.gains is None:
            return facts
        pairs = [
            TaskPair(f"{kind}/{number}", kind, 0.0, 1.0 if number < round(200 * gain) else 0.0)
            for kind, gain in self.gains.items()
            for number in range(200)
        ]
        return replace(
            facts, adapter=candidate(*self.failed), pairs=tuple(pairs), canary=self.canary
        )

    def account(self) -> CycleAccount:
        return build_account(self.facts())


def lost(account: CycleAccount) -> dict[str, float | None]:
    return {
        name: None if stage.lost is None else round(stage.lost.value, 2)
        for name, stage in account.stages.items()
    }


def canary_of(canary: tuple[int, int], incumbent: tuple[int, int]) -> CanaryFacts:
    """Judged and passed sessions of both arms."""
    return CanaryFacts(PassCount(*canary), PassCount(*incumbent), (0.5,), 10.0)


UNDECIDED = canary_of((20, 18), (20, 17))


@pytest.mark.parametrize(
    ("story", "limit"),
    [
        # X costs 15 points of traffic and got no task of the directive.
        (Story(quotas={"y": 40}, trained=("Y",), gains={"X": 0.0, "Y": 0.1}), "diagnosis"),
        # It got 30 of 40, and no task for it passed its checks.
        (Story(trained=("Y",), gains={"X": 0.0, "Y": 0.1}), "tasks"),
        (Story(gains={"X": 0.02, "Y": 0.0}), "learner"),
        (Story(outcome="rejected", failed=("slice Z",)), "gate"),
        (Story(outcome="inconclusive", canary=UNDECIDED), "canary"),
        (Story(outcome="rolled_back", canary=UNDECIDED), "canary"),
    ],
)
def test_the_stage_that_lost_most_is_the_limit(story: Story, limit: str) -> None:
    account = story.account()
    assert account.limit.stage == limit, account.limit
    assert account.limit.verdict == "shown"
    assert [name for name, stage in account.stages.items() if stage.verdict == "limits"] == [limit]


def test_points_are_followed_from_traffic_to_promotion() -> None:
    points = Story().account().balance
    values = [points.potential, points.directed, points.aimed, points.learnt, points.kept]
    # 200 of 1000 failed; the gate saw .3 of one half of the traffic gained, and .15 of the other.
    assert [value and round(value.value, 6) for value in values] == [20, 20, 20, 22.5, 22.5]
    assert points.learnt is not None
    assert points.learnt.low < 22.5 < points.learnt.high


def test_a_cycle_that_kept_all_that_traffic_lost_has_no_limit() -> None:
    account = Story(gains={"X": 0.3, "Y": 0.1}).account()
    assert lost(account) == dict.fromkeys(STAGES, 0.0)
    assert (account.limit.stage, account.limit.verdict) == (None, "nothing_lost")
    assert account.limit_name == "nothing lost"


def test_traffic_without_a_failure_has_nothing_to_lose() -> None:
    account = Story(
        failures={"X": 0, "Y": 0}, quotas={}, trained=None, outcome="nothing_learnable"
    ).account()
    assert account.limit.verdict == "nothing_lost"


def test_few_rollouts_blame_no_stage() -> None:
    # The same shares as where the gate is the limit, on 20 rollouts.
    few = Story(
        failures={"X": 3, "Y": 1}, size=10, gains={"X": 0.25, "Y": 0.05}, outcome="rejected",
        failed=("slice Z",),
    )  # fmt: skip
    account = few.account()
    assert (account.limit.stage, account.limit.verdict) == (None, "not_shown")
    assert "not shown to be more than" in account.limit.because
    many = replace(few, failures={"X": 150, "Y": 50}, size=500)
    assert many.account().limit.stage == "gate"


def test_a_gain_that_the_gate_does_not_show_is_not_blamed_on_it() -> None:
    facts = Story(outcome="rejected", failed=("target",)).facts()
    pairs = tuple(TaskPair(f"X/{n}", "X", 0.0, 1.0 if n == 0 else 0.0) for n in range(8))
    account = build_account(replace(facts, pairs=pairs))
    assert account.stages["gate"].verdict == "not_shown"
    assert (account.limit.stage, account.limit.verdict) == (None, "not_shown")


def test_a_candidate_that_live_traffic_refutes_had_learnt_nothing() -> None:
    worse = canary_of((200, 100), (200, 180))
    account = Story(outcome="rolled_back", canary=worse).account()
    assert lost(account)["canary"] == 0
    assert lost(account)["learner"] == 20
    assert account.limit.stage == "learner"
    canary: Any = account.stages["canary"].figures
    assert canary.refuted


@pytest.mark.parametrize(
    ("story", "stages", "limit"),
    [
        (Story(quotas={}, trained=None, outcome="nothing_learnable"), {"diagnosis": 20.0},
         "diagnosis"),
        (Story(trained=None, outcome="nothing_learnable"), {"tasks": 20.0}, "tasks"),
        (Story(job="competence_gap", gains=None, outcome="nothing_learnable"), {"learner": 20.0},
         "learner"),
        (Story(job="failed", gains=None, outcome="failed"), {"learner": 20.0}, "learner"),
    ],
)  # fmt: skip
def test_a_cycle_that_ended_early_lost_all_where_it_ended(
    story: Story, stages: dict[str, float], limit: str
) -> None:
    account = story.account()
    assert {name: value for name, value in lost(account).items() if value} == stages
    assert account.limit.stage == limit
    assert account.limit.stage is not None
    later = STAGES[[*STAGES].index(account.limit.stage) + 1 :]
    assert {account.stages[stage].verdict for stage in later} == {"not_reached"}


@pytest.mark.parametrize(
    ("story", "unmeasured"),
    [
        (Story(quotas=None, trained=None, outcome="cancelled"), 20.0),
        (Story(trained=None, outcome="cancelled"), 20.0),
        (Story(job="cancelled", gains=None, outcome="cancelled"), 20.0),
        (Story(outcome="cancelled"), 22.5),
        # Its adapter could not be played: no gate measured it.
        (Story(gains=None, outcome="rejected"), 20.0),
    ],
)
def test_a_cycle_that_was_not_measured_to_its_end_blames_no_stage(
    story: Story, unmeasured: float
) -> None:
    account = story.account()
    assert (account.limit.stage, account.limit.verdict) == (None, "not_measured")
    assert account.balance.unmeasured == pytest.approx(unmeasured)
    assert account.limit_name == "not measured"


def test_a_round_without_a_judged_rollout_has_no_points() -> None:
    facts = replace(Story().facts(), traffic=(), unjudged=40)
    account = build_account(facts)
    assert account.balance.potential is None
    assert account.limit.verdict == "not_measured"
    assert "40 unjudged" in account.stages["diagnosis"].because


def test_failures_without_a_kind_count_by_their_pattern() -> None:
    facts = Story(quotas={"x": 40}, trained=("X",), gains={"X": 0.1}).facts()
    unnamed = tuple(replace(count, kind=None) for count in facts.traffic)
    account = build_account(replace(facts, traffic=unnamed, kinds={"t/X": None}, pairs=()))
    assert lost(account)["diagnosis"] == 5, "the failures of pattern y"
    diagnosis: Any = account.stages["diagnosis"].figures
    assert [(kind.kind, kind.failures) for kind in diagnosis.kinds] == [("unknown", 200)]
    assert (diagnosis.weakest, diagnosis.weakest_first) == ((), None)


def test_without_kinds_the_gain_is_what_the_gate_says_of_all_its_tasks() -> None:
    facts = replace(Story().facts(), pairs=(), adapter=candidate(overall=0.07))
    learnt = build_account(facts).balance.learnt
    assert learnt is not None
    assert learnt.value == pytest.approx(7)
    # Its bound is one-sided at 5 %: 1 point below is 1.645 standard errors.
    assert learnt.low == pytest.approx(7 - 1.96 / 1.645, abs=0.01)


def test_the_weakest_kind_is_named_with_those_not_shown_to_fail_less() -> None:
    figures: Any = Story(failures={"X": 150, "Y": 50}).account().stages["diagnosis"].figures
    assert figures.weakest == ("X",)
    assert figures.weakest_first is True
    figures = Story(failures={"X": 55, "Y": 50}).account().stages["diagnosis"].figures
    assert figures.weakest == ("X", "Y")
    facts = replace(
        Story().facts(),
        patterns=(RoundPattern("y", 50, 0.9, "NEW"), RoundPattern("x", 150, 0.1, "NEW")),
    )
    account = build_account(facts)
    figures = account.stages["diagnosis"].figures
    assert (figures.ranked_first, figures.weakest_first) == ("Y", False)
    assert account.stages["diagnosis"].because == "X fails most and is not ranked first, Y is"


def test_a_quota_falls_to_kinds_as_the_failures_of_its_pattern_do() -> None:
    facts = Story(quotas={"x": 40}, trained=("X",)).facts()
    shared = (*facts.traffic, TrafficCount("Z", "x", False, 50))
    figures: Any = build_account(replace(facts, traffic=shared)).stages["diagnosis"].figures
    assert {kind.kind: kind.quota for kind in figures.kinds} == {"X": 30, "Y": 0, "Z": 10}
    assert figures.without_quota == ("Y",)


def sample_groups(*groups: tuple[int, str, Sequence[bool]]) -> tuple[SampledRollout, ...]:
    """(batch, task, verdicts); the first batch is of an untrained policy."""
    return tuple(
        SampledRollout(batch, number, task, verdict, float(verdict), batch == 0)
        for number, (batch, task, verdicts) in enumerate(groups)
        for verdict in verdicts
    )


def test_tasks_easier_than_the_traffic_of_their_kind_are_named() -> None:
    facts = Story().facts()  # X passes 70 % of its traffic
    easy = replace(facts, sampled=sample_groups(*((0, "t/X", [True] * 8) for _ in range(8))))
    account = build_account(easy)
    figures: Any = account.stages["tasks"].figures
    x, y = figures.kinds
    assert (x.kind, x.easier, x.sampled.attempts) == ("X", True, 64)
    assert y.easier is None, "none of them was sampled before a step"
    assert "easier than the traffic of X" in account.stages["tasks"].because
    hard = replace(facts, sampled=sample_groups(*((0, "t/X", [True, False]) for _ in range(8))))
    assert "not shown to be easier" in build_account(hard).stages["tasks"].because


def test_a_kind_with_many_failures_and_few_rollouts_is_named() -> None:
    groups = [(batch, "t/Y", [True, False]) for batch in range(15)]
    facts = replace(Story().facts(), sampled=sample_groups(*groups, (15, "t/X", [False, False])))
    account = build_account(facts)
    assert "few rollouts for X;" in account.stages["tasks"].because
    figures: Any = account.stages["tasks"].figures
    shares = {kind.kind: (kind.rollout_share, kind.starved) for kind in figures.kinds}
    assert shares == {"X": (1 / 16, True), "Y": (15 / 16, False)}


def test_a_pool_is_told_from_its_first_to_its_last_part() -> None:
    groups = [
        (0, "t/X", [False, False]), (0, "t/X", [True, False]), (1, "t/X", [True, False]),
        (2, "t/Y", [True, True]), (3, "t/X", [True, True]),
    ]  # fmt: skip
    figures: Any = build_account(replace(Story().facts(), sampled=sample_groups(*groups)))
    learner, tasks = figures.stages["learner"].figures, figures.stages["tasks"].figures
    x = learner.pools[0]
    assert (x.pool, x.rollouts, x.groups, x.informative) == ("x", 8, 4, 2)
    assert (x.first.passed, x.first.attempts, x.last.passed, x.last.attempts) == (1, 4, 2, 2)
    assert (x.first_reward, x.last_reward) == (0.25, 1.0)
    assert tasks.passed_share == pytest.approx(4 / 10), "two of five groups only passed"
    assert learner.kinds[0].left == pytest.approx(15 - 15), "the gate saw all of X gained"


def test_a_kind_whose_tasks_were_written_while_the_job_ran_is_aimed_at() -> None:
    facts = Story(trained=("Y",), gains={"X": 0.0, "Y": 0.1}).facts()
    later = WrittenTask("t/later", "x", "X", "inherit")
    facts = replace(facts, written=(*facts.written, later), kinds={**facts.kinds, "t/later": "X"})
    assert lost(build_account(facts))["tasks"] == 15, "it was not sampled"
    account = build_account(replace(facts, sampled=sample_groups((1, "t/later", [True, False]))))
    assert lost(account)["tasks"] == 0
    learner: Any = account.stages["learner"].figures
    assert [(pool.pool, pool.replay) for pool in learner.pools] == [("x", False)]


def test_a_task_of_no_known_pool_is_not_counted_as_aimed() -> None:
    facts = replace(Story().facts(), sampled=sample_groups((0, "elsewhere", [True, False])))
    learner: Any = build_account(facts).stages["learner"].figures
    assert [(pool.pool, pool.replay) for pool in learner.pools] == [("unknown", True)]
    assert learner.kinds == ()


def test_what_was_not_recorded_is_said() -> None:
    account = Story().account()
    assert account.stages["learner"].because.endswith("what was sampled is not recorded")
    assert "is not recorded" in account.stages["tasks"].because
    learner: Any = account.stages["learner"].figures
    assert (learner.recorded, learner.references, learner.pools) == (0, None, ())


def test_what_the_gate_threw_away_is_named_with_its_checks_and_its_heirs() -> None:
    facts = Story(outcome="rejected", failed=("slice Z", "tokens")).facts()
    because = build_account(replace(facts, successors=(2, 3))).stages["gate"].because
    assert "threw away 22.5 points" in because
    assert because.endswith("slice Z, tokens, carried on by cycle 2, carried on by cycle 3")


def test_limits_are_counted_over_cycles() -> None:
    stories = [
        Story(quotas={"y": 40}, trained=("Y",), gains={"Y": 0.1}),
        Story(gains={"X": 0.0, "Y": 0.0}),
        Story(gains={"X": 0.0, "Y": 0.0}),
        Story(outcome="cancelled"),
    ]
    assert count_limits(story.account() for story in stories) == {
        "diagnosis": 1, "tasks": 0, "learner": 2, "gate": 0, "canary": 0, "not measured": 1,
    }  # fmt: skip


def test_a_document_holds_every_stage_with_its_figures() -> None:
    document = build_document(Story(outcome="rejected", failed=("slice Z",)).account())
    assert tuple(document["stages"]) == STAGES
    assert document["points"]["potential"]["value"] == pytest.approx(20)
    assert document["limit"]["stage"] == "gate"
    assert document["stages"]["gate"]["failed"][0]["check"] == "slice Z"


OUTCOMES: tuple[CycleOutcome, ...] = ("promoted", "rejected", "rolled_back", "inconclusive")
KINDS = st.sampled_from("XYZ")


@settings(max_examples=40, deadline=None)
@given(
    failures=st.dictionaries(KINDS, st.integers(0, 200), min_size=1),
    quotas=st.dictionaries(st.sampled_from("xyz"), st.integers(1, 40), min_size=1),
    trained=st.lists(KINDS, min_size=1, unique=True),
    gains=st.dictionaries(KINDS, st.sampled_from([0.0, 0.05, 0.3]), min_size=1),
    outcome=st.sampled_from(OUTCOMES),
)
def test_what_the_stages_lost_and_what_was_kept_is_all_of_the_potential(
    failures: dict[str, int], quotas: dict[str, int], trained: list[str],
    gains: dict[str, float], outcome: CycleOutcome,
) -> None:  # fmt: skip
    story = Story(failures, quotas, trained, "trained", gains, outcome)
    if not failures.keys() & gains.keys():
        return
    balance = story.account().balance
    assert balance.potential is not None
    assert balance.kept is not None
    losses = [loss.value for loss in balance.lost.values() if loss is not None]
    assert len(losses) == len(STAGES)
    assert sum(losses) + balance.kept.value == pytest.approx(balance.potential.value)


def test_the_limit_has_to_lose_more_than_each_other_stage_with_its_interval() -> None:
    def limit_of(**losses: Interval) -> Any:
        zero = Interval(0.0, 0.0, 0.0)
        lost: Any = {stage: losses.get(stage, zero) for stage in STAGES}
        return find_limit(Balance(Interval(9, 8, 10), None, None, None, None, None, lost, 0.0))

    apart = limit_of(tasks=Interval(6, 5, 7), gate=Interval(3, 2, 4))
    assert (apart.stage, apart.verdict) == ("tasks", "shown")
    close = limit_of(tasks=Interval(6, 2.5, 9), gate=Interval(3, 2, 4))
    assert (close.stage, close.verdict) == (None, "not_shown")
    assert "gate 3.0 points [2.0, 4.0]" in close.because
    vague = limit_of(tasks=Interval(6, 0.1, 12))
    assert vague.verdict == "not_shown"
    small = limit_of(tasks=Interval(LEAST, 0.4, 0.6))
    assert small.verdict == "nothing_lost"


def test_a_difference_of_shares_is_as_wide_as_both_together() -> None:
    first, second = estimate_share(80, 100), estimate_share(60, 100)
    assert first is not None
    assert second is not None
    difference = subtract(first, second)
    assert difference.value == pytest.approx(0.2)
    # Newcombe (1998) gives [.073, .319] by Wilson's intervals; Clopper and Pearson's are wider.
    assert 0.05 < difference.low < 0.073
    assert 0.319 < difference.high < 0.34
    assert estimate_share(0, 0) is None


def test_the_interval_of_a_gain_grows_with_fewer_rollouts_to_weigh_it_by() -> None:
    differences = {"X": [1.0] * 100, "Y": [0.0] * 100}
    wide, narrow = (estimate_gain({"X": n, "Y": n}, differences) for n in (10, 1000))
    assert wide is not None
    assert narrow is not None
    assert wide.value == narrow.value == pytest.approx(0.5)
    # Of 20 rollouts a share of one half has a standard error of .112.
    assert wide.high - wide.value == pytest.approx(1.96 * 0.112, abs=0.005)
    assert narrow.high - narrow.value < 0.03


def test_a_kind_without_tasks_at_the_gate_counts_as_unchanged() -> None:
    gain = estimate_gain({"X": 20, "Y": 80}, {"X": [1.0, 0.0] * 50})
    assert gain is not None
    assert gain.value == pytest.approx(0.1)
    assert estimate_gain({"X": 1}, {"Y": [1.0]}) is None
