"""The account of a cycle is read from the tables alone: events are folded, and fold again to the
same account."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from consumers.reads import learning
from daemon.cycle.account.account import CycleAccount, build_document
from daemon.cycle.account.read import read_account
from daemon.solver.journal import rollout_id
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.jobs import Sampler, TaskPool
from events.learning import Decision, Directive, DirectiveWritten, JobRequested, Quota, TaskProposed
from events.log import Entry
from events.messages import Message
from events.rollouts import CallStarted, EventData, RolloutContent, RolloutEnded, Task
from events.serving import GateDecided
from tests.consumers.cycling import (
    Leading,
    cycle_id,
    diagnosed,
    job_over,
    over,
    rejected,
    requested,
    started,
)
from tests.consumers.deciding import evaluated, moved, produced, routed, staged
from tests.consumers.folding import at, fold, folded_position, fresh
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import tasks
from tests.daemon.cycle import undrawable
from tests.daemon.cycle.test_cost import report
from tests.daemon.cycle.test_planner import ask_planner
from tests.daemon.cycle.test_planner import home as open_home

WEAK = "Weak"
WELL = "Well"
CANDIDATE = "better"


class Agent:
    """One agent's cycle, written event by event."""

    def __init__(self, leading: Leading, alias: str = "agent") -> None:
        self.leading, self.alias = leading, alias
        self._count = 0

    def append(self, *events: EventData) -> None:
        """Append events of this moment."""
        self.leading.log.append([self._entry(data) for data in events])

    def decide(self, *decisions: Decision) -> None:
        """Append decisions of the leader, a second after each other."""
        for data in decisions:
            self.leading.write(data, f"{self.alias}-{self.leading.second}", 1)

    def fold(self) -> None:
        """Fold what was appended."""
        fold(self.leading.log, self.leading.engine)

    def _entry(self, data: EventData) -> Entry:
        self._count += 1
        name = derive_id("test", self.alias, data.TYPE, str(self._count))
        time = at(self.leading.second)
        envelope = Envelope(name, data.TYPE, data.VERSION, data.key(), time)
        return encode(envelope, data, recorded_ms=1).entry

    def rollouts(self, kind: str | None, passed: int, failed: int, **fields: Any) -> None:
        """Rollouts of traffic, or what `fields` say."""
        verdicts = [True] * passed + [False] * failed
        self.append(*(self._rollout(kind, verdict, **fields) for verdict in verdicts))

    def _rollout(self, kind: str | None, success: bool | None, **fields: Any) -> RolloutEnded:
        self._count += 1
        name = f"{self.alias}-{self._count}"
        task = None if kind is None else Task(id=f"shop/{kind}/{name}", capability=kind)
        given = {
            "rollout": name, "alias": self.alias, "base": "base", "policy": "base",
            "source": "test", "task": task, "success": success, "reward": float(success or False),
            "content": RolloutContent(messages=(Message(role="user", content=name),)),
        }  # fmt: skip
        return RolloutEnded.model_validate({**given, **fields})

    def begin(self, quotas: dict[str, int], number: int = 1) -> None:
        """A cycle up to its directive."""
        self.fold()
        position = folded_position(self.leading.engine)
        self.decide(
            started(number, self.alias),
            diagnosed(position, number, self.alias),
            DirectiveWritten(
                cycle=cycle_id(number, self.alias),
                round=0,
                directive=Directive(
                    quotas=tuple(
                        Quota(pattern=name, tasks=count, priority=1.0, status="NEW")
                        for name, count in quotas.items()
                    )
                ),
            ),
        )

    def propose(self, pattern: str, *names: str, number: int = 1) -> None:
        """Tasks of the weak kind, named as their environment would."""
        self.decide(
            *(
                TaskProposed(
                    alias=self.alias, base="base", pattern=pattern, mode="inherit",
                    task=Task(id=name, environment="shop", capability=WEAK, gold_actions=()),
                    cycle=cycle_id(number, self.alias),
                )
                for name in names
            )
        )  # fmt: skip

    def account(self, number: int = 1, engine: Engine | None = None) -> CycleAccount | None:
        self.fold()
        opened = self.leading if engine is None else Leading(engine, self.leading.log)
        with opened.tables() as connection:
            row = learning.cycle(connection, cycle_id(number, self.alias))
            assert row is not None
            return read_account(connection, row)


@pytest.fixture
def agent(engine: Engine) -> Agent:
    leading = Leading(engine)
    leading.claim(1)
    return Agent(leading)


def request(pattern: str, drawn: Sequence[str], traffic: Sequence[str]) -> JobRequested:
    """A job of two groups of two a batch."""
    base = requested()
    pools = (
        TaskPool(name=pattern, share=0.5, tasks=tuple(drawn)),
        TaskPool(name="traffic", share=0.5, tasks=tuple(traffic), replay=True),
    )
    sampler = Sampler(groups=2, size=2, rollouts=64)
    spec = base.spec.model_copy(update={"pools": pools, "sampler": sampler})
    return base.model_copy(update={"spec": spec})


def sample(agent: Agent, job: str, batch: int, steps: int, *groups: tuple[str, str]) -> None:
    """A batch of the job: task and verdicts (`+-`) of each group."""
    agent.append(
        *(
            RolloutEnded(
                rollout=rollout_id(job, f"{job}/{batch}/{group}/{member}"), alias=agent.alias,
                base="base", policy=f"{job}-{steps}", source="simulation", purpose="train",
                task=Task(id=task, capability=WEAK), trial=member, success=verdict == "+",
                reward=float(verdict == "+"),
            )
            for group, (task, verdicts) in enumerate(groups)
            for member, verdict in enumerate(verdicts)
        )
    )  # fmt: skip


def evaluate(agent: Agent, kind: str, incumbent: str, candidate: str) -> None:
    """Tasks that both played once, with their verdicts."""
    for policy, verdicts in (("base", incumbent), (CANDIDATE, candidate)):
        agent.append(
            *(
                agent._rollout(
                    kind, verdict == "+", policy=policy, purpose="evaluate", trial=0,
                    task=Task(id=f"gate/{kind}/{number}", capability=kind),
                    rollout=f"{kind}-{policy}-{number}",
                )
                for number, verdict in enumerate(verdicts)
            )
        )  # fmt: skip


def serve(agent: Agent, policy: str, passed: int, failed: int) -> None:
    """Sessions of a canary's time, each of one call."""
    shares = {CANDIDATE: 0.25, "base": 0.75}
    for verdict in [True] * passed + [False] * failed:
        agent._count += 1
        session = f"session-{agent._count}"
        agent.append(
            CallStarted(
                call=f"call-{session}", session=session, alias=agent.alias, base="base",
                policy=policy, routed="drawn", shares=shares,
            ),
            agent._rollout(WEAK, verdict, policy=policy, session=session),
        )  # fmt: skip


def run_cycle(agent: Agent, outcome: Any = "promoted") -> str:
    """A whole cycle over 40 rollouts of a weak kind and 60 of another; its job's id."""
    agent.rollouts(WEAK, passed=10, failed=30)
    agent.rollouts(WELL, passed=57, failed=3)
    agent.append(agent._rollout(WEAK, None))
    agent.begin({"known|tool": 2})
    agent.propose("known|tool", "t/1", "t/2")
    wanted = request("known|tool", ["t/1", "t/2"], ["well/1"])
    agent.decide(rejected("it says the answer"), wanted)
    sample(agent, wanted.job, 0, 0, ("t/1", "+-"), ("well/1", "++"))
    sample(agent, wanted.job, 1, 1, ("t/2", "+-"), ("t/2", "--"))
    # Batch 2 was of reference trajectories, which are not recorded.
    sample(agent, wanted.job, 3, 2, ("t/1", "++"), ("well/1", "++"))
    made = produced(CANDIDATE).model_copy(update={"job": wanted.job})
    agent.decide(job_over().model_copy(update={"rollouts": 14}), made, staged(CANDIDATE))
    evaluate(agent, WEAK, "-" * 60 + "+" * 20, "-" * 20 + "+" * 60)
    evaluate(agent, WELL, "+" * 80, "+" * 80)
    verdict = report(0.5).model_copy(
        update={"decision": "REJECT" if outcome == "rejected" else "PROMOTE"}
    )
    agent.decide(
        evaluated(CANDIDATE),
        GateDecided(adapter=CANDIDATE, alias="agent", incumbent=None, report=verdict),
    )
    if outcome == "rejected":
        agent.decide(over(outcome="rejected"))
        return wanted.job
    agent.decide(routed("canary", {CANDIDATE: 0.25, None: 0.75}))
    serve(agent, CANDIDATE, passed=9, failed=1)
    serve(agent, "base", passed=15, failed=15)
    agent.decide(routed("promoted", {CANDIDATE: 1.0}), over())
    agent.leading.second += 10
    serve(agent, CANDIDATE, passed=0, failed=5)
    return wanted.job


def test_a_whole_cycle_is_accounted_for_from_its_events(agent: Agent) -> None:
    run_cycle(agent)
    account = agent.account()
    assert account is not None
    stages: dict[str, Any] = {name: stage.figures for name, stage in account.stages.items()}
    diagnosis = stages["diagnosis"]
    assert (diagnosis.judged, diagnosis.unjudged) == (100, 1)
    assert [(kind.kind, kind.rollouts, kind.failures) for kind in diagnosis.kinds] == [
        (WEAK, 40, 30), (WELL, 60, 3),
    ]  # fmt: skip
    tasks = stages["tasks"]
    assert (tasks.written, tasks.rejected_by) == (2, {"leak": 1})
    assert [(kind.kind, kind.pooled) for kind in tasks.kinds] == [(WEAK, 2)]
    assert asdict(tasks.kinds[0].sampled) == {"attempts": 2, "passed": 1}, "batch 0, untrained"
    learner = stages["learner"]
    assert (learner.recorded, learner.unplaced, learner.references) == (12, 0, 2)
    pools = {pool.pool: pool for pool in learner.pools}
    assert list(pools) == ["known|tool", "traffic"]
    assert (pools["known|tool"].groups, pools["known|tool"].informative) == (4, 2)
    assert asdict(pools["known|tool"].last) == {"attempts": 2, "passed": 2}
    gate = stages["gate"]
    assert [(kind.kind, kind.tasks, round(kind.gain.value, 6)) for kind in gate.kinds] == [
        (WELL, 80, 0), (WEAK, 80, 50),
    ]  # fmt: skip
    assert account.balance.learnt is not None
    assert account.balance.learnt.value == pytest.approx(20), "50 points of 40 % of traffic"
    canary = stages["canary"]
    assert asdict(canary.canary) == {"attempts": 10, "passed": 9}, "not what followed the end"
    assert asdict(canary.incumbent) == {"attempts": 30, "passed": 15}
    assert canary.shares == (0.25,)
    # The failures of the other kind had no task: 3 of 100.
    assert account.balance.lost["diagnosis"] is not None
    assert account.balance.lost["diagnosis"].value == pytest.approx(3)


def test_another_fold_of_the_log_gives_the_same_account(agent: Agent, tmp_path: Path) -> None:
    run_cycle(agent, "rejected")
    again = fresh(tmp_path, "again")
    fold(agent.leading.log, again)
    first, second = agent.account(), agent.account(engine=again)
    again.dispose()
    assert first is not None
    assert second is not None
    assert json.dumps(build_document(first)) == json.dumps(build_document(second))
    assert first.stages["gate"].because.startswith("it measured 20.0 points")


def test_another_agent_changes_nothing(agent: Agent) -> None:
    other = Agent(agent.leading, "other")
    other.rollouts(WEAK, passed=0, failed=40)
    job = run_cycle(agent)
    sample(other, job, 0, 0, ("t/1", "--"))
    before = agent.account()
    other.rollouts(WELL, passed=0, failed=40)
    other.rollouts(WEAK, passed=0, failed=3, purpose="evaluate", policy=CANDIDATE, trial=0)
    assert before is not None
    assert agent.account() == before
    diagnosis: Any = before.stages["diagnosis"].figures
    assert diagnosis.judged == 100


def test_an_open_cycle_has_no_account(agent: Agent) -> None:
    agent.rollouts(WEAK, passed=1, failed=3)
    agent.begin({"known|tool": 2})
    assert agent.account() is None


def test_rollouts_without_a_place_in_the_job_are_counted_apart(agent: Agent) -> None:
    job = run_cycle(agent)
    agent.rollouts(WEAK, passed=2, failed=0, purpose="train", policy=f"{job}-1")
    agent.rollouts(WEAK, passed=2, failed=0, purpose="train", policy=f"another-{job}")
    account = agent.account()
    assert account is not None
    learner: Any = account.stages["learner"].figures
    assert (learner.recorded, learner.unplaced) == (14, 2)
    assert sum(pool.rollouts for pool in learner.pools) == 12


def test_traffic_without_tasks_has_points_and_no_kinds(agent: Agent) -> None:
    agent.rollouts(None, passed=30, failed=10)
    agent.begin({"known|tool": 2})
    agent.decide(over(outcome="nothing_learnable"))
    account = agent.account()
    assert account is not None
    assert account.balance.potential is not None
    assert account.balance.potential.value == pytest.approx(25)
    assert account.stages["diagnosis"].because == "no failed rollout of the round has a kind"
    assert account.limit.stage == "diagnosis", "no failure has the pattern that got the tasks"


def test_the_heirs_of_a_candidate_are_named(agent: Agent) -> None:
    run_cycle(agent, "rejected")
    agent.begin({"known|tool": 2}, number=2)
    heir = requested(2)
    spec = heir.spec.model_copy(update={"parent": f"/adapters/{CANDIDATE}"})
    agent.decide(heir.model_copy(update={"spec": spec}), job_over(2, "failed"))
    agent.decide(over(2, "failed"))
    account, later = agent.account(), agent.account(2)
    assert account is not None
    assert later is not None
    gate: Any = account.stages["gate"].figures
    learner: Any = later.stages["learner"].figures
    assert (gate.carried_on_by, learner.parent) == ((2,), CANDIDATE)


def test_a_candidate_that_could_not_be_played_is_not_measured(agent: Agent) -> None:
    agent.rollouts(WEAK, passed=10, failed=30)
    agent.begin({"known|tool": 2})
    agent.propose("known|tool", "t/1")
    wanted = request("known|tool", ["t/1"], ["well/1"])
    made = produced(CANDIDATE).model_copy(update={"job": wanted.job})
    agent.decide(wanted, job_over(), made, staged(CANDIDATE))
    agent.decide(moved(CANDIDATE, "rejected", "it could not be played"))
    agent.decide(over(outcome="rejected"))
    account = agent.account()
    assert account is not None
    assert account.limit.verdict == "not_measured"
    assert account.stages["gate"].because == "nothing was measured: is rejected"
    assert account.stages["canary"].verdict == "not_reached"


# The command


@pytest.fixture(scope="module")
def ended_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which one cycle wrote tasks that all were rejected; its tests only read."""
    folder = tmp_path_factory.mktemp("ended") / "home"
    with open_home(folder, tasks(("cancel",), 4), environment=undrawable.ENVIRONMENT) as app:
        cycle, troubles = ask_planner(app)
        assert cycle is not None
        assert (cycle.outcome, troubles) == ("nothing_learnable", [])
    return folder


@pytest.mark.long
def test_the_command_accounts_for_a_cycle_whose_tasks_were_all_rejected(
    ended_home: Path, kintsugi: Kintsugi
) -> None:
    document = kintsugi("cycle", "account", "1", "--json", "--home", ended_home).json
    assert document["stages"]["tasks"]["verdict"] == "limits"
    assert document["stages"]["tasks"]["lost"]["value"] == 100
    assert document["points"]["potential"]["value"] == 100
    assert document["limit"]["stage"] == "tasks"
    shown = kintsugi("cycle", "account", "1", "--home", ended_home)
    assert shown.code == 0
    assert "tasks: tasks lost 100.0 points" in shown.out
    whole = kintsugi("cycle", "show", "1", "--json", "--home", ended_home).json
    assert whole["account"] == document
    assert "limited by" in kintsugi("cycle", "show", "1", "--home", ended_home).out


def test_all_cycles_of_an_agent_are_a_table_with_the_count_of_their_limits(
    ended_home: Path, kintsugi: Kintsugi
) -> None:
    document = kintsugi("cycle", "account", "--all", "agent", "--json", "--home", ended_home).json
    assert (document["alias"], len(document["cycles"])) == ("agent", 1)
    assert document["limits"]["tasks"] == 1
    shown = kintsugi("cycle", "account", "--all", "agent", "--home", ended_home)
    assert shown.out.rstrip().endswith("limit of 1 cycles: tasks 1")


def test_what_names_no_finished_cycle_is_refused_with_the_remedy(
    ended_home: Path, kintsugi: Kintsugi
) -> None:
    for arguments in ((), ("1", "--all", "agent")):
        refused = kintsugi("cycle", "account", *arguments, "--home", ended_home)
        assert refused.code == 2
        assert "takes the id or number of one cycle, or --all ALIAS" in refused.err
    for name in (("99",), ("--all", "nobody")):
        unknown = kintsugi("cycle", "account", *name, "--home", ended_home)
        assert unknown.code == 1
        assert "see kintsugi cycle ls" in unknown.err
