"""Kinds of task that an environment writes: a rollout counts where a task like its own is drawn."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, literal, select

from consumers.diagnosis.kinds import find_kind
from consumers.diagnosis.task_kinds import has_kind
from daemon.core.task_kinds import list_kinds
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.telecom.environment import Telecom

ENVIRONMENTS: tuple[Environment, ...] = (Airline(), Retail(), Shop(), Telecom())
CONTENT = "0123456789abcdef" * 4

environments = st.sampled_from(ENVIRONMENTS)
seeds = st.integers(min_value=0, max_value=2**31)


class Unlike(Shop):
    """Shop under ids that name no generator."""

    def task_id(self, capability: str, seed: int) -> str:
        """The id of a generated task."""
        return f"{self.name}/{capability}-{seed}"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return create_engine("sqlite://")


def counts(engine: Engine, environment: Environment, task: str | None, capability: str = "") -> Any:
    """Whether a rollout on a task counts for an agent of an environment."""
    rollout = select(
        literal(task).label("task"), literal(find_kind(task)).label("kind"),
        literal(capability or None).label("capability"),
    ).subquery()  # fmt: skip
    with engine.connect() as connection:
        return connection.execute(select(has_kind(rollout.c, list_kinds(environment)))).scalar()


@given(environments, environments, st.data(), seeds)
def test_a_rollout_counts_where_the_environment_draws_its_task(
    engine: Engine, own: Environment, other: Environment, data: st.DataObject, seed: int
) -> None:
    capability = data.draw(st.sampled_from(sorted(other.capabilities)))
    task = other.task_id(capability, seed)
    assert counts(engine, own, task, capability) == (own is other)
    assert counts(engine, own, f"{task}/7", capability) == (own is other), "in other words"
    by_content = f"{other.name}/={CONTENT}"
    assert counts(engine, own, by_content, capability) == (own is other)


@given(environments, seeds, st.text(max_size=12))
def test_a_rollout_on_any_other_task_does_not_count(
    engine: Engine, own: Environment, seed: int, text: str
) -> None:
    capability = next(iter(own.capabilities))
    others = [
        None, "", text, f"{own.name}/{seed}", f"{own.name}/no_such_kind/{seed}",
        f"{own.name}2/{capability}/{seed}", f"x/{own.name}/{capability}/{seed}",
    ]  # fmt: skip
    for task in others:
        assert counts(engine, own, task, capability) == 0, task
    for unknown in ("", "no_such_kind"):
        assert counts(engine, own, f"{own.name}/={CONTENT}", unknown) == 0


def test_of_an_environment_whose_ids_name_no_generator_every_task_counts(engine: Engine) -> None:
    own = Unlike()
    assert counts(engine, own, own.task_id("cancel", 3)) == 1
    assert counts(engine, own, "shopping/cancel-3") == 0
