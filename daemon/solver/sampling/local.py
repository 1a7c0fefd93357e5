"""Play rollouts in this process, keep their exact tokens, and yield trajectories as they finish.

    player = InProcess(Engine(policy), Chat(directory))
    for rollout in player.play(environment, attempts, policy):
        ...

There are as many open episodes as the engine has slots. Each requests its turns with the whole
conversation as prompt. A rollout is a function of weights, task and seed, up to rounding. On one
machine with one number of threads, the same attempts in the same order give the same rollouts bit
for bit. An adapter may play the user (adapter_users.py); an episode in which the user fails ends as
`user_error` and is not judged.

Guarantee: the trajectory holds the ids that the policy read and drew, with their log-probabilities;
no text is encoded again, and no words of the user are among its completions. Not covered: users
behind an endpoint.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from daemon.engine.chat import Chat
from daemon.engine.generation import Emission, Engine, PromptTooLong, Request
from daemon.engine.policy import Policy
from daemon.solver.methods import REWARDS
from daemon.solver.reward import RolloutFacts, Worth, describe_user_fault
from daemon.solver.sampling.adapter_users import UserLine, Users, make_writer
from daemon.solver.trajectory import Sampling, Trajectory, Turn
from envs import evaluation
from envs.endpoint import AnswerFailure, Usage, request_seed
from envs.environment import Environment
from envs.episode import Episode, Party, Termination
from envs.evaluation import UNJUDGED, blame_user, environment_code
from envs.grading import Grade, grade
from envs.reward import conduct_of, shape
from envs.simulator import LineWriter
from envs.task import TaskDefinition
from envs.users import User
from events.algorithm import RepairForm
from events.jobs import AdapterUser, ModelUser, RewardKind
from events.messages import Message


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout that has to be played."""

    task: TaskDefinition
    group: str
    """Id of the group, whose attempts are compared with each other."""
    seed: int
    rollout: str
    environment: Environment | None = None
    """Environment of the task; None: the default of the player."""
    user: ModelUser | None = None
    """Model that plays the user; None: the environment's own user."""
    reward: RewardKind = "verdict"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished episode with its verdict and its tokens."""

    attempt: Attempt
    episode: Episode
    verdict: Grade | None
    """Verdict; None if the user failed, because that says nothing about the agent."""
    trajectory: Trajectory
    user_tokens: int = 0

    @property
    def grade(self) -> Grade:
        """Verdict. Raise ValueError where there is none."""
        if self.verdict is None:
            raise ValueError(f"rollout {self.trajectory.rollout} has a fault of its user")
        return self.verdict

    def to_attempt(self, trial: int) -> evaluation.Attempt:
        """Return the rollout as an evaluation attempt, with the same data as
        producers/simulation.py records."""
        episode, tokens = self.episode, self.trajectory.tokens
        assert episode.termination is not None, "a finished episode says why it ended"
        conduct = conduct_of(
            episode.messages, episode.environment.catalog, episode.malformed, tokens
        )
        worth = None if self.verdict is None else self.verdict.reward
        shaping = evaluation.choose_shaping(episode.task)
        return evaluation.Attempt(
            task=episode.task,
            trial=trial,
            seed=episode.seed,
            messages=tuple(episode.messages),
            termination=episode.termination,
            reason=episode.reason,
            grade=self.verdict,
            reward=None if worth is None else shape(worth, conduct, shaping),
            penalties=evaluation.penalties(conduct, shaping),
            usage=Usage(completion_tokens=tokens),
            user_usage=Usage(completion_tokens=self.user_tokens),
            malformed=episode.malformed,
        )


@dataclass(slots=True)
class _Open:
    attempt: Attempt
    episode: Episode
    user: User | LineWriter
    line: UserLine | None = None
    """User's message that the engine is writing; None while it is the agent's turn."""
    user_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)
    prompt: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def play_user_turn(episode: Episode, user: User) -> None:
    """Let the user speak, and call its tools if it has any, until it is the agent's turn."""
    while episode.turn is Party.USER:
        episode.receive(user.reply(episode.view(Party.USER)))


class InProcess:
    """Plays episodes with an engine of this process."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        *,
        temperature: float = 1.0,
        max_tokens: int = 512,
        form: RepairForm = "paper",
        users: Users | None = None,
        episodes: int | None = None,
    ) -> None:
        """Set the maximum tokens per turn and of open episodes (None: the engine's slots), the
        `form` of rewards for repairs, and the policies that play users. A turn that reaches
        `max_tokens` ends its episode."""
        self.engine = engine
        self.chat = chat
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.form = form
        self.users: Users = {} if users is None else users
        self.episodes = engine.slots if episodes is None else episodes

    def play(
        self, environment: Environment, attempts: Iterable[Attempt], policy: Policy
    ) -> Iterator[Rollout]:
        """Yield finished rollouts; `environment` is the default. Raise EnvironmentFailure."""
        for entry in self._play(environment, attempts, policy):
            yield self._rollout(entry, policy)

    def read_openings(
        self, environment: Environment, attempts: Iterable[Attempt]
    ) -> dict[str, Sequence[Message] | None]:
        """Return rollout name -> messages before the agent's first answer, prefix included; None if
        the episode ends before. Raise EnvironmentFailure."""
        return {
            entry.attempt.rollout: entry.episode.view(Party.AGENT)
            if entry.episode.turn is Party.AGENT
            else None
            for entry in self._play(environment, attempts, None)
        }

    def _play(
        self, environment: Environment, attempts: Iterable[Attempt], policy: Policy | None
    ) -> Iterator[_Open]:
        """Yield each episode when it ends, or without a policy at the agent's first turn."""
        waiting = iter(attempts)
        writing: dict[int, _Open] = {}
        finished: list[_Open] = []
        count = 0
        while True:
            for attempt in islice(waiting, self.episodes - count):
                count += 1
                entry = self._begin(attempt.environment or environment, attempt)
                self._go_on(entry, policy, writing, finished)
            for emission in self.engine.tick():
                entry = writing[emission.ticket]
                if emission.finish is not None:
                    del writing[emission.ticket]
                if self._take_token(entry, emission, writing):
                    self._go_on(entry, policy, writing, finished)
            yield from finished
            if not writing and not finished:
                return
            count -= len(finished)
            finished.clear()

    def _begin(self, environment: Environment, attempt: Attempt) -> _Open:
        limits = REWARDS[attempt.reward].choose_limits(environment)
        with environment_code(environment, f"task {attempt.task.id}", attempt.task):
            episode = Episode(environment, attempt.task, seed=attempt.seed, limits=limits)
            if attempt.user is None:
                return _Open(attempt, episode, environment.make_user(attempt.task, attempt.seed))
            assert isinstance(attempt.user, AdapterUser), "no endpoint's user is played here"
            return _Open(attempt, episode, make_writer(attempt.user, episode))

    def _go_on(
        self, entry: _Open, policy: Policy | None, writing: dict[int, _Open], finished: list[_Open]
    ) -> None:
        episode = entry.episode
        if not isinstance(entry.user, LineWriter):
            with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
                play_user_turn(episode, entry.user)
        elif episode.turn is Party.USER:
            self._begin_line(entry, entry.user, writing)
        if episode.turn is Party.AGENT and policy is not None:
            self._ask(entry, policy, writing)
        if episode.turn is None or (episode.turn is Party.AGENT and policy is None):
            finished.append(entry)

    def _take_token(self, entry: _Open, emission: Emission, writing: dict[int, _Open]) -> bool:
        if entry.line is not None:
            return self._take_user_token(entry, entry.line, emission, writing)
        entry.ids.append(emission.token)
        entry.logprobs.append(emission.logprob)
        if emission.finish is None:
            return False
        self._take_answer(entry, emission)
        return True

    def _begin_line(self, entry: _Open, writer: LineWriter, writing: dict[int, _Open]) -> None:
        user = entry.attempt.user
        assert isinstance(user, AdapterUser), "only adapters have a writer"
        line = UserLine(self.engine, self.chat, self.users[user], user, writer, entry.episode)
        try:
            line.begin()
        except AnswerFailure as failure:
            entry.episode.stop(failure.termination, failure.reason)
        else:
            entry.line = line
            writing.update(dict.fromkeys(line.tickets, entry))

    def _take_user_token(
        self, entry: _Open, line: UserLine, emission: Emission, writing: dict[int, _Open]
    ) -> bool:
        entry.user_tokens += 1
        try:
            message = line.take(emission)
        except AnswerFailure as failure:
            entry.line = None
            entry.episode.stop(failure.termination, failure.reason)
            return True
        if message is None:
            if emission.finish is not None:
                writing.update(dict.fromkeys(line.tickets, entry))
            return False
        entry.line = None
        self._receive(entry.episode, message)
        return True

    def _ask(self, entry: _Open, policy: Policy, writing: dict[int, _Open]) -> None:
        view = entry.episode.view(Party.AGENT)
        environment, task = entry.episode.environment, entry.episode.task
        tools = environment.select_schemas(task, view) if self.chat.shows_tools else ()
        entry.prompt, entry.ids, entry.logprobs = self.chat.prompt(view, tools), [], []
        request = Request(
            prompt=entry.prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=request_seed(entry.attempt.seed, len(view)),
            stop=self.chat.ends,
        )
        try:
            writing[self.engine.submit(policy, request)] = entry
        except PromptTooLong as error:
            entry.episode.stop(Termination.CONTEXT_OVERFLOW, str(error))

    def _take_answer(self, entry: _Open, last: Emission) -> None:
        cut = last.finish == "length"
        entry.turns.append(
            Turn(entry.prompt, tuple(entry.ids), tuple(entry.logprobs), truncated=cut)
        )
        if cut:
            reason = f"an answer was cut off at {len(entry.ids):,} tokens"
            entry.episode.stop(Termination.AGENT_ERROR, reason)
            return
        self._receive(entry.episode, self.chat.message(entry.ids, len(entry.episode.messages)))

    def _receive(self, episode: Episode, message: Message) -> None:
        with environment_code(episode.environment, f"task {episode.task.id}", episode.task):
            episode.receive(message)

    def _rollout(self, entry: _Open, policy: Policy) -> Rollout:
        episode, attempt = entry.episode, entry.attempt
        environment, task = episode.environment, episode.task
        may_err = attempt.user is not None or environment.users_err
        with environment_code(environment, f"task {task.id}", task):
            if may_err:
                blame_user(episode)
            verdict = None
            if not may_err or episode.termination not in UNJUDGED:
                verdict = grade(environment, task, episode.messages, episode.termination)
        worth = Worth(None, None)
        if verdict is not None:
            shaped = Worth(verdict.success, self._reward(episode, verdict, entry.turns))
            facts = RolloutFacts(task, entry.turns, episode.messages, self.chat, self.form)
            worth = REWARDS[attempt.reward].weigh(shaped, facts)
        trajectory = Trajectory(
            rollout=attempt.rollout,
            group=attempt.group,
            task=task.id,
            policy=policy.name,
            turns=tuple(entry.turns),
            success=worth.success,
            reward=worth.reward,
            sampling=Sampling(temperature=self.temperature),
            malformed=episode.malformed,
            repair=worth.repair,
            user_fault=None
            if verdict is not None
            else describe_user_fault(task, episode.termination, episode.reason),
        )
        return Rollout(attempt, episode, verdict, trajectory, entry.user_tokens)

    def _reward(self, episode: Episode, verdict: Grade, turns: list[Turn]) -> float | None:
        if verdict.reward is None:
            return None
        tokens = sum(len(turn.completion_ids) for turn in turns)
        catalog = episode.environment.catalog
        conduct = conduct_of(episode.messages, catalog, episode.malformed, tokens)
        shaping = evaluation.choose_shaping(episode.task)
        return shape(verdict.reward, conduct, shaping).total
