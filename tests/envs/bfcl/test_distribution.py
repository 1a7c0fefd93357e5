"""All cases that come with the distribution of the classes, twice as many as a folder may hold.

Cases from 100 on are the ones that trade and travel, and whose classes keep state of their module.
"""

import inspect
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from envs.bfcl.cases import SPLITS, Case
from envs.bfcl.environment import Bfcl
from envs.episode import Episode, play
from envs.grading import grade
from envs.schema import ToolSchema
from envs.task import TaskDefinition
from events.messages import Action, Message
from tests.envs.mini import calls as calls_of
from tests.envs.mini import said

pytestmark = pytest.mark.usefixtures("classes")


@pytest.fixture(scope="module")
def whole(classes: None, tmp_path_factory: pytest.TempPathFactory) -> Bfcl:
    """The environment over the distribution's own files."""
    found = find_spec("bfcl_eval")
    assert found is not None
    assert found.submodule_search_locations
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "bfcl").symlink_to(Path(found.submodule_search_locations[0]) / "data")
    return Bfcl(folder)


def gold(whole: Bfcl, task: TaskDefinition) -> tuple[list[Message], bool | None]:
    """The oracle's episode, and whether it won."""
    episode = play(Episode(whole, task), whole.oracle(task), whole.user(task))
    verdict = grade(whole, task, episode.messages, episode.termination)
    return episode.messages, verdict.success


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_calls_win_every_case_and_leave_nothing_behind(whole: Bfcl, split: str) -> None:
    tasks = list(whole.tasks(split))
    first = {task.id: gold(whole, task) for task in tasks}
    assert [task for task, (_, won) in first.items() if not won] == []
    assert len(first) == 200
    again = {task.id: gold(whole, task) for task in tasks[::-5]}
    assert [task for task in again if again[task] != first[task]] == []


class Careless:
    """Makes the gold calls of each turn, some of them forgotten, doubled, moved or misspelt."""

    def __init__(self, case: Case, chance: Random) -> None:
        self.turns = [list(turn.gold) for turn in case.turns]
        for _ in range(chance.randrange(1, 3)):
            _spoil(self.turns, chance)

    def reply(self, messages: Sequence[Message]) -> Message:
        """A turn's calls in one message, then a sentence."""
        calls = self.turns[sum(message.role == "user" for message in messages) - 1]
        if not calls or messages[-1].role != "user":
            return said("So far, so good.")
        return calls_of(*((action.name, action.arguments) for action in calls))


def _spoil(turns: list[list[Action]], chance: Random) -> None:
    turn = chance.choice([turn for turn in turns if turn] or [[Action(name="pwd")]])
    place = chance.randrange(len(turn))
    match chance.randrange(5):
        case 0:
            del turn[place]
        case 1:
            turn.insert(place, turn[place])
        case 2:
            chance.choice(turns).append(turn.pop(place))
        case 3:
            turn[place] = turn[place].model_copy(update={"arguments": {"unheard_of": 1}})
        case 4:
            turn.append(Action(name="pwd"))


@pytest.mark.parametrize("split", ["base", "miss_func", "miss_param"])
def test_the_verdicts_are_those_of_the_distributions_own_checker(whole: Bfcl, split: str) -> None:
    verdicts = Counter[tuple[bool, bool]]()
    for task in whole.tasks(split):
        case = whole.case(task.id)
        agent = Careless(case, Random(task.id))
        episode = play(Episode(whole, task), agent, whole.user(task))
        parts = grade(whole, task, episode.messages, episode.termination).parts
        official, strict = _of_the_checker(case, agent.turns)
        assert (parts["TURNS"], parts["ABSTENTION"]) == (official, strict), task.id
        verdicts[official, strict] += 1
    assert verdicts[True, True] > 30
    assert verdicts[False, True] > 30
    assert (verdicts[True, False] > 0) is (split != "base")


def _of_the_checker(case: Case, turns: list[list[Action]]) -> tuple[bool, bool]:
    """What BFCL says of these calls, each turn's in one step: officially, and of empty turns."""
    checker: Any = import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    entry = {
        "id": f"multi_turn_{case.split}_{case.number}",
        "initial_config": case.config,
        "involved_classes": list(case.config),
    }
    made = [[_as_python(turn)] if turn else [] for turn in turns]
    gold = [_as_python(turn.gold) for turn in case.turns]
    category = f"multi_turn_{case.split}"
    official = checker.multi_turn_checker(made, gold, entry, category, "careless")
    return official["valid"], checker.multi_turn_irrelevance_checker(made, gold)["valid"]


def _as_python(actions: Sequence[Action]) -> list[str]:
    return [
        f"{action.name}({', '.join(f'{key}={value!r}' for key, value in action.arguments.items())})"
        for action in actions
    ]


def test_the_documentation_names_the_arguments_of_the_methods_in_their_order(whole: Bfcl) -> None:
    """Gold calls give some by position. One function is documented in another order."""
    other_order = set()
    for task in whole.tasks("base"):
        methods = whole.toolset(whole.reset(task)).methods
        for schema in whole.schemas(task):
            function = ToolSchema.model_validate(schema).function
            given = list(inspect.signature(methods[function.name]).parameters)
            if given != list(function.parameters.properties):
                other_order.add(function.name)
    assert other_order == {"purchase_insurance"}
