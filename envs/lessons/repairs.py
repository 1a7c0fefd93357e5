"""What is right behind a wrong call: it is made, the oracle goes on, and the task is still done.

    mistake = make_mistake(place, wrong)          the call, made on a fork of the state
    repair = find_repair(mistake, proofs)         what the oracle does next; both raise NoLesson

Proof that the oracle succeeds: its whole rest is played and judged. Where the tools refused the
call and the state is as it was, one such proof holds for every refused call of the same place after
which the oracle writes the same (tests/envs/lessons plays all of them).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envs.agents import Agent
from envs.environment import Environment
from envs.episode import Episode, Party
from envs.grading import grade
from envs.lessons.operators import WrongCall
from envs.lessons.trajectories import Place
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.messages import Action, ExecutedCall, Message, ToolCall, executed_calls

HARMLESS: Final = "harmless"
INDEPENDENT: Final = "does not need the call before it"
NO_REPAIR: Final = "no repair"
EXPECTED_FAILS: Final = "the expected call fails"
ENDS: Final = "ends the episode"


class NoLesson(KintsugiError):
    """A wrong call gives no lesson; the text is the reason, in a few words."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong call that was made."""

    episode: Episode
    """The episode behind it; all of it is a prefix."""
    calls: tuple[ExecutedCall, ...]
    """Those that were made in place of the right one, with their results."""
    is_unchanged: bool
    """Whether the state is surely as it was."""
    is_repeated: bool = False
    """Whether the right call was made twice."""
    comes_too_early: bool = False
    """Whether it is a later call of the same trajectory."""

    @property
    def is_refused(self) -> bool:
        """Whether a tool answered with an error."""
        return any(item.failed for item in self.calls)

    @property
    def wrong(self) -> ExecutedCall:
        """The first call that failed, else the last one."""
        return next((item for item in self.calls if item.failed), self.calls[-1])


@dataclass(frozen=True, slots=True)
class Continuation:
    """How the oracle goes on, as long as it succeeds."""

    next_call: ToolCall | None
    """Its first call, in its next message or a later one; None where it makes none."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a right agent writes next."""

    message: Message
    continuation: Continuation

    @property
    def calls(self) -> tuple[Action, ...]:
        """Its calls as the lesson has them."""
        return tuple(
            Action(name=call.name, arguments=call.arguments)
            for call in self.message.tool_calls
            if isinstance(call.arguments, dict)
        )


Proofs = dict[tuple[int, str], Continuation | None]
"""(Step, expected message) -> how the oracle goes on from there; None where it fails."""


def make_mistake(environment: Environment, place: Place, wrong: WrongCall) -> Mistake:
    """Make a wrong call in place of the right one, on a fork of the state. Raises NoLesson for one
    that no tool refuses and that changes nothing, unless it is a repetition."""
    episode = place.episode.fork()
    calls = tuple(
        call.model_copy(update={"id": f"call_{place.step}_{number}"})
        for number, call in enumerate((*place.before, *wrong.calls))
    )
    begin = len(episode.messages)
    episode.receive(Message(role="assistant", content=place.text, tool_calls=calls))
    if episode.turn is not Party.AGENT:
        raise NoLesson(ENDS)
    made = tuple(executed_calls(episode.messages[begin:]))[len(place.before) :]
    mistake = Mistake(
        episode,
        made,
        is_unchanged=not place.before and episode.tools.has_same_state(place.episode.tools),
        is_repeated=wrong.operator == "redundant",
        comes_too_early=wrong.comes_too_early,
    )
    if not mistake.is_refused and not mistake.is_repeated:
        if mistake.is_unchanged:
            raise NoLesson(HARMLESS)
        if wrong.comes_too_early and not wrong.is_dependent:
            raise NoLesson(INDEPENDENT)
    episode.take_as_prefix()
    return mistake


def find_repair(
    environment: Environment, mistake: Mistake, step: int, failures: int, proofs: Proofs
) -> Repair:
    """Return what the oracle does next behind a wrong call. Raises NoLesson where it makes a call
    that fails, fails more often than `failures` on its way, or fails the task."""
    episode = mistake.episode
    oracle = environment.oracle(episode.task)
    expected = oracle.reply(episode.view(Party.AGENT))
    after = episode.fork()
    after.receive(expected)
    if expected.tool_calls and any(
        item.failed for item in executed_calls(after.messages[len(episode.messages) :])
    ):
        raise NoLesson(EXPECTED_FAILS)
    if not (mistake.is_refused and mistake.is_unchanged):
        continuation = _play_on(environment, after, oracle, len(episode.messages), failures)
    else:
        key = step, _write_key(expected)
        if key not in proofs:
            begin = len(episode.messages)
            proofs[key] = _play_on(environment, after, oracle, begin, failures)
        continuation = proofs[key]
    if continuation is None:
        raise NoLesson(NO_REPAIR)
    return Repair(expected, continuation)


def _write_key(message: Message) -> str:
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return f"{message.text}\n{calls!r}"


def _play_on(
    environment: Environment, episode: Episode, oracle: Agent, begin: int, failures: int
) -> Continuation | None:
    """Play an episode to its end; return how, or None where the task is failed."""
    task: TaskDefinition = episode.task
    user = environment.user(task)
    while episode.turn is not None:
        party = oracle if episode.turn is Party.AGENT else user
        episode.receive(party.reply(episode.view(episode.turn)))
    if episode.errors > failures:
        return None
    if not grade(environment, task, episode.messages, episode.termination).success:
        return None
    calls = (call for message in _agents(episode.messages[begin:]) for call in message.tool_calls)
    return Continuation(next(calls, None))


def _agents(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "assistant"]
