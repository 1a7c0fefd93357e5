"""Compare an agent's failures and successes, and record the skills that the failures lack.

For each of the ten labellings (TRACE), tasks are drawn anew with replacement. So the selection of
a skill shows how certain the figures are, and not only how far the labels agree. Guarantee: equal
tables and equal labels give an equal event.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from random import Random
from typing import TYPE_CHECKING

from pydantic import ValidationError

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.measures import LEAST_SELECTED
from consumers.methods.skills.reads import (
    list_judged_rounds,
    read_comparisons,
    read_contrast_rollouts,
)
from daemon.controller.model_answers import ModelFailure
from daemon.cycle.proposal import Skip, Study
from daemon.methods.skills.analyzer import choose_labeller
from daemon.methods.skills.labels import (
    BadLabelling,
    Label,
    LabelledRollouts,
    Labeller,
    Labelling,
    find_containers,
    label_by_rule,
)
from events.learning import MOST_EXAMPLES, SkillContrast, SkillLabels, SkillsContrasted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow
    from daemon.core.app import App

Shown = tuple[tuple[bool, tuple[Label, ...]], ...]
"""The rollouts of a task: whether each failed, and its label for each candidate."""


def find_due_round(connection: "Connection", pair: Pair, number: int, cadence: int) -> int | None:
    """Return the first round of the comparison due after round `number`; None before `cadence`."""
    rounds = list_judged_rounds(connection, pair, number, cadence)
    if len(rounds) < cadence:
        return None
    last = read_comparisons(connection).get(pair)
    if last is None:
        return rounds[-1]
    return last.round + 1 if rounds[-1] > last.round else None


def contrast_skills(
    app: "App",
    pair: Pair,
    since: int,
    number: int,
    cycle: str | None = None,
    labeller: Labeller = label_by_rule,
) -> SkillsContrasted | None:
    """Compare rounds `since` to `number`; None without rollouts. Raise the labeller's errors."""
    with app.reading() as connection:
        rollouts = read_contrast_rollouts(connection, pair, since, number)
    if not rollouts:
        return None
    return describe_contrast(pair, since, number, labeller(rollouts), cycle)


def describe_contrast(
    pair: Pair, since: int, number: int, labelled: LabelledRollouts, cycle: str | None = None
) -> SkillsContrasted:
    """Return the comparison of labelled rollouts as an event; other parameters are its fields."""
    failures = sum(item.failed for item in labelled.rollouts)
    tasks = list(_collect_shown(labelled))
    draws = list(draw(tasks, f"skills {pair.alias} {pair.base} {number}"))
    containers = find_containers(labelled.candidates)
    skills = []
    for place, candidate in enumerate(labelled.candidates):
        applies = [_count_applicable(labelled, own, candidate.skill) for own in labelled.labellings]
        skills.append(
            SkillContrast(
                skill=candidate.skill,
                description=candidate.description,
                patterns=candidate.patterns,
                failures=_find_reached([counts[True] for counts in applies]),
                successes=_find_reached([counts[False] for counts in applies]),
                labellings=tuple(_count(place, counts) for counts in draws),
                examples=tuple(sorted(candidate.lacking)[:MOST_EXAMPLES]),
                within=containers[candidate.skill],
            )
        )
    return SkillsContrasted(
        alias=pair.alias,
        base=pair.base,
        since=since,
        round=number,
        failures=failures,
        successes=len(labelled.rollouts) - failures,
        skills=tuple(skills),
        cycle=cycle,
        labeller=labelled.labeller,
        left_out=labelled.left_out,
        refused=labelled.refused,
    )


def _find_reached(counts: Sequence[int]) -> int:
    """Return the largest number that enough labellings reach for a skill to be selected."""
    needed = ceil(LEAST_SELECTED * len(counts))
    return sorted(counts, reverse=True)[needed - 1]


def draw(labellings: Iterable[Sequence[Shown]], seed: str) -> Iterator[Counter[Shown]]:
    """Draw each labelling's tasks with replacement; yield counts. Names of tasks do not matter."""
    chance = Random(seed)
    for tasks in labellings:
        yield Counter(chance.choices(tasks, k=len(tasks)))


def _count_applicable(
    labelled: LabelledRollouts, labelling: Labelling, skill: str
) -> Counter[bool]:
    own = labelling.labels[skill]
    return Counter(item.failed for item in labelled.rollouts if own[item.rollout] is not Label.NA)


def _collect_shown(labelled: LabelledRollouts) -> Iterator[list[Shown]]:
    """Yield each labelling's labels by task; tasks are in the order of their first rollouts."""
    last: tuple[Labelling, list[Shown]] | None = None
    for labelling in labelled.labellings:
        # Rules give one labelling, from which is drawn several times.
        if last is None or last[0] is not labelling:
            last = labelling, _collect_shown_once(labelled, labelling)
        yield last[1]


def _collect_shown_once(labelled: LabelledRollouts, labelling: Labelling) -> list[Shown]:
    columns = [labelling.labels[item.skill] for item in labelled.candidates]
    by_task: dict[str, list[tuple[bool, tuple[Label, ...]]]] = {}
    for item in labelled.rollouts:
        own = tuple(column[item.rollout] for column in columns)
        by_task.setdefault(item.task, []).append((item.failed, own))
    return [tuple(sorted(shown)) for shown in by_task.values()]


def _count(place: int, drawn: Counter[Shown]) -> SkillLabels:
    counts: Counter[tuple[bool, Label]] = Counter()
    for shown, number in drawn.items():
        for failed, labels in shown:
            counts[failed, labels[place]] += number
    return SkillLabels(
        failures=sum(counts[True, name] for name in Label),
        lacking_failures=counts[True, Label.LACKING],
        present_failures=counts[True, Label.PRESENT],
        lacking_successes=counts[False, Label.LACKING],
        present_successes=counts[False, Label.PRESENT],
    )


class SkillStudy:
    """Makes the comparisons of a home's agents. A failed analyzer also cost money, so it is asked
    again only after as many rounds as one that answered."""

    def __init__(self, app: "App", stopping: Callable[[], bool] = lambda: False) -> None:
        """Ask no model once `stopping` returns true, which means that the process has to stop."""
        self._app, self._stopping = app, stopping
        self._unlabelled: dict[Pair, int] = {}
        """Agent -> the first round at which an analyzer that failed may be asked again."""

    def compare(self, cycle: "CycleRow") -> Study | None:
        """Return the comparison after a cycle's round, if it is due. Raise Skip if it failed."""
        try:
            contrast = self._contrast(cycle)
        except (ModelFailure, BadLabelling, ValidationError) as error:
            raise Skip(f"skills were not compared: {error}") from error
        return None if contrast is None else Study(contrast, "contrasted", "skills were compared")

    def _contrast(self, cycle: "CycleRow") -> SkillsContrasted | None:
        assert cycle.round is not None, "a cycle is diagnosed first"
        improve, pair = self._app.settings.improve, Pair(cycle.alias, cycle.base)
        if improve.skills == "off":
            return None
        with self._app.reading() as connection:
            since = find_due_round(connection, pair, cycle.round, improve.skills_rounds)
        if since is None or cycle.round < self._unlabelled.get(pair, 0):
            return None
        labeller = choose_labeller(self._app, pair, cycle.cycle, self._stopping)
        try:
            return contrast_skills(self._app, pair, since, cycle.round, cycle.cycle, labeller)
        except ModelFailure:
            # A failed analyzer cost money too, so it waits as long as one that answered.
            self._unlabelled[pair] = cycle.round + improve.skills_rounds
            raise
