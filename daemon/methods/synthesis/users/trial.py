"""Play dialogues with an adapter of role `user`, on tasks whose exact user is known.

    python -m daemon.methods.synthesis.users.trial PLAN.json --out DIR

This runs in a separate process. The agent is the environment's oracle, on tasks that no training of
a user has seen. It counts violations (the user breaks its instruction, tells a secret, misuses a
tool, never ends, or makes the oracle fail unlike the exact user), early ends, and schema errors
(malformed lines and calls). Output, exit codes and files are those of plan_program.py.

A chunk depends on nothing before it, so a killed plan that is run again gives the same dialogues on
one machine with one number of threads. Chunks on disk are not played again. Source: AReaL-SEA,
arXiv 2601.22607, tunes the user first; the gate is ours. Bounds are one-sided, of Clopper and
Pearson (1934).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, TypeAdapter

from daemon.evaluation.binomial import bound_share
from daemon.evaluation.plan_program import (
    ChunkJournal,
    Heartbeat,
    open_plan_environment,
    run_program,
)
from daemon.evaluation.players import Adapter
from daemon.evaluation.trial import load_base, load_chat, prove_adapter
from daemon.methods.synthesis.manners import find_turn, vary_manner
from envs.episode import REGULAR
from envs.evidence.user_faults import FaultRule, find_user_fault
from envs.task import TaskDefinition
from envs.users import STOP_TOKENS
from events.canonical import exact_json, sha256
from events.jobs import AdapterUser
from events.messages import Message, StrictModel
from events.rollouts import clip_reason
from events.serving import UserEvaluated, UserFaultRate

if TYPE_CHECKING:
    from daemon.engine.policy import Policy
    from daemon.methods.synthesis.user_training.player import Dialogue
    from envs.environment import Environment
    from envs.episode import Episode

CHUNK: Final = 100
"""Number of dialogues that are played and written to disk together."""
VIOLATIONS: Final = 0.02
"""Limit of the upper bound on the share of dialogues with a violation."""
EARLY_ENDS: Final = 0.01
"""Limit of the upper bound on the share of dialogues that end early."""
SCHEMA_ERRORS: Final = 0.005
"""Limit of the upper bound on schema errors per line and call."""
_LEVEL: Final = 0.05
_EXAMPLES: Final = 8


class UserPlan(StrictModel):
    """The plan of a trial: which dialogues are played, and with which adapter as user."""

    name: str
    """Name of the trial, from which the dialogues' ids follow."""
    environment: str
    benchmarks: str | None = None
    checkpoint: str
    alias: str
    base: str
    user: AdapterUser
    """The adapter that is measured as a user, and how its lines are drawn."""
    previous: str | None = None
    """Adapter that plays users until then; None for the script."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Tasks that no training of a user has seen."""
    manners: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Manners of speaking (manners.py) that tasks take in turn; empty for their own words."""
    seed: int
    episodes: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int | None = None

    @property
    def digest(self) -> str:
        """Return the sha256 of the plan."""
        return sha256(exact_json(self.model_dump(mode="json")))


class DialogueResult(StrictModel):
    """The result of one finished dialogue."""

    task: str
    manner: str | None = None
    """Manner of the task; None for its own words."""
    termination: str
    fault: FaultRule | None
    """The user's fault, or None."""
    fault_reason: str = ""
    written: int
    """Number of lines and calls that the user wrote, dropped ones included."""
    schema_errors: tuple[str, ...] = ()
    """Problems of the malformed lines and calls."""
    success: bool | None
    """The verdict on the agent, or None."""
    messages: tuple[Message, ...]

    @property
    def label(self) -> str:
        """Return the task's id with its manner."""
        return self.task if self.manner is None else f"{self.task} ({self.manner})"


@dataclass(frozen=True, slots=True)
class UserCounts:
    """The counts by which a gate decides."""

    dialogues: int
    violations: int
    early_ends: int
    written: int
    """Number of lines and calls."""
    schema_errors: int


class UserJudgement(StrictModel):
    """The decision of a gate."""

    violations: UserFaultRate
    early_ends: UserFaultRate
    schema_errors: UserFaultRate
    passed: bool
    reason: str


class UserResult(UserJudgement):
    """The result of a plan."""

    dialogues: int
    examples: tuple[str, ...]
    """Texts on faults, the first ones of each kind."""
    solved: int
    """Number of dialogues in which the oracle passed."""

    def to_event(self, plan: UserPlan) -> UserEvaluated:
        """Return the event with the result for the plan's adapter."""
        return UserEvaluated(
            adapter=plan.user.adapter,
            alias=plan.alias,
            previous=plan.previous,
            environment=plan.environment,
            candidates=plan.user.candidates,
            manners=plan.manners,
            **self.model_dump(exclude={"solved"}),
        )


_CHUNK: Final[TypeAdapter[tuple[DialogueResult, ...]]] = TypeAdapter(tuple[DialogueResult, ...])


def judge_user(counts: UserCounts) -> UserJudgement:
    """Decide whether a user may play: each upper 95 % bound must be within its limit. Schema errors
    count per line and call, other faults per dialogue. Raise ValueError without a dialogue."""
    dialogues = counts.dialogues
    violations = _rate(counts.violations, dialogues, VIOLATIONS)
    early_ends = _rate(counts.early_ends, dialogues, EARLY_ENDS)
    errors = _rate(counts.schema_errors, max(counts.written, 1), SCHEMA_ERRORS)
    named = {"violations": violations, "early ends": early_ends, "schema errors": errors}
    broken = [name for name, rate in named.items() if not rate.holds]
    reason = "; ".join(
        f"{name} {rate.count} of {rate.of}, at most {rate.upper:.2%} where {rate.limit:.1%} may be"
        for name, rate in named.items()
    )
    return UserJudgement(
        violations=violations,
        early_ends=early_ends,
        schema_errors=errors,
        passed=not broken,
        reason=clip_reason(reason),
    )


def _rate(count: int, whole: int, limit: float) -> UserFaultRate:
    upper = bound_share(count, whole, _LEVEL)
    return UserFaultRate(count=count, of=whole, upper=upper, limit=limit)


def read_result(folder: Path, plan: UserPlan) -> UserResult | None:
    """Return the result of a plan in a folder; None until all chunks are there. Raise BadPlan for
    another plan's dialogues or a damaged file."""
    done = ChunkJournal(folder, plan.digest, _CHUNK).read()
    if len(done) < len(_list_chunks(plan)):
        return None
    return summarize([dialogue for chunk in done for dialogue in chunk])


def summarize(dialogues: Sequence[DialogueResult]) -> UserResult:
    """Return the result of dialogues. Raise ValueError without one."""
    return UserResult(
        dialogues=len(dialogues),
        examples=tuple(_list_examples(dialogues))[:_EXAMPLES],
        solved=sum(item.success is True for item in dialogues),
        **dict(judge_user(_count(dialogues))),
    )


def _count(dialogues: Sequence[DialogueResult]) -> UserCounts:
    return UserCounts(
        dialogues=len(dialogues),
        violations=sum(item.fault not in (None, "early_end") for item in dialogues),
        early_ends=sum(item.fault == "early_end" for item in dialogues),
        written=sum(item.written for item in dialogues),
        schema_errors=sum(len(item.schema_errors) for item in dialogues),
    )


def _list_examples(dialogues: Sequence[DialogueResult]) -> Iterator[str]:
    """Yield texts on faults and schema errors: the first of each kind, then the second ones."""
    by_kind: dict[str, list[str]] = {}
    for item in dialogues:
        if item.fault is not None:
            by_kind.setdefault(item.fault, []).append(f"{item.label}: {item.fault_reason}")
        for error in item.schema_errors[:1]:
            by_kind.setdefault("schema", []).append(f"{item.label}: schema error: {error}")
    for place in range(max(map(len, by_kind.values()), default=0)):
        for texts in by_kind.values():
            if place < len(texts):
                yield clip_reason(texts[place])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    return run_program(
        "daemon.methods.synthesis.users.trial", main.__doc__, arguments, UserPlan, play
    )


def play(plan: UserPlan, out: Path) -> None:
    """Play missing chunks. Raise BadPlan, WrongSetting, BadAdapter, OSError, environment errors."""

    def prepare() -> "Callable[[tuple[str, ...]], list[DialogueResult]]":
        environment = open_plan_environment(plan.environment, plan.benchmarks, out)
        return partial(_Players(plan).play, environment)

    ChunkJournal(out, plan.digest, _CHUNK).fill(_list_chunks(plan), prepare)


def _list_chunks(plan: UserPlan) -> list[tuple[str, ...]]:
    return [plan.tasks[start : start + CHUNK] for start in range(0, len(plan.tasks), CHUNK)]


class _Players:
    """Plays the chunks of a plan; its adapter is proven and loaded once."""

    def __init__(self, plan: UserPlan) -> None:
        """Load the policies. Raise WrongSetting, IncompatibleModel, BadAdapter, OSError."""
        checkpoint, user = Path(plan.checkpoint), plan.user
        base = load_base(checkpoint, plan.base, plan.dtype, plan.threads)
        own = Adapter(name=user.adapter, folder=user.folder, sha256=user.sha256)
        self._plan, self._chat = plan, load_chat(checkpoint)
        self._places = {task: place for place, task in enumerate(plan.tasks)}
        self._user: Policy = base.with_adapter(prove_adapter(checkpoint, own), own.name)

    def play(self, environment: "Environment", chunk: tuple[str, ...]) -> list[DialogueResult]:
        """Play the tasks of a chunk; return their dialogues in order."""
        manners = self._plan.manners
        tasks = {
            task: vary_manner(environment.task(task), self._places[task], manners) for task in chunk
        }
        results: dict[str, DialogueResult] = {}
        heartbeat = Heartbeat()
        for result in self._play_dialogues(environment, tasks.values()):
            results[result.task] = result
            heartbeat.say_when_due(phase="oracle", rollouts=len(results))
        # A task in another manner has an id by content, which an operator could not look up.
        return [
            results[task.id]
            if task.id == name
            else results[task.id].model_copy(
                update={"task": name, "manner": find_turn(self._places[name], manners)}
            )
            for name, task in tasks.items()
        ]

    def _play_dialogues(
        self, environment: "Environment", tasks: Iterable[TaskDefinition]
    ) -> Iterator[DialogueResult]:
        from daemon.engine.generation import Engine
        from daemon.methods.synthesis.user_training.player import DialoguePlayer
        from envs.evaluation import episode_seed

        plan = self._plan
        # Each chunk has a new engine: a used cache may round differently.
        engine = Engine(self._user, plan.episodes)
        player = DialoguePlayer(engine, self._chat, self._user, plan.user)
        asked = [(task, episode_seed(plan.seed, task.id, 0)) for task in tasks]
        for dialogue in player.play(environment, asked):
            yield describe_dialogue(dialogue)


def describe_dialogue(dialogue: "Dialogue") -> DialogueResult:
    """Return the result of a dialogue with the oracle. An endless dialogue is the user's fault,
    since the oracle ends every one. A failure is the user's fault too if the oracle passes with the
    exact user: no rule covers evasions, echoes and omitted steps."""
    from envs.evaluation import environment_code
    from envs.grading import grade

    episode = dialogue.episode
    environment, task = episode.environment, episode.task
    fault, reason = _find_fault(environment, task, episode.messages)
    if fault is None and episode.termination not in REGULAR:
        ended = episode.reason or episode.termination
        fault, reason = "instruction", f"the dialogue does not end: {ended}"
    with environment_code(environment, f"task {task.id}", task):
        verdict = grade(environment, task, episode.messages, episode.termination)
    if fault is None and verdict.success is False and _passes_with_exact_user(environment, task):
        fault, reason = "instruction", _describe_failure(episode)
    return DialogueResult(
        task=task.id,
        termination=str(episode.termination),
        fault=fault,
        fault_reason=reason,
        written=dialogue.written,
        schema_errors=dialogue.schema_errors,
        success=verdict.success,
        messages=tuple(episode.messages),
    )


def _passes_with_exact_user(environment: "Environment", task: TaskDefinition) -> bool:
    """Return whether the oracle passes a task with its exact user. Raise EnvironmentFailure."""
    from daemon.methods.synthesis.user_training.examples import NoExample, play_gold

    try:
        play_gold(environment, task)
    except NoExample:
        return False
    return True


def _describe_failure(episode: "Episode") -> str:
    """Return a sentence that the oracle fails with this user, with the user's last line."""
    own = [item for item in episode.messages if item.role == "user" and item.sampled is not False]
    lines = [item.text for item in own if not any(token in item.text for token in STOP_TOKENS)]
    last = f", which says {lines[-1][:80]!r} last" if lines else ""
    return f"the oracle passes the task with the exact user, and fails with this one{last}"


def _find_fault(
    environment: "Environment", task: TaskDefinition, messages: Sequence[Message]
) -> tuple[FaultRule | None, str]:
    """Return the rule that the user broke first, and how it did. Raise EnvironmentFailure."""
    from envs.evaluation import environment_code

    with environment_code(environment, f"task {task.id}", task):
        fault = find_user_fault(environment, task, messages)
    return (None, "") if fault is None else (fault.rule, fault.summary)


if __name__ == "__main__":
    sys.exit(main())
