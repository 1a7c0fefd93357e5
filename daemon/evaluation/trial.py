"""A candidate and the incumbent play the same tasks, in a process of their own.

    python -m daemon.evaluation.trial PLAN.json --out DIR

Both are played from the files that the replicas were given: the adapter's sha256 and its answers to
the probes of serving are checked first. Output, exit codes and files are those of plan_program.py.
A model may play the user; behind an endpoint nothing repeats bit for bit. An attempt with a fault
of the user has no verdict. The chooser of a player with members picks one before an episode's first
turn, as in a gateway. Chunks of the two alternate, each in a fresh engine.

Guarantee: a killed plan that is run again leaves the same verdicts on one machine with one number
of threads, and skips what is on disk. Not covered: parts that a judge decides (no verdict).
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import AsyncExitStack, aclosing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, TypeAdapter

from daemon.evaluation.member_agents import MemberAgents
from daemon.evaluation.plan_program import (
    ChunkJournal,
    Heartbeat,
    WrongSetting,
    open_plan_environment,
    run_program,
)
from daemon.evaluation.players import (
    Adapter,
    Player,
    PlayerWithMembers,
    choose_member,
    choose_members,
    list_adapters,
)
from daemon.jobs.runner import CHECKPOINT_SETTING, USER_TOKENS_SETTING
from events.canonical import exact_json, sha256
from events.envelope import derive_id
from events.jobs import USER_LIMITS, AdapterUser, EndpointUser, ModelUser
from events.messages import Message, StrictModel
from events.rollouts import MemberChoice, RolloutContent, RolloutEnded

if TYPE_CHECKING:
    from daemon.engine.agent import EngineAgent
    from daemon.engine.chat import Chat
    from daemon.engine.policy import Policy
    from daemon.engine.thread import EngineThread
    from daemon.solver.sampling.local import Attempt, InProcess, Rollout
    from envs.evaluation import Attempt as EvaluationAttempt
    from envs.simulator import TokenMeter
    from envs.task import TaskDefinition

CHUNK: Final = 256
"""Rollouts that are played, and are on disk, together."""
_TRIES: Final = 3
"""Tries of an episode if the user's endpoint fails."""
_HEARTBEAT_SECONDS: Final = 2.0
_USER_TOKENS: Final = "user_tokens"
"""Name of the file that counts the tokens of a user's endpoint."""
_CORRECT: Final = "correct checkpoint in the setting agents"


class Plan(StrictModel):
    """Settings of a trial."""

    name: str
    """Name that the rollouts' ids follow from."""
    environment: str
    benchmarks: str | None = None
    checkpoint: str
    alias: str
    base: str
    players: tuple[Player, ...] = Field(min_length=1)
    tasks: tuple[str, ...] = Field(min_length=1)
    trials: int = Field(ge=1)
    seed: int
    temperature: float = 1.0
    max_tokens: int = 512
    episodes: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int | None = None
    user: ModelUser | None = Field(default=None, exclude_if=lambda user: user is None)
    """Player of every player's users; None: the environment's own."""

    @property
    def digest(self) -> str:
        """Return the sha256 without the checkpoint's path and the limits of the user's endpoint
        (`events.jobs.USER_LIMITS`), so a plan continues with others."""
        left_out: dict[str, Any] = {"checkpoint": True}
        if isinstance(self.user, EndpointUser):
            left_out["user"] = set(USER_LIMITS)
        return sha256(exact_json(self.model_dump(mode="json", exclude=left_out)))

    def name_policy(self, player: int) -> str:
        """Return the policy's name."""
        own = self.players[player]
        return self.base if own is None else own.name

    def rollout(self, player: int, task: str, trial: int) -> str:
        """Return the id of a rollout."""
        return derive_id("trial", self.name, self.name_policy(player), task, str(trial))


class AttemptEvidence(StrictModel):
    """The evidence of an attempt's answers (envs/comparison/evidence.py)."""

    has_lookup: bool
    unseen_values: int
    answers: int
    """Messages that the model wrote."""


class TrialAttempt(StrictModel):
    """One finished attempt."""

    player: int
    """Its place among the plan's."""
    trial: int
    tokens: int
    """Tokens that the model wrote."""
    head: RolloutEnded
    messages: tuple[Message, ...]
    evidence: AttemptEvidence | None = None
    """None where an earlier version played."""

    @property
    def event(self) -> RolloutEnded:
        """Return the event's data with the messages."""
        return self.head.model_copy(update={"content": RolloutContent(messages=self.messages)})


_CHUNK: Final[TypeAdapter[tuple[TrialAttempt, ...]]] = TypeAdapter(tuple[TrialAttempt, ...])


def read_attempts(folder: Path, plan: Plan) -> list[tuple[TrialAttempt, ...]]:
    """Return the whole chunks in a folder. Raises BadPlan if they are another plan's."""
    return ChunkJournal(folder, plan.digest, _CHUNK).read()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    return run_program("daemon.evaluation.trial", main.__doc__, arguments, Plan, play)


def play(plan: Plan, out: Path) -> None:
    """Play the missing chunks. Raises BadPlan, WrongSetting, BadAdapter, OSError, environment
    errors."""
    journal = ChunkJournal(out, plan.digest, _CHUNK)
    journal.fill(_chunks(plan), lambda: _Trial(plan, out).play)


_Slot = tuple[int, str, int]
"""Player, task, trial."""
_Played = dict[_Slot, "tuple[EvaluationAttempt, MemberChoice | None]"]
"""Slot -> its attempt, and the choice of the member that played it, where there are members."""


def _chunks(plan: Plan) -> list[list[_Slot]]:
    """Return the chunks: each of one player, the players in turn."""
    slots = [(task, trial) for task in plan.tasks for trial in range(plan.trials)]
    return [
        [(player, task, trial) for task, trial in slots[start : start + CHUNK]]
        for start in range(0, len(slots), CHUNK)
        for player in range(len(plan.players))
    ]


class _Policies:
    def __init__(self, plan: Plan) -> None:
        """Load the base and every adapter of the plan.

        Raise WrongSetting, IncompatibleModel, BadAdapter or OSError.
        """
        checkpoint = Path(plan.checkpoint)
        base = load_base(checkpoint, plan.base, plan.dtype, plan.threads)
        self._by_adapter: dict[Adapter | None, Policy] = {None: base}
        for adapter in chain.from_iterable(map(list_adapters, plan.players)):
            if adapter not in self._by_adapter:
                folder = prove_adapter(checkpoint, adapter)
                self._by_adapter[adapter] = base.with_adapter(folder, adapter.name)
        self.users: dict[AdapterUser, Policy] = {}
        """The policies of users that adapters play."""
        user = plan.user
        if isinstance(user, AdapterUser):
            own = Adapter(name=user.adapter, folder=user.folder, sha256=user.sha256)
            self.users[user] = base.with_adapter(prove_adapter(checkpoint, own), own.name)

    def find(self, adapter: Adapter | None) -> "Policy":
        """Return the policy of an adapter; that of the base for None."""
        return self._by_adapter[adapter]


def load_base(
    checkpoint: Path, base: str, dtype: Literal["float32", "bfloat16"], threads: int | None
) -> "Policy":
    """Return an agent's base. Raises WrongSetting without a checkpoint, and IncompatibleModel."""
    from safetensors import SafetensorError

    from daemon.engine.policy import load_policy

    if not (checkpoint / "config.json").is_file():
        raise WrongSetting(CHECKPOINT_SETTING, f"{checkpoint} holds no checkpoint; {_CORRECT}")
    try:
        return load_policy(checkpoint, base, dtype, threads)
    except (OSError, ValueError, SafetensorError) as error:
        reason = f"the checkpoint {checkpoint} cannot be read: {error}; {_CORRECT}"
        raise WrongSetting(CHECKPOINT_SETTING, reason) from error


def load_chat(checkpoint: Path) -> "Chat":
    """Return a chat template. Raises WrongSetting if it is missing or ends no answer."""
    from daemon.engine.chat import Chat, NoEndToken, NoTemplate

    try:
        return Chat(checkpoint)
    except (NoEndToken, NoTemplate) as error:
        raise WrongSetting(CHECKPOINT_SETTING, str(error)) from error


def prove_adapter(checkpoint: Path, adapter: Adapter) -> Path:
    """Return an adapter's folder, checked by sha256 and probes. Raises BadAdapter, and WrongSetting
    for another base."""
    from daemon.adapters.adoption import intact, read_expectation
    from daemon.adapters.compatibility import BadBase, fit
    from daemon.adapters.directory import BadAdapter
    from daemon.adapters.fingerprint import EXACT, distance
    from daemon.config.adapter_paths import locate_for_job
    from daemon.engine.fingerprint import probe_checkpoint

    folder = locate_for_job(adapter.folder)
    intact(folder, adapter.sha256, None, None)
    try:
        fit(folder, checkpoint)
    except (BadAdapter, BadBase) as error:
        reason = f"{adapter.name} does not fit the checkpoint {checkpoint}: {error}; {_CORRECT}"
        raise WrongSetting(CHECKPOINT_SETTING, reason) from error
    expected, actual = read_expectation(folder), probe_checkpoint(checkpoint, folder)
    gap = max(distance(actual.adapter, expected.adapter), distance(actual.base, expected.base))
    # What a lower precision costs the replicas read off their base; here both are computed alike.
    if expected.dtype == "float32" and not gap <= EXACT:
        raise WrongSetting(
            CHECKPOINT_SETTING,
            f"{adapter.name} answers {gap:.4f} nats from what its replicas were proven to answer: "
            f"{checkpoint} is another base than the one it was trained on; {_CORRECT}",
        )
    return folder


class _Trial:
    """A plan with its environment, policies and template, each opened once."""

    def __init__(self, plan: Plan, out: Path) -> None:
        """Load the plan's parts.

        Raise WrongSetting, IncompatibleModel, BadAdapter, OSError or an error of the environment.
        """
        from envs.simulator import TokenMeter

        user = plan.user
        self._plan = plan
        self._environment = open_plan_environment(plan.environment, plan.benchmarks, out)
        self._policies = _Policies(plan)
        self._meter = (
            TokenMeter(user.budget, out / _USER_TOKENS) if isinstance(user, EndpointUser) else None
        )
        """Counts the tokens of a user's endpoint."""
        self._chat = load_chat(Path(plan.checkpoint))

    def play(self, chunk: Sequence[_Slot]) -> Iterator[TrialAttempt]:
        """Play a chunk in its order."""
        if self._meter is not None:
            yield from self._play_within_budget(chunk, self._meter)
        else:
            yield from self._play_in_process(chunk)

    def _play_in_process(self, chunk: Sequence[_Slot]) -> Iterator[TrialAttempt]:
        from daemon.solver.sampling.local import Attempt
        from envs.evaluation import episode_seed

        plan = self._plan
        attempts = {
            plan.rollout(*slot): Attempt(
                task=self._environment.task(slot[1]),
                group=slot[1],
                seed=episode_seed(plan.seed, slot[1], slot[2]),
                rollout=plan.rollout(*slot),
                user=plan.user,
            )
            for slot in chunk
        }
        player = plan.players[chunk[0][0]]
        choices: Mapping[str, MemberChoice] = {}
        groups: dict[Adapter | None, list[Attempt]] = {}
        if isinstance(player, PlayerWithMembers):
            Heartbeat().say(phase=f"chooser of {player.name}")
            choices = self._choose_members(player, attempts)
            for name, attempt in attempts.items():
                groups.setdefault(player.find_member(choices[name]), []).append(attempt)
        else:
            groups[player] = list(attempts.values())
        rollouts: dict[str, Rollout] = {}
        for adapter, own in groups.items():
            rollouts |= self._play_all(own, self._policies.find(adapter))
        for slot, name in zip(chunk, attempts, strict=True):
            rollout = rollouts[name]
            played, tokens = rollout.to_attempt(slot[2]), rollout.trajectory.tokens
            yield self._build_attempt(played, tokens, slot, choices.get(name))

    def _make_player(self, policy: "Policy") -> "InProcess":
        """Return a player for a policy in a fresh engine."""
        from daemon.engine.generation import Engine
        from daemon.solver.sampling.local import InProcess

        # A user that an adapter plays reads and writes in a slot of its own. And a cache that has
        # seen other conversations may round otherwise.
        plan, users = self._plan, self._policies.users
        slots = 2 * plan.episodes if users else plan.episodes
        return InProcess(
            Engine(policy, slots),
            self._chat,
            temperature=plan.temperature,
            max_tokens=plan.max_tokens,
            users=users,
            episodes=plan.episodes,
        )

    def _play_within_budget(
        self, chunk: Sequence[_Slot], meter: "TokenMeter"
    ) -> list[TrialAttempt]:
        """Play a chunk with an endpoint's users, whose tokens `meter` counts. Raises WrongSetting
        if too few are left, and the errors of `_play_beside_endpoint`."""
        from envs.simulator import UserBudgetSpent

        try:
            with meter.measure(f"a part of {CHUNK} episodes"):
                return self._play_beside_endpoint(chunk)
        except UserBudgetSpent as error:
            raise WrongSetting(USER_TOKENS_SETTING, str(error)) from error

    def _play_beside_endpoint(self, chunk: Sequence[_Slot]) -> list[TrialAttempt]:
        """Play a chunk beside an endpoint. Raises EndpointRefusal, EndpointUnavailable,
        EnvironmentFailure."""
        from envs.endpoint import EndpointUnavailable
        from envs.evaluation import is_spoilt

        played: _Played = {}
        for _ in range(_TRIES):
            missing = [slot for slot in chunk if slot not in played]
            results = asyncio.run(self._play_async(missing))
            # What the endpoint failed to answer is neither player's, nor a fault of the user.
            played |= {slot: item for slot, item in results.items() if not is_spoilt(item[0])}
            if len(played) == len(chunk):
                break
        else:
            last = next(attempt for attempt, _ in results.values() if is_spoilt(attempt))
            raise EndpointUnavailable(
                f"{len(chunk) - len(played)} of {len(chunk)} episodes could not be played in "
                f"{_TRIES} tries, the first one (task {last.task.id}) because of {last.reason}; "
                "see to the endpoint, then run the same command to go on"
            )
        return [
            self._build_attempt(attempt, attempt.usage.completion_tokens or 0, slot, choice)
            for slot, (attempt, choice) in ((slot, played[slot]) for slot in chunk)
        ]

    async def _play_async(self, chunk: Sequence[_Slot]) -> _Played:
        """Play one player's slots. Raises EndpointRefusal, EndpointUnavailable,
        EnvironmentFailure."""
        from daemon.engine.generation import Engine
        from daemon.engine.thread import EngineThread
        from envs.endpoint import read_key
        from envs.evaluation import Setup, play_all
        from envs.simulator import make_user, open_user

        plan, environment = self._plan, self._environment
        user, player = plan.user, chunk[0][0]
        assert isinstance(user, EndpointUser), "other users are played by the engine"
        thread = EngineThread(Engine(self._policies.find(None), plan.episodes))
        agents = self._make_agents(player, thread)
        played: _Played = {}
        async with AsyncExitStack() as stack:
            key = read_key(user.url, user.api_key_variable)
            simulator = await open_user(stack, user, key, plan.episodes)
            thread.start()
            stack.push_async_callback(thread.stop)
            setup = Setup(
                environment,
                agent=agents,
                user=partial(make_user, user, simulator, environment, meter=self._meter),
                seed=plan.seed,
                user_may_err=True,
            )
            tasks = [(environment.task(task), trial) for _, task, trial in chunk]
            playing = play_all(setup, tasks, concurrency=plan.episodes)
            # No episode may end for minutes: a line may take as long as the endpoint's timeout.
            beating = asyncio.create_task(_beat(plan.name_policy(player), played))
            stack.callback(beating.cancel)
            async for attempts in await stack.enter_async_context(aclosing(playing)):
                for attempt in attempts:
                    choice = None
                    if isinstance(agents, MemberAgents):
                        # An episode that ends before its first turn is the base's.
                        choice = agents.choices.get((attempt.task.id, attempt.seed), MemberChoice())
                    played[player, attempt.task.id, attempt.trial] = attempt, choice
        return played

    def _make_agents(
        self, player: int, thread: "EngineThread"
    ) -> "MemberAgents | Callable[[TaskDefinition, int], EngineAgent]":
        """Return a factory of an episode's agent; `thread` runs the engine that answers for it."""
        from daemon.engine.agent import EngineAgent
        from daemon.engine.chat import as_chat

        plan, environment, policies, chat = (
            self._plan, self._environment, self._policies, self._chat,
        )  # fmt: skip

        def make(adapter: Adapter | None, task: "TaskDefinition", seed: int) -> EngineAgent:
            return EngineAgent(
                thread, chat, policies.find(adapter), partial(environment.select_schemas, task),
                seed, temperature=plan.temperature, max_tokens=plan.max_tokens,
            )  # fmt: skip

        whole = plan.players[player]
        if not isinstance(whole, PlayerWithMembers):
            return partial(make, whole)

        async def choose(messages: Sequence[Message], task: "TaskDefinition") -> MemberChoice:
            policy = policies.find(whole.chooser_adapter)
            tools = environment.select_schemas(task, messages) if chat.shows_tools else ()
            shown = list(map(as_chat, messages))
            return await choose_member(whole, thread, policy, chat, shown, tools)

        return MemberAgents(
            choose, lambda choice, task, seed: make(whole.find_member(choice), task, seed)
        )

    def _read_openings(
        self, attempts: "Mapping[str, Attempt]"
    ) -> "Mapping[str, Sequence[Message] | None]":
        """Return rollout -> the agent's first view; None if the episode ends before."""
        from daemon.solver.sampling.opening import read_opening

        if self._plan.user is not None:
            player = self._make_player(self._policies.find(None))
            return player.read_openings(self._environment, attempts.values())
        return {
            name: read_opening(self._environment, attempt.task, attempt.seed)
            for name, attempt in attempts.items()
        }

    def _choose_members(
        self, player: PlayerWithMembers, attempts: "Mapping[str, Attempt]"
    ) -> dict[str, MemberChoice]:
        """Return the chooser's member for each rollout, by the agent's first views. Episodes that
        end before their first turn are the base's, without a doubt."""
        from daemon.engine.chat import as_chat

        chat, views = self._chat, self._read_openings(attempts)
        shown = {name: view for name, view in views.items() if view is not None}
        asked = {name: list(map(as_chat, view)) for name, view in shown.items()}
        offers = [
            self._environment.select_schemas(attempts[name].task, view) if chat.shows_tools else ()
            for name, view in shown.items()
        ]
        policy = self._policies.find(player.chooser_adapter)
        made = choose_members(player, policy, chat, list(asked.values()), offers)
        return dict.fromkeys(attempts, MemberChoice()) | dict(zip(asked, made, strict=True))

    def _play_all(self, attempts: "list[Attempt]", policy: "Policy") -> "dict[str, Rollout]":
        """Return every rollout by its id, with heartbeats while it plays."""
        player = self._make_player(policy)
        rollouts: dict[str, Rollout] = {}
        heartbeat = Heartbeat()
        for rollout in player.play(self._environment, attempts, policy):
            rollouts[rollout.attempt.rollout] = rollout
            heartbeat.say_when_due(phase=policy.name, rollouts=len(rollouts))
        return rollouts

    def _build_attempt(
        self, attempt: "EvaluationAttempt", tokens: int, slot: _Slot, choice: MemberChoice | None
    ) -> TrialAttempt:
        from envs.comparison.evidence import count_unseen_values, has_lookup
        from producers.simulation import Provenance, build_rollout_event

        player, _, trial = slot
        plan, environment = self._plan, self._environment
        simulator = None if plan.user is None else plan.user.simulator
        policy = plan.name_policy(player)
        provenance = Provenance(plan.alias, plan.base, policy, "evaluate", simulator)
        event = build_rollout_event(attempt, environment, provenance, plan.rollout(*slot))
        messages = event.content.messages if event.content is not None else ()
        policy_text = environment.policy(attempt.task)
        evidence = AttemptEvidence(
            has_lookup=has_lookup(attempt.messages, environment.lookups),
            unseen_values=count_unseen_values(policy_text, attempt.messages),
            answers=sum(
                message.role == "assistant" and message.sampled is not False
                for message in attempt.messages
            ),
        )
        return TrialAttempt(
            player=player,
            trial=trial,
            tokens=tokens,
            head=event if choice is None else event.model_copy(update={"member": choice}),
            messages=messages,
            evidence=evidence,
        )


async def _beat(phase: str, played: Sized) -> None:
    heartbeat = Heartbeat()
    while True:
        heartbeat.say(phase=phase, rollouts=len(played))
        await asyncio.sleep(_HEARTBEAT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
