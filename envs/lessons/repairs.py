"""Find the right message after a wrong call: make the call, let the oracle go on, judge the task.

    mistake = make_mistake(place, wrong)          the call, made on a fork of the state
    repair = find_repair(mistake, proofs)         what the oracle does next; both raise NoLesson

The proof that the oracle succeeds is to play the rest of the episode and judge it. If the state is
the trajectory's, wrong calls at one place share a proof when the oracle writes the same message. If
that is the trajectory's own message there, all places share one proof and its results.
"""

from dataclasses import dataclass
from typing import Final

from envs.agents import Agent
from envs.environment import Environment
from envs.episode import Episode, Party, play
from envs.grading import Grader
from envs.lessons.operators import WrongCall
from envs.lessons.trajectories import Place
from events.errors import KintsugiError
from events.messages import Action, ExecutedCall, Message, ToolCall, executed_calls

HARMLESS: Final = "harmless"
INDEPENDENT: Final = "does not need the call before it"
NO_REPAIR: Final = "no repair"
EXPECTED_FAILS: Final = "the expected call fails"
ENDS: Final = "ends the episode"


class NoLesson(KintsugiError):
    """A wrong call yields no lesson. The text is the reason, in a few words."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong call and its result."""

    episode: Episode
    """The episode after the wrong call; all its messages count as a prefix."""
    calls: tuple[ExecutedCall, ...]
    """The calls made in place of the right one, with their results."""
    has_clean_state: bool
    """Whether the state is surely the trajectory's: the state before the right call or, for a
    repeated call, the state after it."""
    is_repeated: bool = False
    comes_too_early: bool = False
    """Whether it is a later call of the same trajectory, made too early."""

    @property
    def is_refused(self) -> bool:
        """Whether a tool answered with an error."""
        return any(item.failed for item in self.calls)

    @property
    def wrong(self) -> ExecutedCall:
        """The first call that failed, or else the last one."""
        return next((item for item in self.calls if item.failed), self.calls[-1])


@dataclass(frozen=True, slots=True)
class Repair:
    """The oracle's next message after a wrong call, with which it goes on to succeed."""

    message: Message
    next_call: ToolCall | None
    """The oracle's first call, in this message or a later one. None if it makes none."""

    @property
    def calls(self) -> tuple[Action, ...]:
        """The calls of the message, in the form that a lesson stores."""
        return tuple(
            Action(name=call.name, arguments=call.arguments)
            for call in self.message.tool_calls
            if isinstance(call.arguments, dict)
        )


class Proofs:
    """Results of proofs within one trajectory, reused for wrong calls with the same outcome."""

    def __init__(self, grader: Grader, failures: int) -> None:
        self.grader = grader
        self.failures = failures
        """Number of calls that fail in the trajectory itself."""
        self.known: dict[tuple[int | None, bool, str], tuple[ToolCall | None, str | None]] = {}
        """Step (None: any), whether a tool refused, expected message ("": the trajectory's) -> the
        next call, and the reason why there is no lesson (None: there is one)."""


def make_mistake(environment: Environment, place: Place, wrong: WrongCall) -> Mistake:
    """Make a wrong call on a fork of the state. Raise NoLesson if no tool refuses it and it changes
    nothing, unless it is a repetition."""
    episode = place.episode.fork()
    called = [(call.name, call.arguments) for call in place.before]
    called += [(wrong.name, wrong.arguments)] * wrong.times
    calls = tuple(
        ToolCall(name=name, arguments=arguments, id=f"call_{place.step}_{number}")
        for number, (name, arguments) in enumerate(called)
    )
    begin = len(episode.messages)
    content = place.message.content
    episode.receive(Message(role="assistant", content=content, tool_calls=calls, sampled=False))
    if episode.turn is not Party.AGENT:
        raise NoLesson(ENDS)
    made = tuple(executed_calls(episode.messages[begin:]))[len(place.before) :]
    is_repeated = wrong.operator == "redundant"
    mistake = Mistake(
        episode,
        made,
        has_clean_state=_has_clean_state(episode, place, is_repeated),
        is_repeated=is_repeated,
        comes_too_early=wrong.comes_too_early,
    )
    if not mistake.is_refused and not mistake.is_repeated:
        if mistake.has_clean_state:
            raise NoLesson(HARMLESS)
        if wrong.comes_too_early and not wrong.is_dependent:
            raise NoLesson(INDEPENDENT)
    episode.take_as_prefix()
    return mistake


def _has_clean_state(episode: Episode, place: Place, is_repeated: bool) -> bool:
    if place.before:
        return False
    if episode.tools.has_same_state(place.episode.tools):
        return True
    return is_repeated and episode.tools.has_same_state(place.tools_behind)


def find_repair(
    environment: Environment, mistake: Mistake, place: Place | None, proofs: Proofs
) -> Repair:
    """Return the oracle's next message after a mistake; `place` is that of the wrong call. Raise
    NoLesson if a call of it fails, more calls fail than in the trajectory, or the task fails."""
    episode = mistake.episode
    oracle = environment.oracle(episode.task)
    expected = oracle.reply(episode.view(Party.AGENT))
    if place is None or not mistake.has_clean_state:
        next_call, fault = _prove(episode, oracle, expected, proofs)
    else:
        key = _find_key(mistake, place, expected, proofs)
        if key not in proofs.known:
            proofs.known[key] = _prove(episode, oracle, expected, proofs)
        next_call, fault = proofs.known[key]
    if fault is not None:
        raise NoLesson(fault)
    return Repair(expected, expected.tool_calls[0] if expected.tool_calls else next_call)


def _find_key(
    mistake: Mistake, place: Place, expected: Message, proofs: Proofs
) -> tuple[int | None, bool, str]:
    clean = place.following if mistake.is_repeated else place.message
    written = _write_key(expected)
    rejoins = clean is not None and _write_key(clean) == written
    if rejoins and not proofs.failures and len(place.message.tool_calls) == 1:
        return None, mistake.is_refused, ""
    return place.step, mistake.is_refused, written


def _write_key(message: Message) -> str:
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return f"{message.text}\n{calls!r}"


def _prove(
    place: Episode, oracle: Agent, expected: Message, proofs: Proofs
) -> tuple[ToolCall | None, str | None]:
    """Play an episode to its end. Return the oracle's next call, and any reason for no lesson."""
    episode, begin = place.fork(), len(place.messages)
    episode.receive(expected)
    if any(item.failed for item in executed_calls(episode.messages[begin:])):
        return None, EXPECTED_FAILS
    play(episode, oracle, episode.environment.user(episode.task))
    verdict = proofs.grader.grade(episode.messages, episode.termination)
    if episode.errors > proofs.failures or not verdict.success:
        return None, NO_REPAIR
    calls = (
        call
        for message in episode.messages[begin:]
        if message.role == "assistant"
        for call in message.tool_calls
    )
    return next(calls, None), None
