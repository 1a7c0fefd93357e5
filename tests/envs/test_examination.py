"""Whose fault a rollout is: of the task, of the user that was played, or of the agent."""

import pytest

from envs.agents import Agent
from envs.attribution.examination import NoVerdict, RolloutFault, examine
from envs.episode import Episode, Termination, play
from envs.grading import Grade, grade
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import User
from tests.envs.faulty_task import plant_task_fault
from tests.envs.faulty_user import FaultyUser

SHOP = Shop()
TASK = SHOP.generate("two_writes", 5)


def examine_play(
    task: TaskDefinition,
    agent: Agent | None = None,
    user: User | None = None,
    *,
    exact_user: bool = False,
) -> RolloutFault | None:
    """Play a task, grade it, and ask whose fault it is."""
    oracle, exact = SHOP.oracle(task), SHOP.user(task)
    episode = play(Episode(SHOP, task), agent or oracle, user or exact)
    verdict = grade(SHOP, task, episode.messages, episode.termination)
    return examine(
        SHOP, task, episode.messages, episode.termination, verdict, exact_user=exact_user
    )


def test_a_success_is_accepted() -> None:
    assert examine_play(TASK) is None
    assert examine_play(TASK, exact_user=True) is None


def test_a_fault_of_the_task_comes_before_all_others() -> None:
    faulty = plant_task_fault(SHOP, TASK, "refused", 0)
    assert faulty is not None
    for agent in (SHOP.oracle(TASK), SHOP.idle_agent(faulty)):
        user = FaultyUser(SHOP, faulty, "early_end", 0)
        fault = examine_play(faulty, agent, user)
        assert fault is not None
        assert (fault.fault, fault.rule) == ("task", "gold")
        assert "is refused" in fault.summary


def test_a_success_in_a_task_with_a_fault_is_the_tasks_fault() -> None:
    criteria = TASK.criteria.model_copy(update={"outputs": (), "reward_basis": ("COMMUNICATE",)})
    faulty = plant_task_fault(SHOP, TASK.model_copy(update={"criteria": criteria}), "refused", 0)
    assert faulty is not None
    episode = play(Episode(SHOP, faulty), SHOP.oracle(TASK), SHOP.user(faulty))
    verdict = grade(SHOP, faulty, episode.messages, episode.termination)
    assert verdict.success is True
    fault = examine(SHOP, faulty, episode.messages, episode.termination, verdict)
    assert fault is not None
    assert fault.fault == "task"


def test_a_users_fault_comes_before_the_agents() -> None:
    fault = examine_play(TASK, user=FaultyUser(SHOP, TASK, "refusal", 0))
    assert fault is not None
    assert (fault.fault, fault.rule) == ("user", "instruction")
    assert fault.reason.startswith("message ")


def test_an_exact_user_is_not_asked_whether_it_erred() -> None:
    user = FaultyUser(SHOP, TASK, "refusal", 0)
    fault = examine_play(TASK, user=user, exact_user=True)
    assert fault is not None
    assert fault.fault == "trajectory"


def test_a_user_that_did_not_get_through_has_the_fault() -> None:
    ended = Termination.USER_ERROR
    fault = examine(SHOP, TASK, (), ended, None)
    assert fault is not None
    assert (fault.fault, fault.rule) == ("user", "ending")
    with pytest.raises(NoVerdict, match="ended as infrastructure_error has no verdict"):
        examine(SHOP, TASK, (), Termination.INFRASTRUCTURE_ERROR, None)


def test_everything_else_is_the_agents_fault_with_its_reason() -> None:
    fault = examine_play(TASK, SHOP.idle_agent(TASK))
    assert fault is not None
    assert (fault.fault, fault.rule) == ("trajectory", "state")
    assert "is expected" in fault.reason
    assert fault.summary.startswith("the agent's fault (state): ")


@pytest.mark.parametrize(
    ("verdict", "rule", "reason"),
    [
        (Grade({"DB": 0.0}, irregular="max_steps"), "ending", "it ended as max_steps"),
        (Grade({"POLICY": 0.0}, violations=("it wrote first",)), "policy", "it wrote first"),
        (Grade({"COMMUNICATE": 0.0}, missing=("41",)), "outputs", "it never says '41'"),
        (Grade({"ACTION": 0.0}), "verdict", "it fails by ACTION"),
    ],
)
def test_a_verdict_says_by_what_the_agent_failed(verdict: Grade, rule: str, reason: str) -> None:
    fault = examine(SHOP, TASK, (), Termination.USER_STOP, verdict, exact_user=True)
    assert fault == RolloutFault("trajectory", rule, reason)


def test_a_verdict_that_needs_a_judge_is_none() -> None:
    verdict = Grade({"NL_ASSERTION": None})
    with pytest.raises(NoVerdict, match="only a judge can tell NL_ASSERTION"):
        examine(SHOP, TASK, (), Termination.USER_STOP, verdict, exact_user=True)
