"""Lessons of every environment: each is played in full, and what is discarded is counted."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from envs.database import Database
from envs.environment import Environment
from envs.episode import Episode, Party, play
from envs.grading import Grader, grade
from envs.lessons.checks import BadLesson, check_lesson, get_lesson
from envs.lessons.gold import render_gold
from envs.lessons.making import LessonReport, make_lessons
from envs.lessons.reflections import find_fault
from envs.lessons.trajectories import Trajectory, play_trajectory, walk
from envs.reflection.parse import parse
from envs.reflection.reward import compute_reward
from envs.registry import open_environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import PERTURBATIONS, TaskDefinition, find_split
from events.messages import Message, executed_calls
from tests.envs.lessons.recorded import record_slip
from tests.envs.mini import Mini, called, heard, task

SHOP = Shop()
GENERATING = ["shop", "retail", "airline", "telecom", "toolsandbox"]


CANCEL = SHOP.generate("cancel", 4)
SLIP = record_slip(SHOP, CANCEL, "get_order", order_id="O0")
"""A recorded conversation in which the agent looks up an order that there is not."""


def make(
    environment: Environment, wanted: int, seed: int = 0, tasks: int = 60, split: str = "generated"
) -> LessonReport:
    return make_lessons(environment, islice(environment.tasks(split), tasks), wanted, seed)


def check_in_full(environment: Environment, lesson: TaskDefinition) -> None:
    """Play a lesson as an episode of its own: its prefix is replayed, its expected message comes
    and runs, and the oracle passes the verdict."""
    check_lesson(environment, lesson)
    expected = get_lesson(lesson)
    episode = Episode(environment, lesson)
    begin = len(episode.messages)
    play(episode, environment.oracle(lesson), environment.user(lesson))
    first = episode.messages[begin]
    assert [(c.name, c.arguments) for c in first.tool_calls] == [
        (action.name, action.arguments) for action in expected.calls
    ]
    assert first.text == expected.final
    results = [m for m in episode.messages[begin + 1 :][: len(first.tool_calls)] if m.error]
    assert not results
    assert grade(environment, lesson, episode.messages, episode.termination).success
    gold = render_gold(expected)
    assert compute_reward(parse(gold), parse(gold)) == pytest.approx(1, abs=1e-6)
    assert find_fault(expected.reflection) is None
    assert len({call.requestor for call in expected.calls}) <= 1


@pytest.mark.parametrize("name", GENERATING)
def test_every_lesson_is_played_to_success_and_named_by_its_content(name: str) -> None:
    environment = open_environment(name)
    report = make(environment, 32)
    assert report.made == dict.fromkeys(PERTURBATIONS, 8)
    assert (report.empty, report.troubles) == ((), ())
    for lesson in report.lessons:
        assert lesson == lesson.name_by_content()
        assert TaskDefinition.model_validate_json(lesson.model_dump_json()) == lesson
        check_in_full(environment, lesson)


@pytest.mark.benchmarks
@pytest.mark.parametrize(("name", "split"), [("bfcl", "base"), ("telecom", "test")])
def test_loaded_tasks_give_lessons_that_are_played_to_success(
    name: str, split: str, benchmarks: Path
) -> None:
    environment = open_environment(name, benchmarks=benchmarks)
    report = make(environment, 16, tasks=24, split=split)
    assert report.made["argument"] == report.made["redundant"] == 4
    assert report.troubles == ()
    for lesson in report.lessons:
        # The state of a case is found by the id of the case.
        check_in_full(environment, lesson.model_copy(update={"id": get_lesson(lesson).source}))


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATING)
def test_a_thousand_lessons_are_played_to_success(name: str) -> None:
    environment = open_environment(name)
    report = make(environment, 1200, seed=1, tasks=2000)
    assert len(report.lessons) > 600
    for lesson in report.lessons:
        check_in_full(environment, lesson)


def test_the_same_seed_makes_the_same_lessons_and_another_one_others() -> None:
    first, again, other = (make(SHOP, 40, seed) for seed in (1, 1, 2))
    assert first == again
    assert {t.id for t in first.lessons}.isdisjoint({t.id for t in other.lessons}) is False
    assert {t.id for t in first.lessons} != {t.id for t in other.lessons}


def test_what_no_tool_refuses_and_changes_nothing_is_discarded_and_counted() -> None:
    report = make(SHOP, 200)
    assert report.discarded["swap"]["harmless"] > 0
    for lesson in report.lessons:
        operator = get_lesson(lesson).operator
        before = lesson.model_copy(update={"prefix": lesson.prefix[:-2]})
        if not lesson.prefix[-1].error and operator != "redundant":
            behind, ahead = Episode(SHOP, lesson), Episode(SHOP, before)
            assert behind.database.digest() != ahead.database.digest()


def test_the_error_in_a_lesson_is_the_tools_own() -> None:
    for lesson in make(SHOP, 40).lessons:
        bare = lesson.model_copy(update={"prefix": (), "lesson": None})
        database = SHOP.reset(bare)
        tools = SHOP.open_tools(bare, database)
        for item in executed_calls(lesson.prefix):
            result = tools.call(item.call.name, item.call.arguments, item.requestor)
            assert item.result is not None
            assert (item.result.text, item.result.error) == (result.content, result.error)


def test_a_lesson_holds_no_value_that_comes_later() -> None:
    """Each word with a digit in prefix and reflection was said or answered before the wrong call,
    or is an argument that the seed made wrong."""
    for lesson in make(SHOP, 100).lessons:
        if get_lesson(lesson).operator not in ("swap", "missing"):
            continue
        *before, message, _ = lesson.prefix
        seen = " ".join(m.text for m in before) + " ".join(
            str(call.arguments) for m in before for call in m.tool_calls
        )
        for call in message.tool_calls:
            assert isinstance(call.arguments, dict)
            for value in call.arguments.values():
                assert str(value) in seen, (lesson.id, value)


def test_a_fork_is_an_episode_that_begins_there() -> None:
    for name in GENERATING:
        environment = open_environment(name)
        whole = next(environment.tasks())
        trajectory, places = play_trajectory(Grader(environment, whole))
        again = walk(environment, trajectory)
        begin = int(environment.greeting is not None)
        assert [place.call for place in again] == [place.call for place in places]
        assert [place.following for place in again] == [place.following for place in places]
        for place in (*places, *again):
            prefix = tuple(place.episode.messages[begin:])
            begun = Episode(environment, whole.model_copy(update={"prefix": prefix}))
            assert begun.messages == place.episode.messages
            assert begun.view(Party.AGENT) == place.episode.view(Party.AGENT)
            assert begun.database.digest() == place.episode.database.digest()
            assert (begun.turn, begun.steps, begun.errors) == (Party.AGENT, 0, 0)


def test_what_is_called_on_a_fork_changes_neither_its_origin_nor_another_fork() -> None:
    episode = Episode(Mini(), task())
    episode.receive(heard("Please cancel me about order w1."))
    forks = [episode.fork() for _ in range(2)]
    forks[0].receive(called("cancel_order", order_id="w1"))
    assert forks[0].database["orders"]["w1"]["status"] == "cancelled"
    for other in (episode, forks[1]):
        assert other.database["orders"]["w1"]["status"] == "pending"
        assert len(other.messages) == 1
        assert not other.tools.has_same_state(forks[0].tools)
    assert episode.tools.has_same_state(forks[1].tools)


@pytest.mark.benchmarks
def test_a_fork_of_bfcl_has_objects_of_its_own(benchmarks: Path) -> None:
    bfcl = open_environment("bfcl", benchmarks=benchmarks)
    whole = bfcl.task("bfcl/base/0")
    episode = Episode(bfcl, whole)
    episode.receive(bfcl.user(whole).reply([]))
    fork, other = episode.fork(), episode.fork()
    fork.receive(called("mkdir", dir_name="of_the_fork"))
    listed = [e.tools.call("ls", {}).content for e in (episode, fork, other)]
    assert ["of_the_fork" in text for text in listed] == [False, True, False]
    assert episode.tools.has_same_state(other.tools)
    assert not episode.tools.has_same_state(fork.tools)


def test_a_recorded_failure_is_a_lesson_with_its_rollout_and_comes_first() -> None:
    report = make_lessons(SHOP, SHOP.tasks(), 5, 0, [Trajectory(CANCEL, SLIP, "r7")])
    first, *others = report.lessons
    lesson = get_lesson(first)
    assert (lesson.operator, lesson.rollout, lesson.source) == ("recorded", "r7", CANCEL.id)
    assert lesson.reflection.startswith("The call of get_order failed: no such order.")
    assert "order_id was O0 and must be O" in lesson.reflection
    assert first.prefix[-1].error
    check_in_full(SHOP, first)
    assert sorted(get_lesson(t).operator for t in others) == sorted(PERTURBATIONS)
    assert all(get_lesson(t).rollout is None for t in others)


def test_a_recorded_prefix_has_the_agents_reasoning_and_not_its_reflections() -> None:
    recorded = tuple(
        message.model_copy(update={"reasoning": f"So {place}.", "reflection": "Wrong."})
        if message.role == "assistant"
        else message
        for place, message in enumerate(SLIP)
    )
    (lesson,) = make_lessons(SHOP, (), 1, 0, [Trajectory(CANCEL, recorded, "r7")]).lessons
    own = [message for message in lesson.prefix if message.role == "assistant"]
    assert [message.reasoning for message in own] == [
        message.reasoning for message in recorded[: len(lesson.prefix)] if message.reasoning
    ]
    assert own[-1].tool_calls
    assert {message.reflection for message in lesson.prefix} == {None}
    check_in_full(SHOP, lesson)


def test_a_greeting_is_no_part_of_a_recorded_prefix() -> None:
    retail = Retail()
    whole = retail.generate("cancel", 2)
    messages = record_slip(retail, whole, "get_order_details", order_id="#W0")
    assert messages[0].sampled is False
    (lesson,) = make_lessons(retail, (), 1, 0, [Trajectory(whole, messages[1:], "r1")]).lessons
    assert lesson.prefix[0].role == "user"
    check_in_full(retail, lesson)


def test_calls_that_nobody_sampled_are_no_recorded_failures() -> None:
    unsampled = tuple(m.model_copy(update={"sampled": False}) for m in SLIP)
    report = make_lessons(SHOP, (), 5, 0, [Trajectory(CANCEL, unsampled, "r7")])
    assert (report.lessons, report.unused) == ((), {})


def test_a_failure_in_a_lesson_is_a_lesson_of_the_same_source() -> None:
    (first,) = make_lessons(SHOP, (), 1, 0, [Trajectory(CANCEL, SLIP, "r7")]).lessons
    later = (*first.prefix, called("get_order", order_id="O1"), first.prefix[-1])
    marked = [m.model_copy(update={"sampled": False}) for m in first.prefix]
    recording = Trajectory(first, (*marked, *later[len(marked) :]), "r8")
    (second,) = make_lessons(SHOP, (), 5, 0, [recording]).lessons
    assert get_lesson(second).source == CANCEL.id
    assert len(second.prefix) == len(first.prefix) + 2
    check_in_full(SHOP, second)


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: [*m[:-3], m[-3].model_copy(update={"content": "other"}), *m[-2:]],
        lambda m: m[1:],
        lambda m: [m[0], m[0], *m[1:]],
        lambda m: [Message(role="tool", content="{}"), *m],
    ],
)
def test_a_recording_that_replays_no_more_is_counted(damage: Any) -> None:
    report = make_lessons(SHOP, (), 5, 0, [Trajectory(CANCEL, tuple(damage(list(SLIP))), "r7")])
    assert (report.lessons, report.unused) == ((), {"does not replay": 1})


def test_a_text_that_cannot_be_stored_is_no_lesson() -> None:
    opening, *rest = SLIP
    odd = opening.model_copy(update={"content": f"{opening.text} \udc80"})
    report = make_lessons(SHOP, (), 5, 0, [Trajectory(CANCEL, (odd, *rest), "r7")])
    assert report.discarded == {"recorded": {"a text of it cannot be stored": 1}}


def test_a_recorded_success_is_perturbed_like_the_oracles() -> None:
    played, _ = play_trajectory(Grader(SHOP, CANCEL))
    recorded = Trajectory(CANCEL, played.messages, "r9")
    report = make_lessons(SHOP, [recorded], 4, 0)
    assert report.lessons == make_lessons(SHOP, [CANCEL], 4, 0).lessons
    assert {get_lesson(t).rollout for t in report.lessons} == {None}


class Failing(Mini):
    """An environment whose state cannot be made."""

    def pristine(self, task: TaskDefinition) -> Database:
        raise RuntimeError("the disk is gone")


class Clueless(Mini):
    """An environment whose oracle does not know what to do."""

    def oracle(self, task: TaskDefinition) -> Any:
        return self.idle_agent(task)


def test_an_environment_that_raises_is_named_and_stops_nothing() -> None:
    report = make_lessons(Failing(), [task(), task()], 4, 0)
    assert report.unused == {"the environment raised an exception": 2}
    assert report.troubles[0].endswith("RuntimeError: the disk is gone")


def test_a_task_that_the_oracle_fails_is_counted() -> None:
    report = make_lessons(Clueless(), [task()], 4, 0)
    assert (report.lessons, report.unused) == ((), {"the oracle fails": 1})


def test_a_kind_of_task_that_gives_nothing_is_given_up() -> None:
    def endless() -> Iterator[TaskDefinition]:
        while True:
            yield SHOP.generate("cancel", 1)

    report = make_lessons(SHOP, islice(endless(), 50), 4000, 0)
    assert report.unused["tasks of its kind gave none"] > 30


def test_a_sixth_of_the_sources_is_kept_for_tests() -> None:
    splits = Counter(find_split(f"shop/cancel/{seed}") for seed in range(6000))
    assert 900 < splits["test"] < 1100
    assert find_split("shop/cancel/3") == find_split("shop/cancel/3")


def change(lesson: TaskDefinition, **fields: Any) -> TaskDefinition:
    changed = get_lesson(lesson).model_copy(update=fields)
    return lesson.model_copy(update={"lesson": changed}).name_by_content()


def test_a_lesson_that_teaches_something_wrong_is_refused() -> None:
    good = next(
        t for t in make(SHOP, 40).lessons
        if get_lesson(t).operator == "argument" and get_lesson(t).calls
    )  # fmt: skip
    call = get_lesson(good).calls[0]
    cases: Mapping[str, TaskDefinition] = {
        "does not name": change(good, reflection="It was wrong."),
        "it is empty": change(good, reflection=" "),
        "the tag <final>": change(good, reflection="It was <final>wrong</final>."),
        "JSON of a call": change(good, reflection='I wrote {"name": "f", "arguments": {}}.'),
        "may be": change(good, reflection="wrong " * 1000),
        "neither a call nor a text": change(good, calls=(), final=""),
        "writes another message": change(good, calls=(call, call)),
        "is no task of shop": change(good, source="retail/cancel/3"),
        "does not end with a call": good.model_copy(update={"prefix": good.prefix[:1]}),
        "has no lesson": good.model_copy(update={"lesson": None}),
    }
    for reason, wrong in cases.items():
        with pytest.raises(BadLesson, match=reason):
            check_lesson(SHOP, wrong)
