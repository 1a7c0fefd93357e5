"""BFCL's real cases: the gold calls win, nobody else does, and every answer is the recorded one."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envs.agents import Agent, NullAgent
from envs.bfcl.cases import SPLITS, Case
from envs.bfcl.environment import Bfcl
from envs.episode import Episode, Termination, play
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from events.messages import Message
from tests.envs.mini import called

pytestmark = [pytest.mark.benchmarks, pytest.mark.usefixtures("classes")]

WITH_EMPTY_TURNS = ("miss_func", "miss_param")


@pytest.fixture(scope="module")
def real(benchmarks: Path) -> Bfcl:
    """The environment over the operator's folder."""
    return Bfcl(benchmarks)


def played(real: Bfcl, task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    episode = play(Episode(real, task), agent, real.user(task))
    return episode, grade(real, task, episode.messages, episode.termination)


class Forgetful:
    """Plays the gold calls of another agent, the very last one apart."""

    def __init__(self, agent: Agent, case: Case) -> None:
        self.agent = agent
        self.last = max(place for place, turn in enumerate(case.turns) if turn.gold)

    def reply(self, messages: Sequence[Message]) -> Message:
        """The other agent's message, short of a call in the last turn that has any."""
        message = self.agent.reply(messages)
        turn = sum(one.role == "user" for one in messages) - 1
        if turn != self.last or not message.tool_calls:
            return message
        calls = message.tool_calls[:-1]
        content = None if calls else "Nothing."
        return message.model_copy(update={"tool_calls": calls, "content": content})


class Hasty:
    """Plays another agent, but looks around once where nothing can be done."""

    def __init__(self, agent: Agent, case: Case) -> None:
        self.agent = agent
        self.case = case

    def reply(self, messages: Sequence[Message]) -> Message:
        """A call that changes nothing, in a turn without gold calls."""
        turn = sum(one.role == "user" for one in messages) - 1
        if messages[-1].role == "user" and not self.case.turns[turn].gold:
            return called("look_around")
        return self.agent.reply(messages)


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_calls_win_every_case_by_both_verdicts(real: Bfcl, split: str) -> None:
    lost = []
    for task in real.tasks(split):
        episode, verdict = played(real, task, real.oracle(task))
        regular = (episode.termination, episode.errors) == (Termination.USER_STOP, 0)
        if not regular or verdict.parts != {"TURNS": 1.0, "ABSTENTION": 1.0}:
            lost.append((task.id, verdict.violations))
    assert (real.splits[split], lost) == (100, [])


@pytest.mark.parametrize("split", SPLITS)
def test_doing_nothing_wins_no_case(real: Bfcl, split: str) -> None:
    grades = [played(real, task, NullAgent())[1] for task in real.tasks(split)]
    assert [grade.parts["TURNS"] for grade in grades] == [0.0] * 100
    assert [grade.parts["ABSTENTION"] for grade in grades] == [1.0] * 100


@pytest.mark.parametrize("split", SPLITS)
def test_a_missing_last_call_is_caught_in_every_case(real: Bfcl, split: str) -> None:
    for task in real.tasks(split):
        _, verdict = played(real, task, Forgetful(real.oracle(task), real.case(task.id)))
        assert verdict.parts["TURNS"] == 0.0, task.id


@pytest.mark.parametrize("split", SPLITS)
def test_a_call_where_nothing_can_be_done_counts_in_the_strict_verdict(
    real: Bfcl, split: str
) -> None:
    grades = [
        played(real, task, Hasty(real.oracle(task), real.case(task.id)))[1]
        for task in real.tasks(split)
    ]
    assert sum(grade.parts["TURNS"] == 1.0 for grade in grades) == 100
    assert sum(bool(grade.success) for grade in grades) == 100 * (split not in WITH_EMPTY_TURNS)


@pytest.mark.parametrize("split", ["base", "long_context"])
def test_every_gold_answer_is_the_recorded_one(real: Bfcl, benchmarks: Path, split: str) -> None:
    path = benchmarks / "bfcl" / f"executed_ground_truth_{split}.jsonl"
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    calls = 0
    for row, task in zip(recorded, real.tasks(split), strict=True):
        expected = [call for turn in row["turns"] for call in turn]
        answers = list(_answers(real, task))
        assert len(answers) == len(expected), task.id
        for answer, call in zip(answers, expected, strict=True):
            assert _is_recorded(answer, call), (task.id, call["call"], answer)
        calls += len(answers)
    assert calls == {"base": 635, "long_context": 695}[split]


def _answers(real: Bfcl, task: TaskDefinition) -> Iterator[str]:
    episode, _ = played(real, task, real.oracle(task))
    return (message.text for message in episode.messages if message.role == "tool")


def _is_recorded(answer: str, call: dict[str, str]) -> bool:
    """Whether this is what was recorded, as it is or by its digest."""
    if call["call"].startswith("standard_deviation(") and sys.version_info < (3, 12):
        # Later Pythons, one of which recorded, add floats without losing the last digits.
        return bool(json.loads(answer) == pytest.approx(json.loads(call["result"]), rel=1e-14))
    digest = hashlib.sha256(answer.encode()).hexdigest()
    return digest == call["result_sha256"] if call["result"] is None else answer == call["result"]
