"""Find what an agent lacks, by contrast: label its failures and successes, and say so as an event.

    data = contrast_skills(connection, pair, since, number)      None without a failure
    Decisions(app).take(data, ...)                               folded into skills (consumers)

Ten labellings, as in TRACE. Rules label a rollout the same way each time, so each labelling draws
the tasks anew, with replacement: whether a skill is selected then says how sure the figures are. A
labelling that does not give each representative rollout exactly one label of each candidate is
refused. Guarantee: equal tables give an equal event.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair
from consumers.reads.skills import ContrastRollout, find_last_round, read_contrast_rollouts
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


class BadLabelling(KintsugiError):
    """A labelling leaves a rollout out, labels one twice, or names one that is not there."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Skill -> rollout -> label, of every candidate and every representative rollout."""

    labels: Mapping[str, Mapping[str, Label]]

    @classmethod
    def of(
        cls,
        labelled: Mapping[str, Mapping[Label, Iterable[str]]],
        candidates: Sequence[Candidate],
        rollouts: Sequence[ContrastRollout],
    ) -> "Labelling":
        """Check lists of rollouts, by skill and label. Raises BadLabelling."""
        names = {item.skill for item in candidates}
        if labelled.keys() != names:
            wrong = sorted(labelled.keys() ^ names)
            raise BadLabelling(f"a labelling has other skills than the candidates: {wrong[0]}")
        wanted = {item.rollout for item in rollouts}
        labels = {}
        for skill, lists in labelled.items():
            given = [(rollout, name) for name, ids in lists.items() for rollout in ids]
            own = dict(given)
            if len(own) < len(given):
                twice = next(i for i, n in Counter(i for i, _ in given).items() if n > 1)
                raise BadLabelling(f"a labelling of {skill} labels rollout {twice} twice")
            if own.keys() != wanted:
                wrong = sorted(own.keys() ^ wanted)
                raise BadLabelling(
                    f"a labelling of {skill} has other rollouts than there are: {wrong[0]}"
                )
            labels[skill] = own
        return cls(labels)


def contrast_skills(
    connection: "Connection", pair: Pair, since: int, number: int, cycle: str | None = None
) -> SkillsContrasted | None:
    """Return what the rollouts of rounds `since` to `number` show; None where none of them failed.
    Only the last round may be `number`."""
    rollouts = read_contrast_rollouts(connection, pair, since)
    if not any(item.failed for item in rollouts):
        return None
    return describe_contrast(pair.alias, pair.base, since, number, rollouts, cycle)


def describe_contrast(
    alias: str,
    base: str,
    since: int,
    number: int,
    rollouts: Sequence[ContrastRollout],
    cycle: str | None = None,
) -> SkillsContrasted:
    """Return what representative rollouts show; the names are those of the event."""
    failures = sum(item.failed for item in rollouts)
    candidates = find_candidates(rollouts)
    containers = find_containers(candidates)
    labels = label_by_rule(candidates, rollouts).labels
    draws = list(draw_tasks(rollouts, f"skills {alias} {base} {number}"))
    return SkillsContrasted(
        alias=alias,
        base=base,
        since=since,
        round=number,
        failures=failures,
        successes=len(rollouts) - failures,
        skills=tuple(
            _describe(item, containers.get(item.skill), labels[item.skill], rollouts, draws)
            for item in candidates
        ),
        cycle=cycle,
    )


def find_due_round(connection: "Connection", pair: Pair, number: int, cadence: int) -> int | None:
    """Return the first round that a comparison after round `number` reads; None where the last one
    is fewer than `cadence` rounds ago."""
    last = find_last_round(connection, pair)
    if last is not None and number - last < cadence:
        return None
    return max(0, number - cadence + 1)


def label_by_rule(
    candidates: Sequence[Candidate], rollouts: Sequence[ContrastRollout]
) -> Labelling:
    """Label every rollout by rule."""
    labelled: dict[str, dict[Label, list[str]]] = {}
    for candidate in candidates:
        lists: dict[Label, list[str]] = {name: [] for name in Label}
        for rollout in rollouts:
            lists[label(candidate, rollout)].append(rollout.rollout)
        labelled[candidate.skill] = lists
    return Labelling.of(labelled, candidates, rollouts)


def draw_tasks(
    rollouts: Sequence[ContrastRollout], seed: str, number: int = LABELLINGS
) -> Iterable[Mapping[str, int]]:
    """Yield rollout -> how often it is drawn, `number` times: as many tasks as there are, with
    replacement, each with all its rollouts. Names of tasks have no influence."""
    chance = Random(seed)
    by_task: dict[str, list[str]] = {}
    for item in rollouts:
        by_task.setdefault(item.task, []).append(item.rollout)
    tasks = list(by_task)
    for _ in range(number):
        counts = Counter(chance.choices(tasks, k=len(tasks)))
        yield {rollout: count for task, count in counts.items() for rollout in by_task[task]}


def _describe(
    candidate: Candidate,
    within: str | None,
    labels: Mapping[str, Label],
    rollouts: Sequence[ContrastRollout],
    draws: Sequence[Mapping[str, int]],
) -> SkillContrast:
    applies = Counter(item.failed for item in rollouts if labels[item.rollout] is not Label.NA)
    return SkillContrast(
        skill=candidate.skill,
        description=candidate.description,
        patterns=candidate.patterns,
        failures=applies[True],
        successes=applies[False],
        labellings=tuple(_count(labels, rollouts, draw) for draw in draws),
        examples=tuple(sorted(candidate.lacking)[:MOST_EXAMPLES]),
        within=within,
    )


def _count(
    labels: Mapping[str, Label], rollouts: Sequence[ContrastRollout], draw: Mapping[str, int]
) -> SkillLabels:
    counts: Counter[tuple[bool, Label]] = Counter()
    for item in rollouts:
        counts[item.failed, labels[item.rollout]] += draw.get(item.rollout, 0)
    return SkillLabels(
        failures=sum(counts[True, name] for name in Label),
        lacking_failures=counts[True, Label.LACKING],
        present_failures=counts[True, Label.PRESENT],
        lacking_successes=counts[False, Label.LACKING],
        present_successes=counts[False, Label.PRESENT],
    )
