"""Evaluate repairs: a share of an evaluation's tasks begins after a wrong call.

    tasks = inject(environment, tasks, {"argument": 0.5}, seed)
    observer = MistakeObserver(spec, environment)        reads attempts of an InjectedSpec
    observer.report(run, lines)                          what `kintsugi eval --inject` adds

A mistake is a lesson of the task (envs/lessons): the oracle's conversation up to a call, a wrong
call in its place, and the tools' answer; its operator is the kind of wrong call. All trials of a
task begin with one mistake in one state, so the estimate of Repair@k, 1 - C(n-c, k) / C(n, k), is
unbiased. The official definition, whether any of the first k trials is correct by the official
rule, is also reported. Source: Structured Reflection, arXiv 2509.18847. Not covered: the agent's
own mistakes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import TYPE_CHECKING, Any, Final

from daemon.evaluation.run import Line, Run, Slot, Spec, by_k, outcomes_of
from envs import statistics
from envs.environment import Environment
from envs.evaluation import UNJUDGED, Attempt, EnvironmentFailure
from envs.lessons.making import make_lessons
from envs.lessons.observation import Observation, observe
from envs.task import PERTURBATIONS, Lesson, Operator, TaskDefinition

if TYPE_CHECKING:
    from daemon.core.app import App

SHOWN: Final = (1, 3, 5)
"""The values of k for which Repair@k is reported."""


def inject(
    environment: Environment,
    tasks: Iterable[TaskDefinition],
    rates: Mapping[Operator, float],
    seed: int,
) -> Iterator[TaskDefinition]:
    """Yield the tasks, each operator's share of them as lessons with its mistake. A task without a
    possible mistake stays as it is. Raise EnvironmentFailure."""
    for task in tasks:
        operator = draw_operator(task.id, rates, seed)
        yield task if operator is None else _find_lesson(environment, task, operator, seed) or task


def draw_operator(task: str, rates: Mapping[Operator, float], seed: int) -> Operator | None:
    """Draw the operator of a task's mistake, by the rates; None for no mistake."""
    chance = Random(f"inject {seed} {task}").random()
    for operator in PERTURBATIONS:
        chance -= rates.get(operator, 0.0)
        if chance < 0:
            return operator
    return None


def _find_lesson(
    environment: Environment, task: TaskDefinition, operator: Operator, seed: int
) -> TaskDefinition | None:
    report = make_lessons(environment, [task], wanted=len(PERTURBATIONS), seed=seed)
    own = (made for made in report.lessons if made.lesson and made.lesson.operator == operator)
    lesson = next(own, None)
    if lesson is None and report.troubles:
        raise EnvironmentFailure(
            f"environment {environment.name} raised where a mistake of {operator} was to be made: "
            f"{report.troubles[0]}; mend its code, or leave out --inject"
        )
    return lesson


@dataclass(frozen=True, slots=True)
class InjectedSpec(Spec):
    """An evaluation in which some tasks begin after a mistake."""

    inject: Mapping[Operator, float] = field(default_factory=dict)
    """Operator -> share of the tasks that begin after its mistake."""

    @classmethod
    def of(cls, spec: Spec, rates: Mapping[Operator, float]) -> "InjectedSpec":
        """Return a copy of the evaluation `spec` that makes mistakes at these rates."""
        return cls(**{item.name: getattr(spec, item.name) for item in fields(spec)}, inject=rates)

    def tasks(self, environment: Environment) -> Iterator[TaskDefinition]:
        """Yield the tasks, some with mistakes. Raise UnknownTask, EnvironmentFailure."""
        return inject(environment, Spec.tasks(self, environment), self.inject, self.seed)


class MistakeObserver:
    """Observes in an evaluation's attempts whether mistakes are repaired."""

    def __init__(self, spec: InjectedSpec, environment: Environment) -> None:
        self._spec, self._environment = spec, environment
        self._lessons: dict[str, Lesson | None] = {}
        """Task -> its lesson; None for a task without a mistake."""
        self._seen: dict[Slot, Observation] = {}
        """(Task, trial) -> the observation of that attempt."""

    def note(self, task: TaskDefinition) -> None:
        """Remember a task's lesson. Call this before the task's attempts are observed."""
        self._lessons[task.id] = task.lesson

    def observe(self, attempt: Attempt) -> None:
        """Observe an attempt, if it was judged."""
        if attempt.grade is not None:
            self._seen[attempt.task.id, attempt.trial] = observe(
                self._environment,
                self._lessons[attempt.task.id],
                attempt.messages,
                bool(attempt.success),
            )

    def observe_resumed(self, app: "App", run: Run) -> None:
        """Observe the attempts that an earlier run recorded. Raise LogTruncated, BadRecord."""
        from daemon.sessions import transcript

        with app.reading() as connection:
            for slot, verdict in run.ended.items():
                if verdict.termination in UNJUDGED:
                    continue
                rollout = run.rollout(slot, run.tries[slot] - 1)
                stored = transcript.read(transcript.find(connection, rollout), app.log, app.bodies)
                self._seen[slot] = observe(
                    self._environment,
                    self._lessons[slot[0]],
                    stored.messages,
                    bool(verdict.success),
                )

    def report(self, run: Run, judged: Sequence[Line]) -> dict[str, Any]:
        """Return pass^k of tasks with and without a mistake, and the repairs of mistakes."""
        spec, lessons = self._spec, self._lessons
        parts = {
            "clean": [line for line in judged if lessons[line.id] is None],
            "injected": [line for line in judged if lessons[line.id] is not None],
        }
        drawn = Counter(
            operator
            for line in run.lines
            if lessons[line.id] is None
            and (operator := draw_operator(line.id, spec.inject, spec.seed)) is not None
        )
        tasks = {
            line.id: InjectedTask(lessons[line.id], self._list_seen(run, line))
            for line in run.lines
        }
        split = {
            name: {
                "tasks": len(lines),
                "pass_hat": by_k(statistics.pass_hat, outcomes_of(run, lines)),
            }
            for name, lines in parts.items()
        }
        return split | report_repairs(tasks, spec.inject, drawn)

    def _list_seen(self, run: Run, line: Line) -> tuple[Observation, ...]:
        slots = ((line.id, trial) for trial in range(run.trials))
        return tuple(self._seen[slot] for slot in slots if slot in self._seen)


@dataclass(frozen=True, slots=True)
class InjectedTask:
    """A task of an evaluation, with its mistake and the observations of its attempts."""

    lesson: Lesson | None
    seen: tuple[Observation, ...]


def report_repairs(
    tasks: Mapping[str, InjectedTask], rates: Mapping[Operator, float], left: Mapping[Operator, int]
) -> dict[str, Any]:
    """Return what `eval --inject --json` adds; `left` counts tasks without a possible mistake."""
    groups: dict[Operator, dict[str, InjectedTask]] = {operator: {} for operator in rates}
    for name, task in tasks.items():
        if task.lesson is not None:
            # A lesson chosen by its id may be of an operator without a rate.
            groups.setdefault(task.lesson.operator, {})[name] = task
    return {
        "repair": {
            operator: {**_describe(group), "not_injected": left.get(operator, 0)}
            for operator, group in groups.items()
        },
        "redundant_calls": {
            "clean": _mean_repeated(task for task in tasks.values() if task.lesson is None),
            "injected": _mean_repeated(task for task in tasks.values() if task.lesson is not None),
        },
    }


def _describe(group: Mapping[str, InjectedTask]) -> dict[str, Any]:
    outcomes = {name: [seen.repaired for seen in task.seen] for name, task in group.items()}
    most = statistics.most_trials(outcomes) if outcomes else 0
    shown = [k for k in SHOWN if k <= most]
    estimates = {k: statistics.repair_at(outcomes, k) for k in shown}
    return {
        "n": len(group),
        **{str(k): estimate.value for k, estimate in estimates.items()},
        "interval": {str(k): [estimate.low, estimate.high] for k, estimate in estimates.items()},
        "official": {
            str(k): sum(any(seen.official for seen in task.seen[:k]) for task in group.values())
            / len(group)
            for k in shown
        },
    }


def _mean_repeated(tasks: Iterable[InjectedTask]) -> float | None:
    counts = [seen.repeated for task in tasks for seen in task.seen]
    return sum(counts) / len(counts) if counts else None
