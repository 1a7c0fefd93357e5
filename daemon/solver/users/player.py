"""Play dialogues whose user is an adapter, in this process.

    player = DialoguePlayer(Engine(user), Chat(directory), user, UserSettings())
    for dialogue in player.play(environment, [(task, seed), ...]):
        ...

The agent is the environment's oracle, or another policy of the same engine. As many dialogues are
open as the engine has slots. For each line of the user `candidates` are drawn; what breaks a rule
for lines (envs/simulator.py) is noted and dropped, and of the rest the most frequent is taken, of
several the first. Where none is left they are drawn again, with other seeds and at temperature 1 at
least, at most `ROUNDS` times; then the dialogue ends as `user_error`.

Guarantee: a dialogue is a function of weights, task and seed, up to rounding. Not covered: panels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from daemon.engine.chat import Chat
from daemon.engine.generation import Emission, Engine, PromptTooLong, Request
from daemon.engine.policy import Policy
from daemon.solver.users.examples import read_user_message, render_user_prompt
from envs.agents import Agent
from envs.endpoint import request_seed
from envs.environment import Environment
from envs.episode import Episode, Party, Termination
from envs.evaluation import environment_code
from envs.simulator import ROUNDS, find_breach
from envs.task import TaskDefinition
from events.messages import Message


@dataclass(frozen=True, slots=True)
class UserSettings:
    """How the user's lines are drawn."""

    temperature: float = 0.0
    max_tokens: int = 256
    """Per line."""
    candidates: int = 1
    """Lines that it writes to choose from."""


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """A policy that plays the agent, and how its turns are drawn."""

    policy: Policy
    temperature: float = 1.0
    max_tokens: int = 512
    """Per turn."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A finished episode, and what its user wrote."""

    episode: Episode
    written: int
    """Lines and calls that the user wrote, those that were dropped included."""
    breaches: tuple[str, ...]
    """What breaks the form of a user's line or call, in words, of each that does."""


@dataclass(slots=True)
class _Open:
    """A dialogue in progress."""

    episode: Episode
    oracle: Agent
    round: int = 0
    """How often candidates for the present line were drawn."""
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Ticket -> tokens of a candidate, or of the agent's turn, in the order of submission."""
    cut: set[int] = field(default_factory=set)
    """Tickets of what a limit cut off."""
    pending: set[int] = field(default_factory=set)
    written: int = 0
    breaches: list[str] = field(default_factory=list)


class DialoguePlayer:
    """Plays dialogues with an engine of this process."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        user: Policy,
        settings: UserSettings,
        agent: AgentPolicy | None = None,
    ) -> None:
        """`agent`: who plays the agent; None: the environment's oracle."""
        self.engine, self.chat, self.user = engine, chat, user
        self.settings, self.agent = settings, agent

    def play(
        self, environment: Environment, tasks: Iterable[tuple[TaskDefinition, int]]
    ) -> Iterator[Dialogue]:
        """Yield the dialogue of each task with its seed, as it finishes. Raises
        EnvironmentFailure, PrefixMismatch, NoTemplate."""
        waiting = iter(tasks)
        playing: list[_Open] = []
        by_ticket: dict[int, _Open] = {}
        while True:
            for task, seed in islice(waiting, self.engine.slots - len(playing)):
                playing.append(self._begin(environment, task, seed))
                self._go_on(playing[-1], by_ticket)
            for emission in self.engine.tick():
                entry = by_ticket[emission.ticket]
                entry.drafts[emission.ticket].append(emission.token)
                if emission.finish is not None:
                    del by_ticket[emission.ticket]
                    self._finish(entry, emission)
                    if not entry.pending:
                        self._take(entry)
                        self._go_on(entry, by_ticket)
            over = [entry for entry in playing if entry.episode.turn is None]
            playing = [entry for entry in playing if entry.episode.turn is not None]
            for entry in over:
                yield Dialogue(entry.episode, entry.written, tuple(entry.breaches))
            if not playing and not over:
                return

    def _begin(self, environment: Environment, task: TaskDefinition, seed: int) -> _Open:
        with environment_code(environment, f"task {task.id}", task):
            return _Open(Episode(environment, task, seed=seed), environment.oracle(task))

    def _go_on(self, entry: _Open, by_ticket: dict[int, _Open]) -> None:
        """Let a scripted agent have its turn, then request what a model has to write."""
        episode = entry.episode
        if self.agent is None:
            with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
                while episode.turn is Party.AGENT:
                    episode.receive(entry.oracle.reply(episode.view(Party.AGENT)))
        try:
            if episode.turn is Party.USER:
                self._request_line(entry, by_ticket)
            elif episode.turn is Party.AGENT and self.agent is not None:
                self._request_answer(entry, self.agent, by_ticket)
        except PromptTooLong as error:
            episode.stop(Termination.CONTEXT_OVERFLOW, str(error))

    def _request_line(self, entry: _Open, by_ticket: dict[int, _Open]) -> None:
        """Request the candidates for the user's next line."""
        episode, settings = entry.episode, self.settings
        prompt = render_user_prompt(self.chat, episode)
        # The likeliest line broke a rule, and would be the same again.
        least = 1.0 if entry.round else 0.0
        temperature = max(settings.temperature, least)
        for number in range(settings.candidates if temperature else 1):
            seed = request_seed(episode.seed, "user", len(episode.messages), entry.round, number)
            request = Request(
                prompt=prompt,
                max_tokens=settings.max_tokens,
                temperature=temperature,
                seed=seed,
                stop=self.chat.ends,
            )
            self._submit(entry, self.user, request, by_ticket)

    def _request_answer(
        self, entry: _Open, agent: AgentPolicy, by_ticket: dict[int, _Open]
    ) -> None:
        """Request the agent's next turn."""
        episode = entry.episode
        view = episode.view(Party.AGENT)
        schemas = episode.environment.select_schemas(episode.task, view)
        request = Request(
            prompt=self.chat.prompt(view, schemas if self.chat.shows_tools else ()),
            max_tokens=agent.max_tokens,
            temperature=agent.temperature,
            seed=request_seed(episode.seed, len(view)),
            stop=self.chat.ends,
        )
        self._submit(entry, agent.policy, request, by_ticket)

    def _submit(
        self, entry: _Open, policy: Policy, request: Request, by_ticket: dict[int, _Open]
    ) -> None:
        ticket = self.engine.submit(policy, request)
        entry.drafts[ticket] = []
        entry.pending.add(ticket)
        by_ticket[ticket] = entry

    def _finish(self, entry: _Open, last: Emission) -> None:
        entry.pending.discard(last.ticket)
        if last.finish == "length":
            entry.cut.add(last.ticket)

    def _take(self, entry: _Open) -> None:
        """Give the episode what was written, or note why it cannot be used."""
        episode = entry.episode
        drafts, cut = entry.drafts, entry.cut
        entry.drafts, entry.cut = {}, set()
        with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
            if episode.turn is Party.USER:
                self._take_line(entry, drafts, cut)
            elif cut:
                episode.stop(Termination.AGENT_ERROR, "an answer of the agent was cut off")
            else:
                (ids,) = drafts.values()
                episode.receive(self.chat.message(ids, len(episode.messages)))

    def _take_line(self, entry: _Open, drafts: dict[int, list[int]], cut: set[int]) -> None:
        episode = entry.episode
        usable: list[Message] = []
        for ticket, ids in drafts.items():
            message = read_user_message(self.chat, ids, len(episode.messages))
            problems = list(self._list_breaches(episode, message, cut=ticket in cut))
            entry.written += max(1, len(message.tool_calls))
            entry.breaches += problems
            # The tools of the episode answer a call that does not fit.
            if not problems or (message.tool_calls and episode.environment.user_toolset):
                usable.append(message)
        if usable:
            entry.round = 0
            episode.receive(choose_line(usable))
            return
        entry.round += 1
        if entry.round >= ROUNDS:
            reason = f"no line could be used in {ROUNDS} rounds: {entry.breaches[-1]}"
            episode.stop(Termination.USER_ERROR, reason)

    def _list_breaches(self, episode: Episode, message: Message, *, cut: bool) -> Iterator[str]:
        """Yield what breaks the form of a line, or of each call."""
        if cut:
            yield f"it was cut off at {self.settings.max_tokens} tokens: {message.text[:80]!r}"
            return
        acts = episode.environment.user_toolset is not None
        spoke = any(item.role == "user" and not item.tool_calls for item in episode.messages)
        if problem := find_breach(message, opening=not spoke, acts=acts):
            yield problem
            return
        probe = episode.tools.fork(episode.database.copy())
        for call in message.tool_calls:
            if probe.call(call.name, call.arguments, "user").malformed:
                yield f"it calls {call.name} with {str(call.arguments)[:80]}, which does not fit"


def choose_line(usable: list[Message]) -> Message:
    """Return the most frequent of some candidates, the first of several; those with calls count as
    equal where their calls are."""
    counts = Counter(map(_content, usable))
    return max(usable, key=lambda message: counts[_content(message)])


def _content(message: Message) -> tuple[str, str]:
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return message.text, repr(calls)
