"""What a job can teach: each kind is loaded, and an unknown one is an error with a remedy."""

from typing import get_args

import pytest

from daemon.solver.kinds import KINDS, UnknownKind, check_supported, find_kind
from daemon.solver.methods import REWARDS
from daemon.solver.spec import NotSupported
from events.jobs import JobSpec, RewardKind, TaskPool

SPEC = JobSpec(
    job="j",
    base="tiny",
    checkpoint="/nowhere",
    environment="shop",
    pools=(TaskPool(name="all", tasks=("shop/orders/1",)),),
)


def test_each_kind_that_a_spec_can_name_is_known_and_loads() -> None:
    assert set(KINDS) == set(get_args(JobSpec.model_fields["teaches"].annotation))
    for name in KINDS:
        assert callable(find_kind(SPEC.model_copy(update={"teaches": name})).load_run())


def test_each_reward_that_a_pool_can_name_is_known_or_refused() -> None:
    unknown = set(get_args(RewardKind)) - set(REWARDS)
    assert unknown == {"skill"}
    for reward in unknown:
        pool = SPEC.pools[0].model_copy(update={"reward": reward})
        with pytest.raises(NotSupported, match="does not compute"):
            check_supported(SPEC.model_copy(update={"pools": (pool,)}))


def test_only_an_adapter_that_answers_no_client_has_another_role() -> None:
    assert {name: kind.role for name, kind in KINDS.items()} == {
        "agent": "agent",
        "user": "user",
        "router": "agent",
    }


def test_a_job_of_an_unknown_kind_is_an_error_with_a_remedy() -> None:
    with pytest.raises(UnknownKind, match=r"teaches the judge.*kintsugi jobs cancel j"):
        find_kind(SPEC.model_copy(update={"teaches": "judge"}))
