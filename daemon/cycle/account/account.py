"""The account of a finished cycle: its stages, points, and limiting stage. Pure.

build_account(facts) -> CycleAccount
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from daemon.cycle.account.balance import (
    STAGES,
    Balance,
    Limit,
    Stage,
    StageVerdict,
    find_limit,
    judge_stage,
    measure_balance,
)
from daemon.cycle.account.canary import Canary, describe_canary, explain_canary
from daemon.cycle.account.diagnosis import Diagnosis, describe_diagnosis, explain_diagnosis
from daemon.cycle.account.facts import CycleFacts
from daemon.cycle.account.gate import Gate, describe_gate, explain_gate
from daemon.cycle.account.learner import Learner, describe_learner, explain_learner
from daemon.cycle.account.tasks import Tasks, describe_tasks, explain_tasks
from envs.statistics import Interval
from events.learning import CycleOutcome

NOT_SHOWN: Final = "not shown"
"""Name for a cycle whose limiting stage is not shown; the next two name other reasons."""
NOTHING_LOST: Final = "nothing lost"
NOT_MEASURED: Final = "not measured"

Figures = Diagnosis | Tasks | Learner | Gate | Canary


@dataclass(frozen=True, slots=True)
class StageAccount:
    """One stage of a finished cycle, and the points that it lost."""

    lost: Interval | None
    """Points of pass^1 over all traffic; None if not measured."""
    verdict: StageVerdict
    because: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class CycleAccount:
    """The account of a finished cycle: what each stage lost of the possible gain."""

    cycle: str
    alias: str
    base: str
    number: int
    outcome: CycleOutcome
    ended_because: str
    stages: Mapping[Stage, StageAccount]
    balance: Balance
    limit: Limit

    @property
    def limit_name(self) -> str:
        """Return the limiting stage, or the reason why no stage is named."""
        if self.limit.stage is not None:
            return self.limit.stage
        names = {"nothing_lost": NOTHING_LOST, "not_measured": NOT_MEASURED}
        return names.get(self.limit.verdict, NOT_SHOWN)


def build_account(facts: CycleFacts) -> CycleAccount:
    """Return the account of a finished cycle, computed from its facts."""
    row = facts.row
    assert row.outcome is not None, "only a finished cycle has an account"
    balance = measure_balance(facts)
    limit = find_limit(balance)
    diagnosis, tasks = describe_diagnosis(facts), describe_tasks(facts)
    learner, gate, canary = describe_learner(facts), describe_gate(facts), describe_canary(facts)
    figures: dict[Stage, Figures] = {
        "diagnosis": diagnosis, "tasks": tasks, "learner": learner, "gate": gate, "canary": canary,
    }  # fmt: skip
    because: dict[Stage, str] = {
        "diagnosis": explain_diagnosis(facts, diagnosis),
        "tasks": explain_tasks(facts, tasks),
        "learner": explain_learner(learner),
        "gate": explain_gate(facts, gate, balance),
        "canary": explain_canary(facts, canary),
    }
    stages = {
        stage: StageAccount(
            lost=balance.lost[stage],
            verdict=judge_stage(stage, balance, limit, reached=is_reached(stage, facts)),
            because=because[stage],
            figures=figures[stage],
        )
        for stage in STAGES
    }
    return CycleAccount(
        cycle=row.cycle, alias=row.alias, base=row.base, number=row.number, outcome=row.outcome,
        ended_because=row.ended_because or "", stages=stages, balance=balance, limit=limit,
    )  # fmt: skip


def build_document(account: CycleAccount) -> dict[str, Any]:
    """Return the account as a JSON document."""
    names = ("cycle", "alias", "base", "number", "outcome", "ended_because")
    points = asdict(account.balance)
    del points["lost"]
    return {
        **{name: getattr(account, name) for name in names},
        "limit": asdict(account.limit),
        "points": points,
        "stages": {
            name: {
                "lost": None if stage.lost is None else asdict(stage.lost),
                "verdict": stage.verdict,
                "because": stage.because,
                **asdict(stage.figures),
            }
            for name, stage in account.stages.items()
        },
    }


def is_reached(stage: Stage, facts: CycleFacts) -> bool:
    """Return whether the cycle came as far as `stage` before it ended."""
    row = facts.row
    match stage:
        case "diagnosis":
            return row.round is not None
        case "tasks":
            return row.directive is not None and bool(row.directive.quotas)
        case "learner":
            return facts.job is not None
        case "gate":
            return facts.adapter is not None
        case "canary":
            return facts.canary is not None


def count_limits(accounts: Iterable[CycleAccount]) -> dict[str, int]:
    """Return stage, or reason for none -> number of cycles; each stage is present."""
    counts = Counter(account.limit_name for account in accounts)
    others = (NOT_SHOWN, NOT_MEASURED, NOTHING_LOST)
    return {
        **{stage: counts[stage] for stage in STAGES},
        **{name: counts[name] for name in others if counts[name]},
    }
