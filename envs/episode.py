"""One episode by the turn protocol, without any I/O; the caller plays agent and user.

    episode = Episode(environment, task)
    while episode.turn is not None:
        party = agent if episode.turn is Party.AGENT else user
        episode.receive(party.reply(episode.view(episode.turn)))

Tools answer an agent's calls at once. Other messages of the agent go to the user, and the user's to
the agent. A user with tools (dual control) calls them in the same way and keeps its turn; neither
party sees the other's calls. A solo task has no user: the agent begins, and its first message
without a call ends the episode. This is tau2-bench's half-duplex protocol. It counts steps, checks
limits only between messages of the parties, and ends at a stop token in the user's text. Errors are
counted per party, so a user's wrong calls end the episode as `user_error`.

An episode of a task with a prefix begins where the prefix ends. The prefix's calls are made again,
so that the state has their writes. Its messages stand in the transcript as not sampled and count
for no limit or error.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from envs.agents import Agent
from envs.comparison.evidence import remove_thought
from envs.environment import Environment, Limits
from envs.task import TaskDefinition
from envs.users import STOP, STOP_TOKENS, User
from events.errors import KintsugiError
from events.messages import Message, Requestor


class Party(StrEnum):
    """The parties of a conversation."""

    AGENT = "agent"
    USER = "user"


_SHOWN: Final = 200
"""Largest number of characters of a message that an error quotes."""

_WRITERS: Final = {"assistant": Party.AGENT, "user": Party.USER}
"""Role of a message -> the party that writes it."""


class PrefixMismatch(KintsugiError):
    """Replaying the prefix of a task gives other messages, so the task cannot be played."""


class Termination(StrEnum):
    """The reason why an episode is over, in tau2-bench's words."""

    USER_STOP = "user_stop"
    """The user hung up. This and `agent_stop` are the only regular endings."""
    AGENT_STOP = "agent_stop"
    """The agent said a stop token."""
    MAX_STEPS = "max_steps"
    TOO_MANY_ERRORS = "too_many_errors"
    TIMEOUT = "timeout"
    CONTEXT_OVERFLOW = "context_window_exceeded"
    AGENT_ERROR = "agent_error"
    """The agent's answer was not a usable message: empty, unreadable or too large."""
    USER_ERROR = "user_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """A machine failed and not the agent, so the rollout is not judged."""


REGULAR: Final = frozenset({Termination.USER_STOP, Termination.AGENT_STOP})
"""Terminations after which a reward may be above 0."""


class Episode:
    """The state of one attempt at a task while it is played."""

    def __init__(
        self,
        environment: Environment,
        task: TaskDefinition,
        *,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """Begin an episode of `task`, and replay its prefix. Raise PrefixMismatch."""
        self.environment = environment
        self.task = task
        self.seed = seed
        """Seed of the players' sampling. The environment itself does not depend on it."""
        self.limits = limits or environment.limits
        self.database = environment.reset(task)
        self.tools = environment.open_tools(task, self.database)
        self.messages: list[Message] = []
        """The transcript so far, without the system prompt."""
        self.steps = 0
        self.rounds = 0
        """Number of the agent's messages with calls since the user's last message."""
        self.errors = 0
        """Number of the agent's calls that failed."""
        self.user_errors = 0
        self.malformed = 0
        """The agent's malformed calls: no JSON, an unknown tool, or arguments that do not fit."""
        self.defects: list[str] = []
        """Descriptions of exceptions that no tool should raise."""
        self.termination: Termination | None = None
        self.reason = ""
        """Details about the end, if the termination alone does not tell enough."""
        self.turn: Party | None = Party.AGENT if task.solo else Party.USER
        policy = environment.policy(task)
        self._system = [Message(role="system", content=policy)] if policy else []
        if environment.greeting is not None and not task.solo:
            greeting = Message(role="assistant", content=environment.greeting, sampled=False)
            self.messages.append(greeting)
        if task.prefix:
            self._replay(task.prefix)

    def receive(self, message: Message) -> None:
        """Take the next message of the party at turn. Raise RuntimeError if the episode is over."""
        if self.turn is None:
            raise RuntimeError(f"episode of {self.task.id} is over: {self.termination}")
        self._take(message)
        if self.termination is None:
            self._check_limits()

    def stop(self, termination: Termination, reason: str = "") -> None:
        """End the episode from outside."""
        self.turn = None
        self.termination = termination
        self.reason = reason

    def fork(self) -> "Episode":
        """Return an independent copy of this episode and its state, to be played on separately."""
        other = object.__new__(Episode)
        vars(other).update(vars(self))
        other.messages, other.defects = list(self.messages), list(self.defects)
        other.database = self.database.copy()
        other.tools = self.tools.fork(other.database)
        return other

    def take_as_prefix(self, known: Sequence[Message] = ()) -> None:
        """Treat the conversation so far as the task's prefix: mark it as not sampled and reset all
        counts. `known` are its first messages if an earlier fork has already converted them."""
        self.steps = self.rounds = self.errors = self.user_errors = self.malformed = 0
        self.messages = [
            *known,
            *[
                message
                if message.sampled is False
                else message.model_copy(update={"sampled": False})
                for message in self.messages[len(known) :]
            ],
        ]

    def view(self, party: Party) -> list[Message]:
        """Return what a party can see: all texts, its own calls and their results. The agent also
        sees its policy. The user's own messages keep the role `user`."""
        if party is Party.AGENT:
            if self.environment.user_toolset is None:
                return [*self._system, *self.messages]
            return [*self._system, *hide_calls(self.messages, of="user")]
        return hide_calls(map(self._hear, self.messages), of="assistant")

    def _hear(self, message: Message) -> Message:
        return message if self.task.criteria.rules is None else remove_thought(message)

    def _replay(self, prefix: Sequence[Message]) -> None:
        """Replay a task's prefix, after which the episode goes on. Raise PrefixMismatch."""
        begin = len(self.messages)
        for place, message in enumerate(prefix):
            if message.role == "tool":
                continue
            if self.turn is None or self.turn is not _WRITERS.get(message.role):
                raise self._mismatch(place, f"a message of {message.role}, {self._describe_turn()}")
            self._take(_name_calls(message, len(self.messages)))
        again = self.messages[begin:]
        for place, (before, now) in enumerate(zip(prefix, again, strict=False)):
            if _answer(before) != _answer(now):
                raise self._mismatch(place, f"{_show(before)}, and now {_show(now)}")
        if len(prefix) != len(again):
            raise self._mismatch(
                min(len(prefix), len(again)), f"{len(prefix)} messages, and now {len(again)}"
            )
        if self.turn is None:
            raise self._mismatch(len(prefix) - 1, f"it ends the episode: {self.termination}")
        self.take_as_prefix()

    def _mismatch(self, place: int, reason: str) -> PrefixMismatch:
        if self.task.salt is not None:
            reason = "what it says there is a person's"
        return PrefixMismatch(
            f"the prefix of task {self.task.id} does not replay in {self.environment.name}, "
            f"message {place}: {reason}; record the prefix anew, or leave the task out"
        )

    def _describe_turn(self) -> str:
        return "after the end" if self.turn is None else f"at the {self.turn}'s turn"

    def _take(self, message: Message) -> None:
        """Add a message of the party whose turn it is, without checking limits."""
        if self.turn is Party.AGENT:
            self._from_agent(message)
        else:
            self._from_user(message)

    def _from_agent(self, message: Message) -> None:
        if message.role != "assistant":
            raise ValueError(f"the agent's message has the role {message.role!r}, not 'assistant'")
        self.messages.append(message)
        self.steps += 1
        if len(message.tool_calls) > self.limits.max_calls:
            self.stop(Termination.AGENT_ERROR, self._too_many_calls(message))
        elif message.tool_calls:
            self.rounds += 1
            self._run_tools(message)
        elif not (text := self._hear(message).text).strip():
            self.stop(Termination.AGENT_ERROR, "the agent said nothing and called nothing")
        elif STOP in text or self.task.solo:
            self.stop(Termination.AGENT_STOP)
        else:
            self.turn = Party.USER

    def _too_many_calls(self, message: Message) -> str:
        calls, most = len(message.tool_calls), self.limits.max_calls
        return f"{calls:,} calls in one message; {most} may be"

    def _run_tools(self, message: Message) -> None:
        requestor: Requestor = "user" if message.role == "user" else "assistant"
        for call in message.tool_calls:
            result = self.tools.call(call.name, call.arguments, requestor)
            if requestor == "user":
                self.user_errors += result.error
            else:
                self.errors += result.error
                self.malformed += result.malformed
            if result.defect is not None:
                self.defects.append(result.defect)
            self.messages.append(
                Message(
                    role="tool",
                    content=result.content,
                    tool_call_id=call.id,
                    name=call.name,
                    error=result.error,
                    sampled=message.sampled,
                )
            )
        self.steps += 1

    def _from_user(self, message: Message) -> None:
        if message.role != "user":
            raise ValueError(f"the user's message has the role {message.role!r}, not 'user'")
        self.messages.append(message)
        self.steps += 1
        self.rounds = 0
        if message.tool_calls:
            self._from_acting_user(message)
        elif not message.text.strip():
            self.stop(Termination.USER_ERROR, "the user said nothing")
        elif any(token in message.text for token in STOP_TOKENS):
            self.stop(Termination.USER_STOP)
        else:
            self.turn = Party.AGENT

    def _from_acting_user(self, message: Message) -> None:
        if self.environment.user_toolset is None:
            self.stop(Termination.USER_ERROR, "the user called a tool; users here have none")
        elif len(message.tool_calls) > self.limits.max_calls:
            self.stop(Termination.USER_ERROR, self._too_many_calls(message))
        else:
            self._run_tools(message)

    def _check_limits(self) -> None:
        if self.steps >= self.limits.max_steps:
            self.stop(Termination.MAX_STEPS, f"{self.steps} steps")
        elif self.limits.max_rounds is not None and self.rounds > self.limits.max_rounds:
            self.stop(Termination.MAX_STEPS, f"{self.rounds} messages with calls in one turn")
        elif self.errors >= self.limits.max_errors:
            self.stop(Termination.TOO_MANY_ERRORS, f"{self.errors} calls failed")
        elif self.user_errors >= self.limits.max_errors:
            self.stop(Termination.USER_ERROR, f"{self.user_errors} calls of the user failed")


def _name_calls(message: Message, turn: int) -> Message:
    """Return the message with an id for each call; endpoints refuse calls without ids."""
    if all(call.id for call in message.tool_calls):
        return message
    calls = tuple(
        call if call.id else call.model_copy(update={"id": f"call_{turn}_{place}"})
        for place, call in enumerate(message.tool_calls)
    )
    return message.model_copy(update={"tool_calls": calls})


def _answer(message: Message) -> tuple[str, bool] | None:
    """Return the text and error flag of a tool result, or None for another message."""
    if message.role != "tool":
        return None
    return message.text, bool(message.error)


def _show(message: Message) -> str:
    failed = " (an error)" if message.error else ""
    return f"{message.role} {message.text[:_SHOWN]!r}{failed}"


def hide_calls(messages: Iterable[Message], *, of: Requestor) -> list[Message]:
    """Return the transcript without the calls of one party and their results."""
    shown: list[Message] = []
    hidden = False
    for message in messages:
        if message.role != "tool":
            hidden = bool(message.tool_calls) and message.role == of
        if not hidden:
            shown.append(message)
    return shown


def check_prefix(environment: Environment, task: TaskDefinition) -> None:
    """Replay the task's prefix if it has one. Raise PrefixMismatch."""
    if task.prefix:
        Episode(environment, task)


def play(episode: Episode, agent: Agent, user: User) -> Episode:
    """Play an episode to its end with an agent and a user that answer synchronously."""
    while episode.turn is not None:
        party = agent if episode.turn is Party.AGENT else user
        episode.receive(party.reply(episode.view(episode.turn)))
    return episode
