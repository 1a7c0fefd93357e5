"""A user who has tools: who reaches which, what each party sees, and how it is judged."""

import pytest

from envs.environment import Limits
from envs.episode import Episode, Party, Termination
from envs.grading import grade
from envs.task import TaskDefinition
from envs.users import STOP
from events.messages import Message, ToolCall, executed_calls
from tests.envs.lamp import Lamp, acts
from tests.envs.mini import Mini, called, heard, said
from tests.envs.mini import task as mini_task

ON, PRESS, LOOK = called("power_on"), acts("press"), acts("look")
BYE = heard(f"It is bright. {STOP}")


def lamp_task(ticket: str | None = None) -> TaskDefinition:
    """The lamp's task."""
    task = Lamp().generate("dark", 0)
    return task if ticket is None else task.make_solo("lamp/dark/0/solo", ticket)


def after(*messages: Message, ticket: str | None = None, **limits: int) -> Episode:
    """An episode that received these messages."""
    episode = Episode(Lamp(), lamp_task(ticket), limits=Limits(**limits))
    for message in messages:
        episode.receive(message)
    return episode


def judged(episode: Episode) -> float | None:
    """The unshaped reward of an episode."""
    return grade(Lamp(), episode.task, episode.messages, episode.termination).reward


def test_a_user_who_calls_a_tool_is_answered_and_stays_at_turn() -> None:
    episode = after(heard("Dark."), said("Press it."), PRESS)
    assert (episode.turn, episode.steps) == (Party.USER, 4)
    assert [message.role for message in episode.messages[-2:]] == ["user", "tool"]
    assert [item.requestor for item in executed_calls(episode.messages)] == ["user"]


def test_neither_party_sees_the_calls_of_the_other() -> None:
    episode = after(heard("Dark."), ON, said("Press it."), PRESS, LOOK, heard("Bright."))
    agent, user = episode.view(Party.AGENT), episode.view(Party.USER)
    texts = [message.text for message in agent]
    assert texts == ["Help.", "Dark.", "", "on", "Press it.", "Bright."]
    assert [m.text for m in user] == ["Dark.", "Press it.", "", "pressed", "", "bright", "Bright."]
    assert len(episode.messages) == 9


def test_each_party_reaches_its_own_tools_alone() -> None:
    episode = after(heard("Dark."), called("press"), said("Hm."), acts("power_on"))
    contents = [message.text for message in episode.messages if message.role == "tool"]
    assert contents == ["Error: Tool 'press' not found.", "Error: Tool 'power_on' not found."]
    assert (episode.errors, episode.malformed, episode.user_errors) == (1, 1, 1)
    assert episode.database.digest() == Lamp().reset(episode.task).digest()


def test_the_steps_of_both_parties_make_the_verdict() -> None:
    assert judged(after(heard("Dark."), ON, said("Press it."), PRESS, BYE)) == 1
    assert judged(after(heard("Dark."), ON, said("Press it."), BYE)) == 0
    assert judged(after(heard("Dark."), said("Press it."), PRESS, BYE)) == 0


def test_a_user_who_calls_wrongly_again_and_again_is_no_failure_of_the_agent() -> None:
    episode = after(heard("Dark."), said("Press."), *[acts("press", times=0)] * 3, max_errors=3)
    assert (episode.termination, episode.errors) == (Termination.USER_ERROR, 0)


def test_a_user_without_tools_cannot_call_one() -> None:
    episode = Episode(Mini(), mini_task())
    episode.receive(PRESS)
    assert episode.termination is Termination.USER_ERROR


def test_an_agent_that_works_alone_has_both_kinds_of_tools_and_ends_with_a_text() -> None:
    episode = after(ON, called("press"), said("Done."), ticket="The lamp is dark.")
    assert (episode.termination, judged(episode)) == (Termination.AGENT_STOP, 1)
    names = [schema["function"]["name"] for schema in Lamp().schemas(episode.task)]
    assert names == ["power_on", "look", "press"]
    assert Lamp().user_schemas(episode.task) == []


def test_nobody_but_the_agent_speaks_where_it_works_alone() -> None:
    episode = after(ticket="The lamp is dark.")
    assert (episode.turn, episode.messages) == (Party.AGENT, [])
    with pytest.raises(ValueError, match="'assistant'"):
        episode.receive(heard("Hello."))


def test_a_task_without_the_later_fields_keeps_its_digest() -> None:
    dumped = mini_task().model_dump(mode="json")
    assert not {"setup", "ticket"} & dumped.keys()
    assert "assertions" not in dumped["criteria"]


def test_a_task_with_the_later_fields_survives_being_stored() -> None:
    task = lamp_task("The lamp is dark.")
    assert TaskDefinition.model_validate_json(task.model_dump_json()) == task
    assert task.digest() != lamp_task().digest()


def test_too_many_calls_of_the_user_in_one_message_end_it() -> None:
    many = Message(role="user", tool_calls=(ToolCall(name="look"),) * 3)
    episode = after(heard("Dark."), said("Look."), many, max_calls=2)
    assert episode.termination is Termination.USER_ERROR
