"""toolsandbox's generated tasks: solvable, not solved by accident, and the same every time."""

import pytest

from consumers.diagnosis.detectors import diagnose
from daemon.proposer.candidate import FIRST_SEED, Candidate, CandidateFacts
from daemon.proposer.verification import verify
from envs.agents import Agent
from envs.episode import Episode, play
from envs.evaluation import choose_shaping
from envs.grading import Grade, grade
from envs.reward import DEFAULT, Conduct, shape
from envs.task import TaskDefinition
from envs.toolsandbox.environment import QUESTION, ToolSandbox
from envs.toolsandbox.gold import GoldPlan, PlanAgent
from envs.toolsandbox.kinds import KINDS
from envs.toolsandbox.policy import MISSING
from events.messages import Action, Message
from events.rollouts import RolloutContent, RolloutEnded

PHONE = ToolSandbox()
IMPOSSIBLE = [name for name in KINDS if name.startswith("no_")]


@pytest.mark.parametrize("capability", KINDS)
def test_a_kind_is_named_constant_where_one_sentence_wins_all_of_its_tasks(capability: str) -> None:
    outputs = {PHONE.generate(capability, seed).criteria.outputs for seed in range(20)}
    writes = any(PHONE.generate(capability, seed).criteria.gold_actions for seed in range(20))
    assert (len(outputs) == 1 and not writes) == (capability in PHONE.constant)


def played(task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    episode = play(Episode(PHONE, task), agent, PHONE.user(task))
    return episode, grade(PHONE, task, episode.messages, episode.termination)


@pytest.mark.parametrize("capability", IMPOSSIBLE)
def test_what_cannot_be_done_is_won_by_saying_what_is_missing_alone(capability: str) -> None:
    task = PHONE.generate(capability, 3)
    own = task.criteria.outputs[0]
    for sentence in MISSING.values():
        agent = PlanAgent(GoldPlan((), (sentence,), ()))
        assert played(task, agent)[1].success is (sentence == own)
    refusal = PlanAgent(GoldPlan((), ("I cannot do this.",), ()))
    assert played(task, refusal)[1].reward == 0.0


@pytest.mark.parametrize("capability", IMPOSSIBLE)
@pytest.mark.parametrize("texts", [(" ".join(MISSING.values()),), tuple(MISSING.values())])
def test_reciting_all_that_may_be_missing_wins_nothing(
    capability: str, texts: tuple[str, ...]
) -> None:
    task = PHONE.generate(capability, 3)
    said = [Message(role="assistant", content=text) for text in texts]
    messages = [Message(role="user", content=task.scenario.reason_for_call), *said]
    assert grade(PHONE, task, messages, "user_stop").reward == 0.0


def test_a_guess_makes_what_is_said_afterwards_worth_nothing() -> None:
    task = PHONE.generate("no_contacts", 3)
    guess = Action(
        name="send_message_with_phone_number",
        arguments={"phone_number": "+12065550199", "content": "Hello"},
    )
    on = Action(name="set_cellular_service_status", arguments={"on": True})
    agent = PlanAgent(GoldPlan((on, guess), task.criteria.outputs, ()))
    assert played(task, agent)[1].reward == 0.0


def test_a_change_that_nobody_asked_for_is_no_success() -> None:
    task = PHONE.generate("remove_contact", 3)
    extra = Action(name="add_contact", arguments={"name": "X", "phone_number": "+12065550199"})
    gold = task.criteria.gold_actions or ()
    agent = PlanAgent(GoldPlan((*gold, extra), ("Done.",), ()))
    episode, verdict = played(task, agent)
    assert verdict.parts == {"MILESTONES": 1.0, "POLICY": 0.0}
    plain = task.criteria.model_copy(update={"rules": None})
    assert not PHONE.violations(task.model_copy(update={"criteria": plain}), episode.messages)
    agent = PlanAgent(GoldPlan((extra, *gold), ("Done.",), ()))
    assert played(task, agent)[1].success is False


def test_the_user_tells_the_rest_when_asked() -> None:
    task = PHONE.generate("send_message_turns", 0)
    episode, _ = played(task, PHONE.oracle(task))
    asked = next(i for i, m in enumerate(episode.messages) if m.text == QUESTION)
    text = (task.criteria.gold_actions or ())[-1].arguments["content"]
    assert text not in episode.messages[0].text
    assert text in episode.messages[asked + 1].text


def test_a_graded_reward_is_the_score_and_no_penalty_reorders_it() -> None:
    task = PHONE.generate("switch_on", 0)
    shaping = choose_shaping(task)
    careless = Conduct(malformed=5, repeated=9, tokens=100_000)
    assert shape(1.0, careless, shaping).total == 1.0
    assert shape(0.99, Conduct(), shaping).total == 0.99
    assert choose_shaping(task.model_copy(update={"criteria": task.criteria.model_copy(
        update={"milestones": None})})) is DEFAULT  # fmt: skip


def _failure(task: TaskDefinition, agent: Agent) -> RolloutEnded:
    episode, verdict = played(task, agent)
    assert verdict.success is False
    return RolloutEnded(
        rollout="r", alias="a", base="b", policy="b", source="simulation", task=task.record(),
        success=False, reward=verdict.reward, reward_parts={"MILESTONES": verdict.reward},
        termination=episode.termination, content=RolloutContent(messages=tuple(episode.messages)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "change", "category", "pivot"),
    [
        ("send_message", "drop", "missing_write_action", "send_message_with_phone_number"),
        ("remove_contact", "drop", "missing_write_action", "remove_contact"),
        ("no_contacts", "guess", "policy_violation", "*"),
        ("days_until", "mute", "information_error", "*"),
    ],
)
def test_a_failure_is_diagnosed_from_the_gold_actions(
    capability: str, change: str, category: str, pivot: str
) -> None:
    task = PHONE.generate(capability, 1)
    gold = list(task.criteria.gold_actions or ())
    if change == "drop":
        gold.pop()
    if change == "guess":
        gold.append(Action(name="set_cellular_service_status", arguments={"on": True}))
    rollout = _failure(task, PlanAgent(GoldPlan(tuple(gold), ("Well, that is that.",), ())))
    found = diagnose(rollout, PHONE.catalog)
    assert (found.category, found.pivot) == (category, pivot)


@pytest.mark.parametrize("capability", sorted(KINDS.keys() - PHONE.constant))
def test_what_it_writes_passes_the_ten_checks(capability: str) -> None:
    source = PHONE.generate(capability, FIRST_SEED)
    verdicts = [
        verify(CandidateFacts(PHONE, Candidate(fresh, "explore", source)))
        for seed in range(1, 5)
        if (fresh := PHONE.like(source, FIRST_SEED + seed)) is not None
    ]
    assert {verdict.failed for verdict in verdicts} <= {None, "novelty"}
    assert any(verdict.failed is None for verdict in verdicts)
