"""Play rollouts on an OpenAI-compatible server that loads adapters: vLLM, or the embedded engine.

Each policy version is saved in a folder that server and job share, and loaded under a new name. It
is unloaded after the next version is loaded. The base answers until the first update. The endpoints
of models that play users are checked before each batch. An adapter that plays users is verified by
its sha256, loaded beside the agent's under a name of this job, and unloaded at the end.

Guarantee: ids and log-probabilities are the server's own. A turn without all of them makes its
rollout untrainable; nothing is encoded again. Not covered: repeating the same rollouts (batching by
servers and users' models vary), and starting the server (own_vllm.py). Any other vLLM needs
`--logprobs-mode processed_logprobs` if the temperature is not 1.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx2

from daemon.engine.chat import Chat
from daemon.solver.lora import save
from daemon.solver.methods import REWARDS
from daemon.solver.reward import RolloutFacts, Worth, describe_user_fault
from daemon.solver.sampling import local
from daemon.solver.sampling.adapter_users import list_adapter_users, prove_user
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.sampling.sources import Batch, Version
from daemon.solver.trajectory import Sampling, Trajectory, Turn
from envs import endpoint
from envs.endpoint import (
    AnswerFailure,
    Endpoint,
    EndpointRefusal,
    EndpointUnavailable,
    Tokens,
    Usage,
    read_key,
    request_seed,
)
from envs.environment import Environment
from envs.episode import Termination
from envs.evaluation import Attempt, Setup, make_environment_user, play_mixed
from envs.players import Offer
from envs.simulator import TokenMeter, make_user, open_user
from envs.task import TaskDefinition
from events.jobs import AdapterUser, EndpointSource, EndpointUser, JobSpec, ModelUser
from events.messages import Message

USER_TOKENS: Final = "user_tokens"
"""File in the job's directory that counts the tokens of models that play users."""
VERSIONS: Final = "versions"
"""Folder in the job's directory with the saved policy versions."""

_LOAD_SECONDS: Final = 300.0
"""Timeout of a load in seconds; long because a large adapter may lie on a slow disk."""


class Pace:
    """Limits the rate of requests per second."""

    def __init__(self, per_second: float | None) -> None:
        self._interval = 0.0 if per_second is None else 1 / per_second
        self._free = 0.0

    async def wait(self) -> None:
        """Sleep until the caller may send its next request."""
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        begin = max(now, self._free)
        self._free = begin + self._interval
        await asyncio.sleep(begin - now)


class TokenAgent:
    """An agent behind an endpoint, with the exact tokens of its answers."""

    remarks: Sequence[str] = ()

    def __init__(
        self, place: Endpoint, pace: Pace, tools: Offer, seed: int, sampling: endpoint.Sampling
    ) -> None:
        self._endpoint = place
        self._pace = pace
        self._tools = tools
        self._seed = seed
        self._sampling = sampling
        self.usage = Usage()
        self.turns: list[Turn] = []

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the model's next message or call. Raise AnswerFailure, EndpointRefusal."""
        await self._pace.wait()
        try:
            completion = await self._endpoint.complete(
                messages,
                tools=self._tools(messages),
                sampling=self._sampling,
                seed=request_seed(self._seed, len(messages)),
            )
        except AnswerFailure as failure:
            if failure.termination is Termination.AGENT_ERROR:
                self.turns.append(_turn(failure.tokens))
            raise
        self.usage += completion.usage
        cut = completion.finish_reason == "length"
        self.turns.append(_turn(completion.tokens, cut=cut))
        if cut:
            raise AnswerFailure(
                Termination.AGENT_ERROR,
                f"an answer was cut off at {self._sampling.max_tokens} tokens",
            )
        return completion.message


def _turn(tokens: Tokens | None, *, cut: bool = False) -> Turn:
    """Return an answer as a turn. Without tokens, return a turn that the learner refuses."""
    if tokens is None:
        return Turn((), (), (), truncated=cut)
    return Turn(tokens.prompt, tokens.completion, tokens.logprobs, truncated=cut)


class RemoteSource:
    """Source that samples on a remote server."""

    def __init__(
        self,
        spec: JobSpec,
        place: EndpointSource,
        environments: JobEnvironments,
        chat: Chat,
        out: Path,
    ) -> None:
        """Raise EndpointRefusal for an invalid URL or a missing key, BadAdapter for a user's
        adapter that is not the spec's."""
        self._spec = spec
        self._place = place
        self._environments = environments
        self._chat = chat
        self._folder = Path(place.adapters) / spec.job if place.adapters else out / VERSIONS
        self._key = read_key(place.url, place.api_key_variable)
        self._users = read_user_keys(spec)
        budgets = [user.budget for user in self._users if user.budget is not None]
        self._meter = TokenMeter(min(budgets, default=None), out / USER_TOKENS)
        self._folders = {
            user: prove_user(user, Path(spec.checkpoint))
            for user in list_adapter_users(pool.user for pool in spec.pools)
        }
        self._served = place.model
        self._policy = spec.job
        self._loop = asyncio.new_event_loop()
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx2.Client(headers=headers, timeout=_LOAD_SECONDS)
        self._unload_leftovers()
        self._players: dict[AdapterUser, str] = {}
        """Adapter that plays users -> its name on the server, once it is loaded."""

    def adopt(self, version: Version) -> None:
        """Load the users' adapters at the first call. Save and load the new version, unload the
        previous one. Raise AdapterWriteError, EndpointRefusal, EndpointUnavailable."""
        self._load_players()
        self._policy = version.name
        if version.untrained:
            return
        name = f"{version.name}-{uuid4().hex[:8]}"
        folder = self._folder / name
        save(version.model, folder, version.provenance)
        self._ask("load_lora_adapter", {"lora_name": name, "lora_path": str(folder.absolute())})
        before, self._served = self._served, name
        self._let_go(before)

    def play(self, batch: Batch) -> Iterator[Trajectory]:
        """Yield trajectories as they finish. Raise EnvironmentFailure, EndpointRefusal,
        EndpointUnavailable. Raise UserBudgetSpent before any rollout is played."""
        with self._meter.measure("a batch"):
            finished = self._play_batch(batch)
            try:
                while True:
                    yield from self._loop.run_until_complete(anext(finished))
            except StopAsyncIteration:
                return
            finally:
                self._loop.run_until_complete(finished.aclose())

    def close(self) -> None:
        """Unload the adapters and close the connections."""
        with suppress(EndpointRefusal, EndpointUnavailable):
            self._let_go(self._served)
            for name in self._players.values():
                self._ask("unload_lora_adapter", {"lora_name": name})
        self._client.close()
        self._loop.close()

    async def _play_batch(self, batch: Batch) -> AsyncGenerator[list[Trajectory], None]:
        agents: dict[int, TokenAgent] = {}
        async with AsyncExitStack() as stack:
            make_agent = await self._prepare_agent(stack, agents)
            users = await self._prepare_users(stack)
            plan = (
                (self._choose_setup(attempt, batch.seed, make_agent, users), attempt.task, trial)
                for trial, attempt in enumerate(batch.attempts)
            )
            playing = play_mixed(plan, concurrency=self._place.concurrency)
            async for attempts in await stack.enter_async_context(aclosing(playing)):
                yield [
                    self._trajectory(batch, result, agents.pop(result.seed)) for result in attempts
                ]

    async def _prepare_agent(
        self, stack: AsyncExitStack, agents: dict[int, TokenAgent]
    ) -> Callable[[Environment, TaskDefinition, int], TokenAgent]:
        pace = Pace(self._place.max_requests_per_second)
        place = await stack.enter_async_context(self._make_endpoint(self._served))

        def make(environment: Environment, task: TaskDefinition, seed: int) -> TokenAgent:
            offer = partial(environment.select_schemas, task)
            agents[seed] = TokenAgent(place, pace, offer, seed, self._sampling())
            return agents[seed]

        return make

    async def _prepare_users(self, stack: AsyncExitStack) -> dict[ModelUser, Endpoint]:
        """Return checked endpoints of users' models. Raise EndpointRefusal, EndpointUnavailable."""
        endpoints: dict[ModelUser, Endpoint] = {}
        for player, name in self._players.items():
            endpoints[player] = await stack.enter_async_context(self._make_endpoint(name))
        for user, key in self._users.items():
            endpoints[user] = await open_user(stack, user, key, self._place.concurrency)
        return endpoints

    def _make_endpoint(self, model: str) -> Endpoint:
        return Endpoint(
            self._place.url,
            model,
            api_key=self._key,
            concurrency=self._place.concurrency,
            timeout=self._place.timeout,
        )

    def _choose_setup(
        self,
        attempt: local.Attempt,
        seed: int,
        make_agent: Callable[[Environment, TaskDefinition, int], TokenAgent],
        users: Mapping[ModelUser, Endpoint],
    ) -> Setup:
        environment = attempt.environment or self._environments.own
        user = make_environment_user(environment)
        if attempt.user is not None:
            # A user's adapter costs nothing: this job's own server answers for it.
            meter = self._meter if isinstance(attempt.user, EndpointUser) else None
            user = partial(make_user, attempt.user, users[attempt.user], environment, meter=meter)
        limits = REWARDS[attempt.reward].choose_limits(environment)
        may_err = attempt.user is not None
        return Setup(
            environment, partial(make_agent, environment), user, seed, limits, user_may_err=may_err
        )

    def _sampling(self) -> endpoint.Sampling:
        sampler = self._spec.sampler
        neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        return endpoint.Sampling(
            temperature=sampler.temperature,
            max_tokens=sampler.max_tokens,
            # These fields override generation settings that a checkpoint may bring.
            extra={"return_token_ids": True, "logprobs": True, **neutral},
        )

    def _trajectory(self, batch: Batch, played: Attempt, agent: TokenAgent) -> Trajectory:
        wanted = batch.attempts[played.trial]
        worth = Worth(played.success, None if played.reward is None else played.reward.total)
        fault = describe_user_fault(wanted.task, played.termination, played.reason)
        if fault is None:
            form = self._spec.algorithm.repair
            facts = RolloutFacts(wanted.task, agent.turns, played.messages, self._chat, form)
            worth = REWARDS[wanted.reward].weigh(worth, facts)
        return Trajectory(
            rollout=wanted.rollout,
            group=wanted.group,
            task=wanted.task.id,
            policy=self._policy,
            turns=tuple(agent.turns),
            success=worth.success,
            reward=worth.reward,
            sampling=Sampling(temperature=self._spec.sampler.temperature),
            malformed=played.malformed,
            repair=worth.repair,
            user_fault=fault,
        )

    def _load_players(self) -> None:
        for user in [user for user in self._folders if user not in self._players]:
            name = f"{self._spec.job}-plays-{user.adapter}"
            with suppress(EndpointRefusal):
                # A killed job may have loaded another adapter under this name.
                self._ask("unload_lora_adapter", {"lora_name": name})
            path = str(self._folders[user].absolute())
            self._ask("load_lora_adapter", {"lora_name": name, "lora_path": path})
            self._players[user] = name

    def _let_go(self, name: str) -> None:
        if name != self._place.model:
            self._ask("unload_lora_adapter", {"lora_name": name})
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _unload_leftovers(self) -> None:
        for folder in self._folder.glob(f"{self._spec.job}-*"):
            with suppress(EndpointRefusal, EndpointUnavailable):
                self._ask("unload_lora_adapter", {"lora_name": folder.name})
            shutil.rmtree(folder, ignore_errors=True)

    def _ask(self, what: str, body: Mapping[str, Any]) -> None:
        url = f"{self._place.url.rstrip('/')}/{what}"
        try:
            answer = self._client.post(url, json=dict(body))
        except httpx2.TransportError as error:
            raise EndpointUnavailable(
                f"{url} cannot be reached: {error}; see to the server, then run the same command "
                "to go on"
            ) from error
        if answer.status_code != 200:
            raise EndpointRefusal(
                f"{url} refused {body['lora_name']}: HTTP {answer.status_code}: "
                f"{answer.text[:300]}; start the server so that it loads adapters at run time "
                "(vLLM: --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True)"
            )


def read_user_keys(spec: JobSpec) -> dict[EndpointUser, str | None]:
    """Return model that plays users -> its API key. Raise EndpointRefusal for a missing key."""
    users = (pool.user for pool in spec.pools)
    return {
        user: read_key(user.url, user.api_key_variable)
        for user in users
        if isinstance(user, EndpointUser)
    }
