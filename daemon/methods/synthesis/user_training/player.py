"""Play dialogues between the environment's oracle and an adapter as user, in this process.

As many dialogues run at once as the engine has slots. The user's lines are drawn and chosen as in
any rollout (sampling/adapter_users.py). Guarantee: a dialogue is a function of weights, task and
seed, up to rounding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from daemon.engine.chat import Chat
from daemon.engine.generation import Emission, Engine
from daemon.engine.policy import Policy
from daemon.solver.sampling.adapter_users import UserLine, make_writer
from envs.agents import Agent
from envs.endpoint import AnswerFailure
from envs.environment import Environment
from envs.episode import Episode, Party
from envs.evaluation import environment_code
from envs.simulator import LineWriter
from envs.task import TaskDefinition
from events.jobs import AdapterUser
from events.messages import Message


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A finished episode, with counts of the user's messages."""

    episode: Episode
    written: int
    """Number of lines and calls that the user wrote, dropped ones included."""
    schema_errors: tuple[str, ...]
    """A text on the problem of each malformed line or call."""


@dataclass(slots=True)
class _Open:
    episode: Episode
    oracle: Agent
    writer: LineWriter
    line: UserLine | None = None
    """The user's message that is being written."""
    malformed: list[str] = field(default_factory=list)
    """Problems of calls that do not fit the user's tools."""


class DialoguePlayer:
    """Plays dialogues with an engine in this process."""

    def __init__(self, engine: Engine, chat: Chat, policy: Policy, user: AdapterUser) -> None:
        """`policy` has the weights of the adapter `user`."""
        self.engine, self.chat, self.policy, self.user = engine, chat, policy, user

    def play(
        self, environment: Environment, tasks: Iterable[tuple[TaskDefinition, int]]
    ) -> Iterator[Dialogue]:
        """Yield finished dialogues. Raise EnvironmentFailure, PrefixMismatch, NoTemplate."""
        waiting = iter(tasks)
        writing: dict[int, _Open] = {}
        finished: list[_Open] = []
        count = 0
        while True:
            for task, seed in islice(waiting, self.engine.slots - count):
                count += 1
                entry = self._begin(environment, task, seed)
                self._go_on(entry, writing, finished)
            for emission in self.engine.tick():
                entry = writing[emission.ticket]
                if emission.finish is not None:
                    del writing[emission.ticket]
                if self._take_token(entry, emission, writing):
                    self._go_on(entry, writing, finished)
            for entry in finished:
                errors = (*entry.writer.breaches, *entry.malformed)
                yield Dialogue(entry.episode, entry.writer.answers, errors)
            if not writing and not finished:
                return
            count -= len(finished)
            finished.clear()

    def _begin(self, environment: Environment, task: TaskDefinition, seed: int) -> _Open:
        with environment_code(environment, f"task {task.id}", task):
            episode = Episode(environment, task, seed=seed)
            return _Open(episode, environment.oracle(task), make_writer(self.user, episode))

    def _go_on(self, entry: _Open, writing: dict[int, _Open], finished: list[_Open]) -> None:
        """Let the agent answer, then ask the engine for the user's message."""
        episode = entry.episode
        with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
            while episode.turn is Party.AGENT:
                episode.receive(entry.oracle.reply(episode.view(Party.AGENT)))
        if episode.turn is Party.USER:
            line = UserLine(self.engine, self.chat, self.policy, self.user, entry.writer, episode)
            try:
                line.begin()
            except AnswerFailure as failure:
                episode.stop(failure.termination, failure.reason)
            else:
                entry.line = line
                writing.update(dict.fromkeys(line.tickets, entry))
        if episode.turn is None:
            finished.append(entry)

    def _take_token(self, entry: _Open, emission: Emission, writing: dict[int, _Open]) -> bool:
        """Take a token of the user's message; return whether the message is complete."""
        assert entry.line is not None, "only a user's message is written"
        try:
            message = entry.line.take(emission)
        except AnswerFailure as failure:
            entry.episode.stop(failure.termination, failure.reason)
            return True
        if message is None:
            if emission.finish is not None:
                writing.update(dict.fromkeys(entry.line.tickets, entry))
            return False
        episode = entry.episode
        with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
            entry.malformed += _list_misfits(episode, message)
            episode.receive(message)
        return True


def _list_misfits(episode: Episode, message: Message) -> Iterator[str]:
    """Yield the problem of each call that the user's tools would refuse as malformed."""
    if not message.tool_calls:
        return
    probe = episode.tools.fork(episode.database.copy())
    for call in message.tool_calls:
        if probe.call(call.name, call.arguments, "user").malformed:
            yield f"it calls {call.name} with {str(call.arguments)[:80]}, which does not fit"
