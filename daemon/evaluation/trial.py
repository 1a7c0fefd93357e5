"""Program in which the players of a gate, candidate and incumbent, play the same tasks.

    python -m daemon.evaluation.trial PLAN.json --out DIR

Players use the same files as the replicas: the adapter's sha256 and its answers to the fingerprint
probes are checked first. plan_program.py defines output, exit codes and files. A model may play the
user; if it is behind an endpoint, results do not repeat exactly. An attempt with a fault of the
user has no verdict. For a player with members, the chooser names a member before an episode's first
turn, as in a gateway. The players' chunks alternate, each in a fresh engine.

Guarantee: a plan that was killed and runs again skips the chunks on disk, and gives the same
verdicts on one machine with one number of threads. Not covered: tasks that need a judge.
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
"""Number of rollouts in a chunk: they are played and written to disk together."""
_TRIES: Final = 3
"""Largest number of tries of an episode if the user's endpoint fails."""
_HEARTBEAT_SECONDS: Final = 2.0
_USER_TOKENS: Final = "user_tokens"
"""Name of the file that counts the tokens of a user's endpoint."""
_CORRECT: Final = "correct checkpoint in the setting agents"


class Plan(StrictModel):
    """Everything that a trial needs: players, tasks, sampling and the model of the users."""

    name: str
    """Name of the trial, from which the rollouts' ids are derived."""
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
    """Model that plays the users in all episodes; None: the environment's own users."""

    @property
    def digest(self) -> str:
        """Return the plan's sha256. It leaves out the checkpoint's path and the limits of the
        user's endpoint (`events.jobs.USER_LIMITS`), so that a plan continues after they change."""
        left_out: dict[str, Any] = {"checkpoint": True}
        if isinstance(self.user, EndpointUser):
            left_out["user"] = set(USER_LIMITS)
        return sha256(exact_json(self.model_dump(mode="json", exclude=left_out)))

    def name_policy(self, player: int) -> str:
        """Return the policy name of the player with this index in `players`."""
        own = self.players[player]
        return self.base if own is None else own.name

    def rollout(self, player: int, task: str, trial: int) -> str:
        """Return the rollout id of one player's trial of a task."""
        return derive_id("trial", self.name, self.name_policy(player), task, str(trial))


class AttemptEvidence(StrictModel):
    """Facts about an attempt's answers that may show a cheat (envs/comparison/evidence.py)."""

    has_lookup: bool
    unseen_values: int
    answers: int
    """Number of messages that the model wrote."""


class TrialAttempt(StrictModel):
    """One finished attempt."""

    player: int
    """Index of the player in the plan's `players`."""
    trial: int
    tokens: int
    """Number of tokens that the model wrote."""
    head: RolloutEnded
    messages: tuple[Message, ...]
    evidence: AttemptEvidence | None = None
    """None if an earlier version of this program played, which measured none."""

    @property
    def event(self) -> RolloutEnded:
        """Return the event RolloutEnded: `head` with the messages as content."""
        return self.head.model_copy(update={"content": RolloutContent(messages=self.messages)})


_CHUNK: Final[TypeAdapter[tuple[TrialAttempt, ...]]] = TypeAdapter(tuple[TrialAttempt, ...])


def read_attempts(folder: Path, plan: Plan) -> list[tuple[TrialAttempt, ...]]:
    """Return the complete chunks in a folder. Raises BadPlan if they are of another plan."""
    return ChunkJournal(folder, plan.digest, _CHUNK).read()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    return run_program("daemon.evaluation.trial", main.__doc__, arguments, Plan, play)


def play(plan: Plan, out: Path) -> None:
    """Play the plan's missing chunks into the folder `out`. Raises BadPlan, WrongSetting,
    BadAdapter, OSError and environment errors."""
    journal = ChunkJournal(out, plan.digest, _CHUNK)
    journal.fill(_chunks(plan), lambda: _Trial(plan, out).play)


_Slot = tuple[int, str, int]
"""One attempt of a plan: (player's index, task id, trial)."""
_Played = dict[_Slot, "tuple[EvaluationAttempt, MemberChoice | None]"]
"""Slot -> its attempt, and the chooser's choice; None for a player without members."""


def _chunks(plan: Plan) -> list[list[_Slot]]:
    """Return the plan's chunks. Each chunk is of one player, and the players alternate."""
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
        """Adapter that plays users -> its policy."""
        user = plan.user
        if isinstance(user, AdapterUser):
            own = Adapter(name=user.adapter, folder=user.folder, sha256=user.sha256)
            self.users[user] = base.with_adapter(prove_adapter(checkpoint, own), own.name)

    def find(self, adapter: Adapter | None) -> "Policy":
        """Return the policy of an adapter (None: the base)."""
        return self._by_adapter[adapter]


def load_base(
    checkpoint: Path, base: str, dtype: Literal["float32", "bfloat16"], threads: int | None
) -> "Policy":
    """Load an agent's base. Raises WrongSetting if it cannot be read, and IncompatibleModel."""
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
    """Load a chat template. Raises WrongSetting if it or the token that ends answers is missing."""
    from daemon.engine.chat import Chat, NoEndToken, NoTemplate

    try:
        return Chat(checkpoint)
    except (NoEndToken, NoTemplate) as error:
        raise WrongSetting(CHECKPOINT_SETTING, str(error)) from error


def prove_adapter(checkpoint: Path, adapter: Adapter) -> Path:
    """Return an adapter's folder after checks of its sha256 and its answers to probes. Raises
    BadAdapter, and WrongSetting if the checkpoint is not the base that it was trained on."""
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
    # Only replicas need a tolerance for lower precision; here both answers are computed alike.
    if expected.dtype == "float32" and not gap <= EXACT:
        raise WrongSetting(
            CHECKPOINT_SETTING,
            f"{adapter.name} answers {gap:.4f} nats from what its replicas were proven to answer: "
            f"{checkpoint} is another base than the one it was trained on; {_CORRECT}",
        )
    return folder


class _Trial:
    """A plan with its environment, policies and chat template, each opened once."""

    def __init__(self, plan: Plan, out: Path) -> None:
        """Load the plan's environment, policies and chat template.

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
        """Play a chunk and yield its attempts in the chunk's order."""
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

        # A user that an adapter plays needs a slot too. The engine is fresh because a cache that
        # holds other conversations may round differently.
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
        """Play a chunk with users behind an endpoint, whose tokens `meter` counts. Raises
        WrongSetting if too few tokens are left, and the errors of `_play_beside_endpoint`."""
        from envs.simulator import UserBudgetSpent

        try:
            with meter.measure(f"a part of {CHUNK} episodes"):
                return self._play_beside_endpoint(chunk)
        except UserBudgetSpent as error:
            raise WrongSetting(USER_TOKENS_SETTING, str(error)) from error

    def _play_beside_endpoint(self, chunk: Sequence[_Slot]) -> list[TrialAttempt]:
        """Play a chunk with users behind an endpoint. Raises EndpointRefusal, EndpointUnavailable,
        EnvironmentFailure."""
        from envs.endpoint import EndpointUnavailable
        from envs.evaluation import is_spoilt

        played: _Played = {}
        for _ in range(_TRIES):
            missing = [slot for slot in chunk if slot not in played]
            results = asyncio.run(self._play_async(missing))
            # A failure of the endpoint is no fault of the player or the user: play it again.
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
        """Play the slots of one player concurrently. Raises EndpointRefusal, EndpointUnavailable,
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
                        # An episode that ends before its first turn counts as the base's.
                        choice = agents.choices.get((attempt.task.id, attempt.seed), MemberChoice())
                    played[player, attempt.task.id, attempt.trial] = attempt, choice
        return played

    def _make_agents(
        self, player: int, thread: "EngineThread"
    ) -> "MemberAgents | Callable[[TaskDefinition, int], EngineAgent]":
        """Return a function that makes an episode's agent, which the engine of `thread` answers."""
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
        """Return rollout -> the messages before the agent's first turn; None if it has no turn."""
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
        """Return rollout -> the chooser's choice, from the messages before the agent's first turn.
        Episodes that end before it count as the base's, with no doubt recorded."""
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
        """Play attempts with one policy and return id -> rollout. Write heartbeats meanwhile."""
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
