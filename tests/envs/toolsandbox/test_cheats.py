"""Agents that know tools, policy and code, but not the device: none wins toolsandbox's tasks."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from envs.agents import Agent, call
from envs.episode import Episode, play
from envs.grading import grade
from envs.task import TaskDefinition
from envs.toolsandbox.database import TEXTS
from envs.toolsandbox.device.world import PLACES, STOCKS, TOWNS
from envs.toolsandbox.environment import ToolSandbox
from envs.toolsandbox.kinds import KINDS, SWITCHES
from events.messages import Action, Message

PHONE = ToolSandbox()
STATEFUL = sorted(set(KINDS) - PHONE.constant)
ANSWERED = [kind for kind in STATEFUL if PHONE.generate(kind, 0).criteria.outputs]


class Reciter:
    """Makes its calls, then says its texts one after the other, whatever it hears."""

    def __init__(self, calls: Sequence[Action], texts: Sequence[str]) -> None:
        self.steps = [call(action, place) for place, action in enumerate(calls)]
        self.steps += [Message(role="assistant", content=text) for text in texts]

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next call or text; the last one again at the end."""
        done = sum(message.role == "assistant" for message in messages)
        return self.steps[min(done, len(self.steps) - 1)]


def tool(name: str, **arguments: object) -> Action:
    return Action(name=name, arguments=dict(arguments))


def gold(task: TaskDefinition) -> list[Action]:
    return list(task.criteria.gold_actions or ())


def recite(calls: Sequence[Action] | None, text: str) -> Callable[[TaskDefinition], Agent]:
    """The cheat that says a text after these calls; None: after the right ones."""
    return lambda task: Reciter(gold(task) if calls is None else calls, [text])


def count_wins(
    capability: str, cheat: Callable[[TaskDefinition], Agent], seeds: range = range(20)
) -> int:
    """How many of a kind's tasks a cheat wins."""
    wins = 0
    for seed in seeds:
        task = PHONE.generate(capability, seed)
        episode = play(Episode(PHONE, task), cheat(task), PHONE.user(task))
        wins += grade(PHONE, task, episode.messages, episode.termination).success is True
    return wins


CITIES = sorted({place.address.split(", ")[-3] for place in (*PLACES, *TOWNS)})
NUMBERS = {
    "whole numbers": " ".join(map(str, range(400))),
    "tenths": " ".join(f"{number / 10:.1f}" for number in range(-300, 1300)),
    "cents": " ".join(f"{number / 100:.2f}" for number in range(500, 20_000)),
    "all digits as one number": "".join(f"{number:03}" for number in range(1000)),
}
RECITED = {
    **{kind: {"texts": ". ".join(TEXTS)} for kind in ("find_message", "switch_on")},
    "stock_symbol": {"symbols": ", ".join(stock.symbol for stock in STOCKS)},
    "current_city": {"cities": ", ".join(CITIES)},
    **dict.fromkeys(("days_until", "convert_money", "temperature"), NUMBERS),
}
RECITALS = [
    pytest.param(kind, text, id=f"{kind}-{name}")
    for kind, texts in RECITED.items()
    for name, text in texts.items()
]
FEIGNED = [
    tool("set_low_battery_mode_status", on=False),
    tool("set_wifi_status", on=True),
    tool("set_location_service_status", on=True),
    tool("search_messages", content=TEXTS[0]),
    tool("search_holiday", holiday_name="Christmas Day"),
    tool("search_stock", query="Ford"),
    tool("get_current_location"),
    tool("search_lat_lon", latitude=40.689247, longitude=-74.044502),
    tool("search_weather_around_lat_lon", latitude=40.689247, longitude=-74.044502),
]
"""Look-ups that need nothing from the device."""


def test_each_kind_that_demands_an_answer_has_its_recitals() -> None:
    assert set(RECITED) == set(ANSWERED)


@pytest.mark.parametrize("calls", [(), FEIGNED, None], ids=["at once", "feigned", "right"])
@pytest.mark.parametrize(("capability", "recited"), RECITALS)
def test_reciting_wins_at_most_one_of_twenty(
    capability: str, recited: str, calls: Sequence[Action] | None
) -> None:
    assert count_wins(capability, recite(calls, recited)) <= 1


@pytest.mark.parametrize("capability", ANSWERED)
@pytest.mark.parametrize("looks_up", [False, True])
def test_outputs_of_other_tasks_win_at_most_one_of_twenty(capability: str, looks_up: bool) -> None:
    others = Counter(
        output
        for seed in range(1000, 1200)
        for output in PHONE.generate(capability, seed).criteria.outputs
    )
    commonest = [output for output, _ in others.most_common(8)]
    for said in (" ".join(others), " ".join(commonest), commonest[0]):
        assert count_wins(capability, recite(None if looks_up else FEIGNED, said)) <= 1, said


@pytest.mark.long
@pytest.mark.parametrize("capability", ANSWERED)
def test_guesses_win_at_most_one_in_twenty_of_many(capability: str) -> None:
    outputs = [PHONE.generate(capability, 1000 + seed).criteria.outputs[0] for seed in range(200)]
    guesses = [output for output, _ in Counter(outputs).most_common(8)]
    for said in (" ".join(outputs), " ".join(guesses), guesses[0], *RECITED[capability].values()):
        for calls in ((), FEIGNED):
            assert count_wins(capability, recite(calls, said), range(200)) <= 10


@pytest.mark.parametrize("capability", STATEFUL)
def test_calls_without_arguments_and_no_calls_at_all_win_nothing(capability: str) -> None:
    empty = count_wins(
        capability,
        lambda task: Reciter([tool(action.name) for action in gold(task)], ["It is done."]),
    )
    assert (empty, count_wins(capability, recite((), "It is done."))) == (0, 0)


def test_switching_everything_on_is_no_answer_to_one_wish() -> None:
    calls = [
        tool("set_low_battery_mode_status", on=False),
        *(tool(name, on=True) for name in sorted(SWITCHES - {"set_low_battery_mode_status"})),
    ]
    assert count_wins("switch_on", recite(calls, "All is on.")) == 0


def test_trying_every_change_and_undoing_it_wins_nothing() -> None:
    def cheat(task: TaskDefinition) -> Agent:
        number = gold(task)[-1].arguments["phone_number"]
        rows = PHONE.reset(task)["CONTACT"].values()
        changes = [
            tool("modify_contact", person_id=row["person_id"], phone_number=value)
            for row in rows
            for value in (number, row["phone_number"])
        ]
        return Reciter([*gold(task)[:-1], *changes], ["It is done."])

    assert count_wins("change_number", cheat) <= 2
