"""Make lessons: first from recorded calls that failed, then from perturbed trajectories.

    report = make_lessons(environment, tasks, wanted=100, seed=0, recordings=recordings)
    report.lessons        tasks by content, each with a prefix and a lesson
    report.discarded      operator -> reason -> number

Each perturbation makes an equal share of the lessons that recordings do not yield. No other one
makes up for it, so there may be fewer lessons than wanted. The result depends only on the
arguments. Not covered: which recordings and tasks may be trained on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final

from envs.environment import Environment
from envs.episode import Party
from envs.grading import Grader
from envs.lessons.checks import get_lesson
from envs.lessons.operators import Schemas, WrongCall, perturb, read_schemas
from envs.lessons.repairs import Mistake, NoLesson, Proofs, find_repair, make_mistake
from envs.lessons.trajectories import (
    BEGINS_MIDWAY,
    NoTrajectory,
    Place,
    Trajectory,
    follow,
    play_trajectory,
    walk,
)
from envs.lessons.writing import LessonWriter
from envs.task import PERTURBATIONS, Operator, TaskDefinition
from events.messages import executed_calls

PER_TRAJECTORY: Final = 4
"""Largest number of lessons of one operator from one trajectory."""
SPREAD: Final = 256
"""Number of wanted lessons for each lesson of one operator from one trajectory, for more
variety."""
_TRIES: Final = 24
"""Largest number of wrong calls of one operator that are tried in one trajectory."""
_BARREN: Final = 3
"""Trajectories in a row without a lesson after which an operator is given up for their kind."""
_SHOWN: Final = 5

DUPLICATE: Final = "duplicate"
GIVEN_UP: Final = "tasks of its kind gave none"
RAISED: Final = "the environment raised an exception"


@dataclass(frozen=True, slots=True)
class LessonReport:
    """The lessons made, and counts of everything that was discarded."""

    lessons: tuple[TaskDefinition, ...]
    """Tasks with an id by content, each with a prefix and a lesson."""
    discarded: Mapping[Operator, Mapping[str, int]]
    """Operator -> reason -> number of discarded wrong calls."""
    unused: Mapping[str, int]
    """Reason -> number of tasks and recordings from which no lesson could be made."""
    empty: tuple[Operator, ...]
    """Operators that were used and yielded no lesson."""
    troubles: tuple[str, ...]
    """The first few exceptions of the environment, as sentences."""

    @property
    def made(self) -> dict[Operator, int]:
        """Operator -> number of lessons."""
        return dict(Counter(get_lesson(task).operator for task in self.lessons))


def make_lessons(
    environment: Environment,
    sources: Iterable[TaskDefinition | Trajectory],
    wanted: int,
    seed: int,
    recordings: Iterable[Trajectory] = (),
    operators: Sequence[Operator] = PERTURBATIONS,
) -> LessonReport:
    """Return at most `wanted` lessons: first from failed calls in `recordings`, then from `sources`
    (tasks for the oracle, or recorded successes; read as needed) by `operators`."""
    maker = _Maker(environment, wanted, seed)
    for recording in recordings:
        if not maker.left:
            break
        maker.add_recorded(recording)
    quotas = _share_out(maker.left, operators)
    remaining = iter(sources)
    while any(quotas.values()):
        source = next(remaining, None)
        if source is None:
            break
        for operator, count in maker.add_perturbed(source, quotas).items():
            quotas[operator] -= count
    return maker.report()


def _share_out(count: int, operators: Sequence[Operator]) -> dict[Operator, int]:
    """Divide `count` lessons among the operators as evenly as possible."""
    quotient, rest = divmod(count, len(operators))
    return {name: quotient + (place < rest) for place, name in enumerate(operators)}


class _Maker:
    def __init__(self, environment: Environment, wanted: int, seed: int) -> None:
        self._environment = environment
        self._wanted = wanted
        self._seed = seed
        self._per_trajectory = max(1, min(PER_TRAJECTORY, wanted // SPREAD))
        self._lessons: dict[str, TaskDefinition] = {}
        """Prefix as JSON -> the lesson with this prefix."""
        self._discarded: dict[Operator, Counter[str]] = {}
        self._unused: Counter[str] = Counter()
        self._troubles: list[str] = []
        self._asked: dict[Operator, None] = {}
        self._barren: Counter[tuple[str, Operator]] = Counter()
        """(Kind of task, operator) -> number of trajectories in a row without a lesson."""

    @property
    def left(self) -> int:
        """Number of lessons that are still wanted."""
        return max(0, self._wanted - len(self._lessons))

    def report(self) -> LessonReport:
        lessons = tuple(self._lessons.values())
        made = {get_lesson(task).operator for task in lessons}
        return LessonReport(
            lessons,
            {operator: dict(reasons) for operator, reasons in self._discarded.items()},
            dict(self._unused),
            tuple(operator for operator in self._asked if operator not in made),
            tuple(self._troubles[:_SHOWN]),
        )

    def add_recorded(self, recording: Trajectory) -> None:
        """Make a lesson from each failed call of the agent in a recording."""
        try:
            writer = LessonWriter(self._environment, recording)
            grader = None
            for turn in follow(self._environment, recording):
                if not self.left:
                    return
                if turn.before is None or turn.message.sampled is False:
                    continue
                begin = len(turn.before.messages)
                calls = tuple(executed_calls(turn.after.messages[begin:]))
                if turn.after.turn is Party.AGENT and any(item.failed for item in calls):
                    episode = turn.after.fork()
                    episode.take_as_prefix()
                    mistake = Mistake(episode, calls, has_clean_state=False)
                    grader = grader or Grader(self._environment, episode.task)
                    self._add("recorded", writer, mistake, None, Proofs(grader, failures=0))
        except NoTrajectory as error:
            self._unused[str(error)] += 1
        except Exception as error:  # an environment's own code, which may raise anything
            self._note_exception(recording.task, error)

    def add_perturbed(
        self, source: TaskDefinition | Trajectory, quotas: Mapping[Operator, int]
    ) -> Counter[Operator]:
        """Make at most `quotas` lessons from a trajectory. Return the number by operator."""
        task = source.task if isinstance(source, Trajectory) else source
        made: Counter[Operator] = Counter()
        wanted = {
            operator: min(quota, self._per_trajectory)
            for operator, quota in quotas.items()
            if quota and self._barren[task.capability, operator] < _BARREN
        }
        if not wanted:
            self._unused[GIVEN_UP] += 1
            return made
        self._asked |= dict.fromkeys(wanted)
        try:
            self._perturb(source, wanted, made)
        except NoTrajectory as error:
            self._unused[str(error)] += 1
        except Exception as error:  # an environment's own code, which may raise anything
            self._note_exception(task, error)
        return made

    def _find_places(
        self, source: TaskDefinition | Trajectory, grader: Grader
    ) -> tuple[Trajectory, list[Place]]:
        if isinstance(source, TaskDefinition):
            trajectory, places = play_trajectory(grader)
        elif source.task.prefix:
            raise NoTrajectory(BEGINS_MIDWAY)
        else:
            trajectory, places = source, walk(self._environment, source)
        if not places:
            raise NoTrajectory("makes no call")
        return trajectory, places

    def _note_exception(self, task: TaskDefinition, error: Exception) -> None:
        self._unused[RAISED] += 1
        self._troubles.append(f"{task.id}: {type(error).__name__}: {error}")

    def _perturb(
        self,
        source: TaskDefinition | Trajectory,
        wanted: Mapping[Operator, int],
        made: Counter[Operator],
    ) -> None:
        task = source.task if isinstance(source, Trajectory) else source
        grader = Grader(self._environment, task)
        trajectory, places = self._find_places(source, grader)
        schemas = read_schemas(self._environment.schemas(task))
        failures = sum(bool(message.error) for message in trajectory.messages)
        proofs = Proofs(grader, failures)
        writer = LessonWriter(self._environment, trajectory)
        for operator, most in wanted.items():
            chance = Random(f"lessons {self._seed} {trajectory.source} {operator}")
            wrong_calls = _take_turns(operator, places, schemas, chance)
            for place, wrong in islice(wrong_calls, _TRIES):
                made[operator] += self._add_wrong(writer, place, wrong, proofs)
                if made[operator] == most:
                    break
            key = task.capability, operator
            self._barren[key] = 0 if made[operator] else self._barren[key] + 1

    def _add_wrong(
        self, writer: LessonWriter, place: Place, wrong: WrongCall, proofs: Proofs
    ) -> bool:
        try:
            mistake = make_mistake(self._environment, place, wrong)
        except NoLesson as reason:
            return self._discard(wrong.operator, str(reason))
        return self._add(wrong.operator, writer, mistake, place, proofs)

    def _add(
        self,
        operator: Operator,
        writer: LessonWriter,
        mistake: Mistake,
        place: Place | None,
        proofs: Proofs,
    ) -> bool:
        try:
            repair = find_repair(self._environment, mistake, place, proofs)
            written = writer.write(operator, mistake, repair, place)
        except NoLesson as reason:
            return self._discard(operator, str(reason))
        if written.prefix in self._lessons:
            return self._discard(operator, DUPLICATE)
        self._lessons[written.prefix] = written.task
        return True

    def _discard(self, operator: Operator, reason: str) -> bool:
        self._discarded.setdefault(operator, Counter())[reason] += 1
        return False


def _take_turns(
    operator: Operator, places: Sequence[Place], schemas: Schemas, chance: Random
) -> Iterator[tuple[Place, WrongCall]]:
    """Yield wrong calls of all places, one from each place in turn, in random order."""
    steps = list(range(len(places)))
    chance.shuffle(steps)
    queue = [(step, perturb(operator, places, step, schemas, chance)) for step in steps]
    while queue:
        waiting = []
        for step, wrong_calls in queue:
            wrong = next(wrong_calls, None)
            if wrong is not None:
                yield places[step], wrong
                waiting.append((step, wrong_calls))
        queue = waiting
