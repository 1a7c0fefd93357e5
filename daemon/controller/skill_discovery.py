"""Compare an agent's failures and successes, and say as an event what failures lack.

    since = find_due_round(connection, pair, number, cadence)       None where none is due
    data = contrast_skills(connection, pair, since, number)         None without a judged rollout
    Decisions(app).take(data, ...)                                  folded into skills (consumers)

Ten labellings, as in TRACE. Rules label a rollout the same way each time, so each labelling draws
the tasks anew, with replacement: whether a skill is selected then says how sure the figures are. A
labelling that does not give each representative rollout exactly one label of each candidate is
refused. Guarantee: equal tables give an equal event.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair
from consumers.reads.skills import (
    ContrastRollout,
    list_judged_rounds,
    read_comparisons,
    read_contrast_rollouts,
)
from daemon.controller.skill_labels import (
    Candidate,
    Label,
    find_candidates,
    find_containers,
    label,
)
from events.errors import KintsugiError
from events.learning import MOST_EXAMPLES, SkillContrast, SkillLabels, SkillsContrasted

if TYPE_CHECKING:
    from sqlalchemy import Connection

LABELLINGS: Final = 10
"""TRACE, section 3.1."""

Shown = tuple[tuple[bool, tuple[Label, ...]], ...]
"""Rollouts of a task: whether each failed, and its label for each candidate."""


class BadLabelling(KintsugiError):
    """A labelling leaves a rollout out, labels one twice, or names one that is not there."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Skill -> rollout -> label, of every candidate and every representative rollout."""

    labels: Mapping[str, Mapping[str, Label]]

    @classmethod
    def of(
        cls,
        lists: Mapping[str, Mapping[Label, Iterable[str]]],
        candidates: Sequence[Candidate],
        rollouts: Sequence[ContrastRollout],
    ) -> "Labelling":
        """Check lists of rollouts, by skill and label. Raises BadLabelling."""
        names = {item.skill for item in candidates}
        if lists.keys() != names:
            wrong = sorted(lists.keys() ^ names)
            raise BadLabelling(f"a labelling has other skills than the candidates: {wrong[0]}")
        wanted = {item.rollout for item in rollouts}
        labels = {}
        for skill, by_label in lists.items():
            pairs = [(rollout, name) for name, ids in by_label.items() for rollout in ids]
            own = dict(pairs)
            if len(own) < len(pairs):
                twice = next(i for i, n in Counter(i for i, _ in pairs).items() if n > 1)
                raise BadLabelling(f"a labelling of {skill} labels rollout {twice} twice")
            if own.keys() != wanted:
                wrong = sorted(own.keys() ^ wanted)
                raise BadLabelling(
                    f"a labelling of {skill} has other rollouts than there are: {wrong[0]}"
                )
            labels[skill] = own
        return cls(labels)


def find_due_round(connection: "Connection", pair: Pair, number: int, cadence: int) -> int | None:
    """Return the first round that a comparison after round `number` reads; None where the agent has
    had fewer than `cadence` rounds since the last comparison."""
    rounds = list_judged_rounds(connection, pair, number, cadence)
    if len(rounds) < cadence:
        return None
    last = read_comparisons(connection).get(pair)
    if last is None:
        return rounds[-1]
    return last.round + 1 if rounds[-1] > last.round else None


def contrast_skills(
    connection: "Connection", pair: Pair, since: int, number: int, cycle: str | None = None
) -> SkillsContrasted | None:
    """Return what the rollouts of rounds `since` to `number` show; None where none is judged."""
    rollouts = read_contrast_rollouts(connection, pair, since, number)
    if not rollouts:
        return None
    return describe_contrast(pair, since, number, rollouts, cycle)


def describe_contrast(
    pair: Pair,
    since: int,
    number: int,
    rollouts: Sequence[ContrastRollout],
    cycle: str | None = None,
) -> SkillsContrasted:
    """Return what representative rollouts show; the names are those of the event."""
    failures = sum(item.failed for item in rollouts)
    candidates = find_candidates(rollouts)
    labels = label_by_rule(candidates, rollouts).labels
    tasks = _collect_shown(candidates, labels, rollouts)
    draws = list(draw(tasks, f"skills {pair.alias} {pair.base} {number}"))
    containers = find_containers(candidates)
    skills = []
    for place, candidate in enumerate(candidates):
        own = labels[candidate.skill]
        applies = Counter(item.failed for item in rollouts if own[item.rollout] is not Label.NA)
        skills.append(
            SkillContrast(
                skill=candidate.skill,
                description=candidate.description,
                patterns=candidate.patterns,
                failures=applies[True],
                successes=applies[False],
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
        successes=len(rollouts) - failures,
        skills=tuple(skills),
        cycle=cycle,
    )


def label_by_rule(
    candidates: Sequence[Candidate], rollouts: Sequence[ContrastRollout]
) -> Labelling:
    """Label every rollout by rule."""
    lists: dict[str, dict[Label, list[str]]] = {}
    for candidate in candidates:
        by_label: dict[Label, list[str]] = {name: [] for name in Label}
        for rollout in rollouts:
            by_label[label(candidate, rollout)].append(rollout.rollout)
        lists[candidate.skill] = by_label
    return Labelling.of(lists, candidates, rollouts)


def draw(tasks: Sequence[Shown], seed: str, number: int = LABELLINGS) -> Iterator[Counter[Shown]]:
    """Yield what the tasks of a draw show, and how many do, `number` times: as many tasks as there
    are, with replacement, each with all its rollouts. Names of tasks have no influence."""
    chance = Random(seed)
    for _ in range(number):
        yield Counter(chance.choices(tasks, k=len(tasks)))


def _collect_shown(
    candidates: Sequence[Candidate],
    labels: Mapping[str, Mapping[str, Label]],
    rollouts: Sequence[ContrastRollout],
) -> list[Shown]:
    """Return what each task shows, in the order of its first rollout."""
    columns = [labels[item.skill] for item in candidates]
    by_task: dict[str, list[tuple[bool, tuple[Label, ...]]]] = {}
    for item in rollouts:
        own = tuple(column[item.rollout] for column in columns)
        by_task.setdefault(item.task, []).append((item.failed, own))
    return [tuple(sorted(shown)) for shown in by_task.values()]


def _count(place: int, drawn: Counter[Shown]) -> SkillLabels:
    """Count the labels of the candidate at this place."""
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
