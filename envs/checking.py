"""Check that an environment is deterministic and that agents win and lose as they must.

    found = check(Sample(environment="./library.py"))
    found.problems      one sentence each: which task, what is wrong, what to do

The checks of generated tasks: a task depends only on capability and seed, even in a process with
another order of sets. The same agent messages give the same episode, even in another order of
tasks, and an episode leaves no trace. The oracle gets 1, an idle agent at most .2, a random one at
most .3 (static checks of TRACE, arXiv 2604.05336), and no cheater wins more than a twentieth of a
kind (cheating/). Gold actions repeat, and writes among them change the state. No tool raises. Ids,
schemas and scenarios are fit for use. Figures of loaded tasks are reported and not judged.

Not covered: what changes once a day or from machine to machine, and whether a task makes sense.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final

from pydantic import ValidationError

from envs.cheating.bank import CHEATERS
from envs.cheating.trial import BankReport, Win, run_bank
from envs.environment import Environment
from envs.footprint import (
    AGENTS,
    REPEATED,
    SCENARIOS,
    EpisodeResult,
    Repeats,
    Report,
    Sample,
    SecondProcess,
    Trial,
    hash_state,
    play_task,
    prepare_trials,
)
from envs.grading import replay_gold
from envs.patterns.search import REMEDY
from envs.schema import ToolSchema
from envs.task import GENERATED
from events.canonical import sha256

NULL_AT_MOST: Final = 0.2
RANDOM_AT_MOST: Final = 0.3
DISTINCT_AT_LEAST: Final = 0.95

_PARTS: Final = {
    "definition": "definition",
    "state": "first state",
    "oracle": "episode of the oracle",
    "random": "episode of the random agent",
}
_EVERY_SEED: Final = "every capability must give a task for every seed"
_ANY_AGENT: Final = "whatever an agent says, an episode must come to an end"
_STAGES: Final = {
    "generate": ("generate", _EVERY_SEED),
    "generate again": ("generate, the second time,", _EVERY_SEED),
    "reset": ("pristine", "every task must have a first state of JSON records"),
    "pristine": ("pristine, the second time,", "every task must have a first state"),
    "task": ("task(id)", "let it give every task that a split has"),
    "oracle": ("the episode of the oracle", _ANY_AGENT),
    "null": ("the episode of an agent that does nothing", _ANY_AGENT),
    "random": ("the episode of a random agent", _ANY_AGENT),
    "again": ("an episode that is played again", _ANY_AGENT),
    "gold": ("replaying the gold actions", "let tools raise ToolError alone"),
    "schemas": ("schemas(task)", "let every task have its tools"),
}
"""Stage at which the environment's code may raise -> its name in a problem, and the remedy."""

_KEEP_STATE: Final = "keep all state in the database, none in a class, a module or the environment"
_CORRECT_GOLD: Final = "correct its gold actions, the first state, or the tool"
_SCHEMA: Final = "give it in the format of OpenAI's functions, with a docstring"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a task, or of the environment as a whole."""

    kind: str
    subject: str
    """Id of the task, or of its kind, or name of the environment."""
    what: str
    remedy: str
    determinism: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """Mean reward of each agent; None without a task that can be judged."""

    tasks: int
    oracle: float | None
    null: float | None
    random: float | None
    unjudged: int
    """Number of tasks with a part that only a judge can decide; the means leave them out."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking an environment."""

    environment: str
    split: str
    judged: bool
    """Whether the rates were compared with their limits. Rates of loaded tasks are not."""
    digest: str
    """SHA-256 of all task definitions. It differs between two versions of a split."""
    deterministic: bool
    overall: Rates
    capabilities: Mapping[str, Rates]
    bank: BankReport
    constant: tuple[str, ...]
    """Kinds with a constant outcome, which no cheater plays."""
    problems: tuple[str, ...]

    @property
    def winnable(self) -> Mapping[str, Win]:
        """The kinds that a cheater wins too often, each with the result of its best cheater."""
        return self.bank.winnable


def check(sample: Sample, progress: Callable[[int], None] = lambda _: None) -> Check:
    """Check a sample of tasks, and call `progress` twice for each task. Exceptions of the
    environment become problems. Raise UnknownEnvironment, EnvironmentBroken or UnknownTask."""
    environment = sample.open()
    judged = sample.split == GENERATED
    with SecondProcess(sample) as second:
        trials = prepare_trials(environment, sample)
        ready = [trial for trial in trials if trial.ready]
        problems = [
            *_first_round(environment, ready, sample.seed, progress),
            *_second_round(environment, ready, progress),
            *_definitions(environment, ready),
        ]
        kinds = dict.fromkeys(trial.task.capability for trial in ready if judged)
        played = [kind for kind in kinds if kind not in environment.constant]
        bank = run_bank(environment, played, seed=sample.seed)
        report = second.report()
    problems += _elsewhere(environment, ready, report, {problem.subject for problem in problems})
    rates, capabilities = _rates(ready), _by_capability(ready)
    if judged:
        problems += _verdicts(environment, ready, report, rates, capabilities)
    problems += _report_failures(trials)
    problems += _cheats(environment, bank)
    return Check(
        environment.name,
        sample.split,
        judged,
        sha256(" ".join(trial.task.digest() for trial in ready)),
        not any(problem.determinism for problem in problems),
        rates,
        capabilities,
        bank,
        tuple(kind for kind in kinds if kind in environment.constant),
        tuple(_sentences(problems)),
    )


def _first_round(
    environment: Environment, trials: Sequence[Trial], seed: int, progress: Callable[[int], None]
) -> Iterator[Problem]:
    """Play every task with every agent. Yield a problem for each first state that this changed."""
    for _, group in groupby(trials, key=lambda trial: trial.begins):
        together = list(group)
        task = together[0].task
        before = hash_state(environment.reset(task))
        for trial in together:
            trial.play(environment, AGENTS, seed)
            progress(1)
        if hash_state(environment.reset(task)) != before:
            yield Problem(
                "reset",
                task.id,
                "its first state is another one after it was played",
                "a tool changes a record in place: take it with database.edit before",
                determinism=True,
            )


def _second_round(
    environment: Environment, trials: Sequence[Trial], progress: Callable[[int], None]
) -> Iterator[Problem]:
    """Play all tasks again with the same messages, last first. Yield differences as problems."""
    for trial in reversed(trials):
        for name in REPEATED:
            with trial.stage("again"):
                yield from _check_repetition(environment, trial, name)
        progress(1)


def _check_repetition(environment: Environment, trial: Trial, name: str) -> Iterator[Problem]:
    first = trial.plays.get(name)
    if first is None:
        return
    second = play_task(environment, trial.task, Repeats(first.messages))
    if second.trace != first.trace:
        yield Problem(
            "episode",
            trial.subject,
            f"the same messages of the agent gave another episode ({_difference(first, second)})",
            _KEEP_STATE,
            determinism=True,
        )


def _difference(first: EpisodeResult, second: EpisodeResult) -> str:
    for place, (message, other) in enumerate(zip(first.messages, second.messages, strict=False)):
        if message != other:
            return f"message {place} was {message.text[:80]!r}, then {other.text[:80]!r}"
    if len(first.messages) != len(second.messages):
        return f"{len(first.messages)} messages, then {len(second.messages)}"
    if first.policy != second.policy:
        return "the policy differs"
    if first.state != second.state:
        return "the last state differs"
    return f"the reward was {first.grade.reward}, then {second.grade.reward}"


def _definitions(environment: Environment, trials: Sequence[Trial]) -> Iterator[Problem]:
    """Check that each task's id is unique, its fields are right, and it can be made again."""
    counts = Counter(trial.task.id for trial in trials)
    for trial in trials:
        if counts[trial.task.id] > 1:
            yield Problem(
                "unique",
                trial.task.id,
                f"{counts[trial.task.id]} tasks have this id",
                "give each its own, with self.task_id(capability, seed)",
            )
            continue
        with trial.stage("generate again"):
            yield from _check_generation(trial)
        with trial.stage("pristine"):
            yield from _check_state(environment, trial)
        with trial.stage("task"):
            yield from _check_lookup(environment, trial)


def _check_generation(trial: Trial) -> Iterator[Problem]:
    if trial.make().digest() != trial.task.digest():
        yield Problem(
            "generate",
            trial.subject,
            "generated twice, it is not the same task",
            "let chance come from Random(text with the seed), and use no clock",
            determinism=True,
        )


def _check_state(environment: Environment, trial: Trial) -> Iterator[Problem]:
    if environment.pristine(trial.task).digest() != trial.state:
        yield Problem(
            "pristine",
            trial.subject,
            "pristine made another state the second time",
            "let chance come from Random(text with task.seed), and use no clock",
            determinism=True,
        )


def _check_lookup(environment: Environment, trial: Trial) -> Iterator[Problem]:
    task = trial.task
    expected = (trial.subject, environment.name)
    if (task.id, task.environment) != expected:
        yield Problem(
            "id",
            trial.subject,
            f"it says that it is {task.id!r} of {task.environment!r}",
            "set id=self.task_id(capability, seed) and environment=self.name",
        )
    elif environment.task(task.id).digest() != task.digest():
        yield Problem(
            "task",
            trial.subject,
            "task(id) gives another definition than its split",
            "let both come from generate",
        )


def _elsewhere(
    environment: Environment, trials: Sequence[Trial], report: Report, known: Container[str]
) -> Iterator[Problem]:
    """Yield a problem for each difference in a second process, where sets have another order."""
    if report.crashed:
        yield Problem(
            "process",
            environment.name,
            f"in a second process it cannot be used ({report.crashed})",
            "make it independent of the process that imports it",
            determinism=True,
        )
        return
    for trial in trials:
        there = report.footprints.get(trial.subject, {})
        different = [part for part, hashed in trial.footprint.items() if there.get(part) != hashed]
        if different and trial.subject not in known:
            yield Problem(
                "process",
                trial.subject,
                f"another process sees another {_PARTS[different[0]]}",
                "sort what comes from a set, and use neither hash() nor id()",
                determinism=True,
            )


def _verdicts(
    environment: Environment,
    trials: Sequence[Trial],
    report: Report,
    rates: Rates,
    capabilities: Mapping[str, Rates],
) -> Iterator[Problem]:
    for trial in trials:
        yield from _check_episodes(trial)
        if trial.task.script is not None and (fault := trial.task.script.find_fault()):
            yield Problem("pattern", trial.subject, fault, REMEDY)
        with trial.stage("gold"):
            yield from _gold(environment, trial)
    for capability, distinct in report.distinct.items():
        if distinct < DISTINCT_AT_LEAST * SCENARIOS:
            yield Problem(
                f"distinct {capability}",
                f"{environment.name}/{capability}",
                f"{distinct} of {SCENARIOS} scenarios are distinct, "
                f"{DISTINCT_AT_LEAST * SCENARIOS:.0f} should be",
                "draw names, records and wishes from more values",
            )
    for subject, text in report.failures.items():
        yield Problem("generate raises", subject, f"generate raises {text}", _EVERY_SEED)
    yield from _schemas(environment, trials)
    yield from _too_easy(environment, rates, capabilities)


def _too_easy(
    environment: Environment, rates: Rates, capabilities: Mapping[str, Rates]
) -> Iterator[Problem]:
    limits = (
        ("null", "does nothing", NULL_AT_MOST),
        ("random", "calls tools at random", RANDOM_AT_MOST),
    )
    for agent, does, most in limits:
        reached = getattr(rates, agent)
        if reached is None or reached <= most:
            continue
        shares = {name: getattr(row, agent) or 0.0 for name, row in capabilities.items()}
        easiest = max(shares, key=lambda name: shares[name])
        yield Problem(
            agent,
            environment.name,
            f"an agent that {does} gets {reached:.2f}, above {most:.2f}, and {shares[easiest]:.2f} "
            f"of {easiest!r}",
            "demand a change, or an output that only a look into the state can tell",
        )


def _cheats(environment: Environment, bank: BankReport) -> Iterator[Problem]:
    for kind, win in bank.winnable.items():
        cheater = CHEATERS[win.cheater]
        yield Problem(
            f"winnable {kind}",
            f"{environment.name}/{kind}",
            f"an agent that {cheater.does} ({win.cheater}) wins {win.wins} of {win.tasks} tasks, "
            f"{win.most} at most should be",
            cheater.remedy,
        )
    for kind, error in bank.failures.items():
        yield Problem(
            f"bank {kind}",
            f"{environment.name}/{kind}",
            f"cheaters cannot play it, so nobody knows whether it can be won: it raises {error}",
            _ANY_AGENT,
        )
    for kind, trial in bank.trials.items():
        for defect in trial.defects:
            yield Problem("defect", f"{environment.name}/{kind}", *_explain_defect(defect))


def _explain_defect(defect: str) -> tuple[str, str]:
    return f"a tool raised: {defect}", "raise ToolError for whatever an agent may get wrong"


def _check_episodes(trial: Trial) -> Iterator[Problem]:
    for episode in trial.plays.values():
        for defect in episode.defects:
            yield Problem("defect", trial.subject, *_explain_defect(defect))
    oracle = trial.plays.get("oracle")
    if oracle is None or oracle.grade.reward == 1.0:
        return
    if oracle.grade.reward is None:
        what = f"nobody but a judge can tell {', '.join(oracle.grade.open_parts)}"
        yield Problem("judge", trial.subject, what, "leave it out of the reward basis")
        return
    remedy = "correct its gold actions and outputs, the script, or the oracle"
    yield Problem("oracle", trial.subject, f"the oracle gets 0: {_why(oracle)}", remedy)


def _why(played: EpisodeResult) -> str:
    grade = played.grade
    if grade.irregular is not None:
        return f"the episode ended with {grade.irregular}"
    if grade.difference:
        first = grade.difference[0]
        return f"{'/'.join(first.path)} is {first.actual!r}, not {first.expected!r}"
    if grade.missing:
        return f"{grade.missing[0]!r} was not said"
    return next(iter(grade.violations), "a gold action was not called")


def _gold(environment: Environment, trial: Trial) -> Iterator[Problem]:
    """Check that gold actions succeed, repeat, and change the state if they write."""
    gold = trial.task.criteria.gold_actions or ()
    tools = environment.open_tools(trial.task, environment.reset(trial.task))
    for action in gold:
        result = tools.call(action.name, action.arguments, action.requestor)
        if result.malformed or (result.error and action.name in environment.changes):
            what = f"its gold action {action.name} is refused ({result.content})"
            yield Problem("refused", trial.subject, what, _CORRECT_GOLD)
            return
    if tools.database.digest() != replay_gold(environment, trial.task).digest():
        what = "its gold actions leave another state the second time"
        yield Problem("gold", trial.subject, what, _KEEP_STATE, determinism=True)
    writes = [action.name for action in gold if action.name in environment.changes]
    if writes and tools.database.digest() == trial.state:
        what = f"its gold actions write ({', '.join(writes)}), but the state stays as it was"
        yield Problem("no change", trial.subject, what, _CORRECT_GOLD)


def _schemas(environment: Environment, trials: Sequence[Trial]) -> Iterator[Problem]:
    seen = {trial.task.capability: trial for trial in trials}
    for trial in seen.values():
        with trial.stage("schemas"):
            offered = (environment.schemas(trial.task), environment.user_schemas(trial.task))
            for schema in chain(*offered):
                try:
                    ToolSchema.model_validate(schema)
                except ValidationError as error:
                    yield Problem("schema", trial.subject, _explain(schema, error), _SCHEMA)


def _explain(schema: Mapping[str, Any], error: ValidationError) -> str:
    function = schema.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"the schema of tool {name!r} is wrong at {where}: {problem['msg']}"


def _report_failures(trials: Sequence[Trial]) -> Iterator[Problem]:
    for trial in trials:
        for stage, text in trial.failures.items():
            what, remedy = _STAGES[stage]
            yield Problem(f"{stage} raises", trial.subject, f"{what} raises {text}", remedy)


def _rates(trials: Sequence[Trial]) -> Rates:
    judged = [trial for trial in trials if not _needs_judge(trial)]
    return Rates(
        len(trials),
        _mean(judged, "oracle"),
        _mean(judged, "null"),
        _mean(judged, "random"),
        unjudged=len(trials) - len(judged),
    )


def _needs_judge(trial: Trial) -> bool:
    return any(episode.grade.open_parts for episode in trial.plays.values())


def _mean(trials: Sequence[Trial], agent: str) -> float | None:
    rewards = [trial.plays[agent].grade.reward or 0.0 for trial in trials if agent in trial.plays]
    return sum(rewards) / len(rewards) if rewards else None


def _by_capability(trials: Sequence[Trial]) -> dict[str, Rates]:
    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.task.capability].append(trial)
    return {capability: _rates(groups[capability]) for capability in groups}


def _sentences(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield one sentence for each kind of problem, about its first task. Problems of determinism
    are merged, because they lie in the code; others are separate for each capability."""
    groups: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem in problems:
        capability = "" if problem.determinism else problem.subject.rpartition("/")[0]
        groups[problem.kind, capability].append(problem)
    for group in groups.values():
        first, others = group[0], len({problem.subject for problem in group}) - 1
        more = f" (and {others} more like it)" if others else ""
        yield f"{first.subject}: {first.what}{more}; {first.remedy}"
