"""Play many episodes at once: take tasks, and yield attempts as they finish.

    setup = Setup(environment, agent=lambda task, seed: ..., user=lambda task, seed: ...)
    async with aclosing(play_all(setup, plan, concurrency=64)) as finished:
        async for attempts in finished:
            ...

Guarantees: memory grows with the concurrency, not with the number of tasks. An attempt depends only
on task, run seed, trial and the players' outputs. A fault of the environment's own code stops the
run and names the task, since it is no failure of the agent. A fault of the players' machines leaves
the attempt unjudged, and too many in a row stop the run.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from envs.endpoint import AnswerFailure, EndpointRefusal, EndpointUnavailable, Usage
from envs.environment import Environment, Limits, UnknownTask
from envs.episode import Episode, Party, PrefixMismatch, Termination
from envs.episode import play as play_locally
from envs.evidence.user_faults import find_user_fault
from envs.grading import Grade, flag_errors, grade
from envs.players import LocalPlayer, Player
from envs.reward import DEFAULT, UNSHAPED, Conduct, Reward, Shaping, conduct_of, shape
from envs.task import GENERATED, Rules, TaskDefinition
from events.errors import CheckpointFault, KintsugiError
from events.messages import Message

UNJUDGED: Final = frozenset({Termination.INFRASTRUCTURE_ERROR, Termination.USER_ERROR})
"""Terminations that say nothing about the agent, so the attempt is not judged."""

FAILURES_IN_A_ROW: Final = 10
"""Number of consecutive attempts spoilt by machines after which the run stops."""

MAX_AGENT_CHARACTERS: Final = 16 << 20
"""Largest number of characters, arguments included, that an agent may write in one episode."""


class EnvironmentFailure(KintsugiError):
    """The environment's own code raised an exception."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The environment, players and settings of a run."""

    environment: Environment
    agent: Callable[[TaskDefinition, int], Player]
    """Makes the agent for a task and the episode's seed."""
    user: Callable[[TaskDefinition, int], Player]
    seed: int = 0
    """Seed of the run, from which the seeds of all episodes follow."""
    limits: Limits | None = None
    """Limits of episodes; None for those of the environment."""
    user_may_err: bool = False
    """Whether a user other than the environment's plays. Its faults leave an attempt unjudged."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The grade and reward of a transcript that was played or recorded."""

    grade: Grade
    reward: Reward | None
    """The shaped reward; None if the unshaped reward is unknown."""
    penalties: Mapping[str, float | None]
    """Penalties of shaping, at or below 0, independent of the reward. None if unknown."""
    check: Grade | None = None
    """The grade of a loaded task by the rules for generated ones (`check_loaded`)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished episode and its verdict."""

    task: TaskDefinition
    trial: int
    seed: int
    messages: tuple[Message, ...]
    """The transcript without the system prompt."""
    termination: Termination
    reason: str
    """Details about the end; may be empty."""
    grade: Grade | None
    """None if a machine or the user failed, because then the agent is not judged."""
    reward: Reward | None
    """The shaped reward; None if the unshaped reward is unknown."""
    penalties: Mapping[str, float | None]
    """Penalties of shaping, at or below 0, independent of the reward. None if unknown."""
    usage: Usage
    user_usage: Usage
    remarks: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    """Descriptions of exceptions that no tool should raise."""
    malformed: int = 0
    """Number of malformed calls: no JSON, an unknown tool, or arguments that do not fit."""
    check: Grade | None = None
    """The grade of a loaded task by the rules for generated ones (`check_loaded`)."""

    @property
    def success(self) -> bool | None:
        """The unshaped verdict. None if there is no grade or a part needs a judge."""
        return None if self.grade is None else self.grade.success


def do_nothing(environment: Environment, task: TaskDefinition) -> Grade:
    """Return the grade of an agent that does nothing, as the baseline for all figures."""
    with environment_code(environment, f"task {task.id}", task):
        agent = environment.idle_agent(task)
        episode = play_locally(Episode(environment, task), agent, environment.user(task))
        return grade(environment, task, episode.messages, episode.termination)


def make_environment_user(environment: Environment) -> Callable[[TaskDefinition, int], Player]:
    """Return a function that makes the environment's own user for a task and a seed."""
    return lambda task, seed: LocalPlayer(environment.make_user(task, seed))


def episode_seed(run_seed: int, task_id: str, trial: int) -> int:
    """Return the seed of one attempt, which follows from the run's seed, the task and the trial."""
    return Random(f"episode {run_seed} {task_id} {trial}").getrandbits(48)


async def play(setup: Setup, task: TaskDefinition, trial: int) -> Attempt:
    """Play one attempt from reset to verdict. Raise EnvironmentFailure or EndpointRefusal."""
    with environment_code(setup.environment, f"task {task.id}", task):
        seed = episode_seed(setup.seed, task.id, trial)
        episode = Episode(setup.environment, task, seed=seed, limits=setup.limits)
        agent, user = setup.agent(task, seed), setup.user(task, seed)
        try:
            await _converse(episode, agent, user)
        except AnswerFailure as failure:
            episode.stop(failure.termination, failure.reason)
        return _make_attempt(setup, episode, trial, agent, user)


async def _converse(episode: Episode, agent: Player, user: Player) -> None:
    written = 0
    while episode.turn is not None:
        party = episode.turn
        player = agent if party is Party.AGENT else user
        message = await player.reply(episode.view(party))
        written += _characters(message) if party is Party.AGENT else 0
        if written > MAX_AGENT_CHARACTERS:
            raise AnswerFailure(
                Termination.AGENT_ERROR, f"the agent wrote {written:,} characters in one episode"
            )
        episode.receive(message)


async def play_all(
    setup: Setup, plan: Iterable[tuple[TaskDefinition, int]], *, concurrency: int
) -> AsyncGenerator[list[Attempt], None]:
    """Play pairs of task and trial with one setup. Yield and raise as `play_mixed` does."""
    mixed = ((setup, task, trial) for task, trial in plan)
    async with aclosing(play_mixed(mixed, concurrency=concurrency)) as finished:
        async for attempts in finished:
            yield attempts


async def play_mixed(
    plan: Iterable[tuple[Setup, TaskDefinition, int]], *, concurrency: int
) -> AsyncGenerator[list[Attempt], None]:
    """Play each task with its setup and trial; yield finished attempts in batches. On an error,
    first yield all that finished. Raise EnvironmentFailure, EndpointRefusal, or EndpointUnavailable
    after `FAILURES_IN_A_ROW` spoilt attempts."""
    finished: asyncio.Queue[Attempt | Exception | None] = asyncio.Queue(maxsize=concurrency)
    coming = iter(plan)

    async def work() -> None:
        try:
            for setup, task, trial in coming:
                await finished.put(await play(setup, task, trial))
        except Exception as error:  # handed to the iterating caller, which raises it
            await finished.put(error)
        await finished.put(None)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        async for attempts in _collect_attempts(finished, len(workers)):
            yield attempts
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _collect_attempts(
    finished: "asyncio.Queue[Attempt | Exception | None]", working: int
) -> AsyncGenerator[list[Attempt], None]:
    """Yield attempts in batches until all workers have ended. Raise their first exception."""
    spoilt = 0
    while working:
        batch: list[Attempt] = []
        stopped: Exception | None = None
        item = await finished.get()
        while True:
            if isinstance(item, Attempt):
                batch.append(item)
                spoilt = spoilt + 1 if is_spoilt(item) else 0
                stopped = _make_outage_error(item, spoilt) if spoilt >= FAILURES_IN_A_ROW else None
            elif isinstance(item, Exception):
                stopped = item
            else:
                working -= 1
            if stopped is not None or finished.empty():
                break
            item = finished.get_nowait()
        if batch:
            yield batch
        if stopped is not None:
            raise stopped


def is_spoilt(attempt: Attempt) -> bool:
    """Return whether a machine failed in an attempt, and not the agent or the user."""
    return attempt.termination is Termination.INFRASTRUCTURE_ERROR


def _make_outage_error(last: Attempt, count: int) -> EndpointUnavailable:
    return EndpointUnavailable(
        f"{count} episodes in a row could not be played, the last one (task {last.task.id}) "
        f"because of {last.reason}; see to the endpoint, then run the same command to go on"
    )


@contextmanager
def environment_code(
    environment: Environment, where: str, task: TaskDefinition | None = None
) -> Iterator[None]:
    """Turn an exception of the environment's code inside the block into EnvironmentFailure. Its
    text is not quoted if the task is made from a person's session."""
    try:
        yield
    except (CheckpointFault, EndpointRefusal, EndpointUnavailable, PrefixMismatch, UnknownTask):
        raise
    except Exception as error:
        quoted = "" if task is not None and task.salt is not None else f": {error}"
        raise EnvironmentFailure(
            f"environment {environment.name}, {where}: {type(error).__name__}{quoted}; this is a "
            "fault of its code and not of the agent: mend it (kintsugi env check), then run the "
            "same command to go on"
        ) from error


def blame_user(episode: Episode) -> None:
    """End the episode as `user_error`, which is not judged, if its user has a fault."""
    if episode.termination in UNJUDGED:
        return
    fault = find_user_fault(episode.environment, episode.task, episode.messages)
    if fault is not None:
        episode.stop(Termination.USER_ERROR, fault.summary)


def _make_attempt(
    setup: Setup, episode: Episode, trial: int, agent: Player, user: Player
) -> Attempt:
    if setup.user_may_err or episode.environment.users_err:
        blame_user(episode)
    termination = episode.termination
    assert termination is not None, "a finished episode says why it ended"
    environment, task, messages = setup.environment, episode.task, tuple(episode.messages)
    tokens = agent.usage.completion_tokens
    conduct = conduct_of(messages, environment.catalog, episode.malformed, tokens)
    assessment = None
    if termination not in UNJUDGED:
        assessment = assess(environment, task, messages, termination, conduct)
    return Attempt(
        task=task,
        trial=trial,
        seed=episode.seed,
        messages=messages,
        termination=termination,
        reason=episode.reason,
        grade=None if assessment is None else assessment.grade,
        check=None if assessment is None else assessment.check,
        reward=None if assessment is None else assessment.reward,
        penalties=penalties(conduct, choose_shaping(task)),
        usage=agent.usage,
        user_usage=user.usage,
        remarks=tuple(user.remarks),
        defects=tuple(episode.defects),
        malformed=episode.malformed,
    )


def assess(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    termination: str | None,
    conduct: Conduct,
) -> Assessment:
    """Grade a transcript (without system prompt), and shape its reward by the agent's conduct."""
    verdict = grade(environment, task, messages, termination)
    worth, shaping = verdict.reward, choose_shaping(task)
    return Assessment(
        grade=verdict,
        check=check_loaded(environment, task, messages, termination),
        reward=None if worth is None else shape(worth, conduct, shaping),
        penalties=penalties(conduct, shaping),
    )


_COMPARING: Final = frozenset({"DB", "COMMUNICATE", "ACTION"})
"""Parts of the reward that a task's rules change."""


def check_loaded(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    termination: str | None,
) -> Grade | None:
    """Grade a transcript of a loaded task by the rules for generated tasks. Return None for other
    tasks, and if these rules change no part of the task's reward."""
    criteria = task.criteria
    if (
        task.split == GENERATED
        or criteria.rules
        or not _COMPARING.intersection(criteria.reward_basis)
    ):
        return None
    ruled = criteria.model_copy(update={"rules": Rules()})
    return grade(environment, task.model_copy(update={"criteria": ruled}), messages, termination)


def assess_recorded(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    tokens: int | None,
) -> Assessment:
    """Assess a transcript that another program recorded as if it had been played here and ended
    regularly. A replay on a fresh state shows the malformed calls, and the failed ones where a flag
    is missing. `tokens` are the model's; without them no length penalty applies."""
    flagged, malformed = flag_errors(environment, task, messages)
    conduct = conduct_of(flagged, environment.catalog, malformed, tokens)
    return assess(environment, task, flagged, Termination.USER_STOP, conduct)


def choose_shaping(task: TaskDefinition) -> Shaping:
    """Return the shaping for a task's rollouts. A task with a graded reward (milestones) gets none,
    because a penalty could put a success below a near miss."""
    return DEFAULT if task.criteria.milestones is None else UNSHAPED


def penalties(conduct: Conduct, shaping: Shaping) -> dict[str, float | None]:
    """Return each penalty of shaping for this conduct, at or below 0. None if unknown."""
    components: dict[str, float | None] = dict(shape(0.0, conduct, shaping).components)
    del components["task"]
    if conduct.tokens is None:
        components["length"] = None
    return components


def _characters(message: Message) -> int:
    return len(message.text) + sum(_argument_characters(message))


def _argument_characters(message: Message) -> Iterator[int]:
    for call in message.tool_calls:
        arguments = call.arguments
        yield len(arguments) if isinstance(arguments, str) else len(repr(arguments))
