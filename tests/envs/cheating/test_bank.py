"""Cheaters know a kind of task and not the task, and whatever they do their episode ends well."""

import pytest

from envs.cheating.bank import CHEATERS, CheaterAgent
from envs.cheating.knowledge import Knowledge, learn
from envs.environment import Environment
from envs.episode import REGULAR, Episode, play
from envs.registry import open_environment
from envs.task import TaskDefinition
from events.messages import Message
from tests.envs.cheating.cheap import Cheap
from tests.envs.lamp import Lamp
from tests.envs.mini import Mini

KINDS: list[tuple[Environment, str]] = [
    (Cheap(), "number"),
    (Cheap(), "removed"),
    (Mini(), "cancel"),
    (Lamp(), "dark"),
    (open_environment("shop"), "question"),
    (open_environment("shop"), "cancel"),
    (open_environment("telecom"), "no_data"),
    (open_environment("toolsandbox"), "days_until"),
]
NAMES = [f"{environment.name} {kind}" for environment, kind in KINDS]


def known(environment: Environment, kind: str) -> Knowledge:
    """What cheaters know of a kind."""
    steps = learn(environment, kind, first_seed=20)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            knowledge: Knowledge = end.value
            return knowledge


def cheated(name: str, knowledge: Knowledge, task: TaskDefinition) -> Episode:
    """An episode of a cheater."""
    environment = knowledge.environment
    agent = CheaterAgent(CHEATERS[name], knowledge, task)
    return play(Episode(environment, task), agent, environment.user(task))


def own(episode: Episode) -> list[Message]:
    """What the agent wrote."""
    return [message for message in episode.messages if message.role == "assistant"]


@pytest.mark.parametrize(("environment", "kind"), KINDS, ids=NAMES)
def test_every_cheater_repeats_and_ends_its_episode_regularly(
    environment: Environment, kind: str
) -> None:
    knowledge, task = known(environment, kind), environment.generate(kind, 3)
    endings = REGULAR | environment.graded_endings
    for name, cheater in CHEATERS.items():
        if cheater.applies(knowledge):
            episode = cheated(name, knowledge, task)
            assert episode.termination in endings, name
            assert episode.messages == cheated(name, knowledge, task).messages, name


@pytest.mark.parametrize(("environment", "kind"), KINDS, ids=NAMES)
def test_no_cheater_knows_the_outputs_or_the_gold_writes_of_its_task(
    environment: Environment, kind: str
) -> None:
    knowledge, task = known(environment, kind), environment.generate(kind, 3)
    gold = task.criteria.gold_actions or ()
    kept = environment.lookups | {action.name for action in knowledge.common_writes}
    hidden = task.criteria.model_copy(
        update={
            "gold_actions": tuple(action for action in gold if action.name in kept),
            "outputs": ("a secret",),
        }
    )
    blind = task.model_copy(update={"criteria": hidden})
    for name, cheater in CHEATERS.items():
        if cheater.applies(knowledge):
            assert own(cheated(name, knowledge, task)) == own(cheated(name, knowledge, blind)), name


def test_only_lookups_of_the_task_itself_are_made_by_who_looks_up() -> None:
    shop = open_environment("shop")
    knowledge, task = known(shop, "cancel"), shop.generate("cancel", 3)
    episode = cheated("look_up_and_copy", knowledge, task)
    gold = task.criteria.gold_actions or ()
    calls = [(call.name, call.arguments) for message in own(episode) for call in message.tool_calls]
    looks = [(action.name, action.arguments) for action in gold if action.name in shop.lookups]
    assert calls[: len(looks)] == looks
    assert next((a.name, a.arguments) for a in gold if a.name in shop.writes) not in calls


def test_the_closing_words_are_those_that_the_right_episodes_have_in_common() -> None:
    assert known(open_environment("shop"), "cancel").last_words == "Done."
    assert known(open_environment("shop"), "ineligible").last_words == "Sorry, not possible."
    assert known(Mini(), "tell").last_words == "Your request is complete."


def test_users_without_tools_are_told_no_repairs() -> None:
    told = [name for name in CHEATERS if name.startswith(("tell", "look_and_tell"))]
    assert [name for name in told if CHEATERS[name].applies(known(Mini(), "cancel"))] == []
    assert [name for name in told if CHEATERS[name].applies(known(Lamp(), "dark"))] == told


@pytest.mark.long
def test_a_sentence_that_the_policy_dictates_is_no_answer() -> None:
    shop = open_environment("shop")
    assert len(known(shop, "refund").answers) == 2
    assert not known(shop, "refund").has_answers
    assert known(shop, "question").has_answers
