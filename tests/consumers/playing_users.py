"""Adapters that play users, for tests: their events, written in one line each."""

from events.jobs import JobSpec, Sampler, TaskPool
from events.learning import JobRequested
from events.serving import AdapterProduced, UserEvaluated, UserFaultRate
from tests.consumers.deciding import produced


def user_produced(
    adapter: str, alias: str = "agent", base: str = "base", job: str | None = None
) -> AdapterProduced:
    data = produced(adapter, alias, base)
    return data.model_copy(update={"role": "user", "capability": None, "job": job})


def user_evaluated(
    adapter: str, *, passed: bool = True, alias: str = "agent", previous: str | None = None
) -> UserEvaluated:
    good = UserFaultRate(count=3, of=600, upper=0.0129, limit=0.02)
    ends = UserFaultRate(count=1, of=600, upper=0.0079, limit=0.01)
    errors = UserFaultRate(count=0, of=2400, upper=0.0012, limit=0.005)
    bad = UserFaultRate(count=30, of=600, upper=0.068, limit=0.02)
    return UserEvaluated(
        adapter=adapter, alias=alias, previous=previous, environment="shop", dialogues=600,
        violations=good if passed else bad, early_ends=ends, schema_errors=errors, passed=passed,
        reason="all rates hold" if passed else "violations: 30 of 600, at most 6.80 %",
        examples=("instruction: it tells 'X'",),
    )  # fmt: skip


def user_requested(job: str, alias: str = "agent", base: str = "base") -> JobRequested:
    spec = JobSpec(
        job=job, base=base, checkpoint="/base", environment="shop", teaches="user",
        pools=(TaskPool(name="users", tasks=("shop/return/268435456",)),), sampler=Sampler(),
    )  # fmt: skip
    return JobRequested(job=job, alias=alias, base=base, spec=spec, minutes=30)
