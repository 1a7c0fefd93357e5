"""Candidates for skills by rule, and the label of each rollout for each candidate (pure).

A candidate is a union of failure patterns: all of one tool, or all of one category. Nothing else of
a rollout is read, so labels of the environment cannot make a skill.

    tool        applies if the tool is called or expected; lacking if it is the pivot of a failure
    category    applies if one of its tools does, and everywhere if it knows no tool; lacking in
                its failures, and in successes too if it is a loop

A skill that applies and is not lacking is present, in failures too (TRACE: in doubt, a failure has
it). In a success, other categories cannot be lacking, so their contrast is their share among the
failures.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from consumers.diagnosis.detectors import CATEGORIES
from consumers.methods.skills.reads import ContrastRollout
from events.errors import KintsugiError
from events.learning import MOST_SKILLS

LOOP: Final = "tool_loop"
"""A category that can also occur in successes, since its rule needs no verdict."""
NO_TOOL: Final = "*"
"""Pivot of a failure in which no gold write is missing."""
LEAST_LACKING: Final = 2
"""Fewest failures that must lack a candidate; a single one is an accident."""
MOST_TOOLS: Final = 8
LABELLINGS: Final = 10
"""Number of labellings (TRACE, section 3.1)."""
LEAST_SHARED: Final = 0.8
"""Least share of a candidate's failures that must also lack another one to lie within it."""


class Label(StrEnum):
    """A rollout's label for a skill."""

    NA = "na"
    """The task did not call for the skill."""
    PRESENT = "present"
    LACKING = "lacking"


class BadLabelling(KintsugiError):
    """A labelling omits a rollout, labels one twice, or names an unknown one."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Skill -> rollout -> label, for every candidate and every rollout that is labelled."""

    labels: Mapping[str, Mapping[str, Label]]

    @classmethod
    def of(
        cls,
        lists: Mapping[str, Mapping[Label, Iterable[str]]],
        skills: Collection[str],
        rollouts: Iterable[str],
    ) -> "Labelling":
        """Build a labelling from skill -> label -> rollouts, and check it. Raise BadLabelling."""
        if lists.keys() != set(skills):
            wrong = sorted(lists.keys() ^ set(skills))
            raise BadLabelling(f"a labelling has other skills than the candidates: {wrong[0]}")
        wanted = set(rollouts)
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A skill that the agent may lack, as named by a rule or a model."""

    skill: str
    description: str
    patterns: tuple[str, ...]
    """The failure patterns that it unites; empty if no rule explains its failures."""
    lacking: frozenset[str]
    """Failed rollouts that lack the skill."""


@dataclass(frozen=True, slots=True)
class LabelledRollouts:
    """Candidates, and `LABELLINGS` labellings of all rollouts."""

    rollouts: tuple[ContrastRollout, ...]
    candidates: tuple[Candidate, ...]
    labellings: tuple[Labelling, ...]
    labeller: str | None = None
    """Model that named the skills and labelled; None for rules."""
    left_out: int = 0
    """Number of rollouts that could not be shown to the model."""
    refused: int = 0
    """Number of labellings without a usable answer after all repeats."""


Labeller = Callable[[Sequence[ContrastRollout]], LabelledRollouts]


@dataclass(frozen=True, slots=True)
class RuleCandidate(Candidate):
    """A candidate skill that is defined by a tool or a category, so a rule can label it."""

    tool: str | None
    """The candidate's tool; None for a category."""
    category: str | None
    """The candidate's category; None for a tool."""
    tools: frozenset[str]
    """Tools of the rollouts to which it applies."""
    is_general: bool
    """Whether it applies to every rollout."""


def label_by_rule(rollouts: Sequence[ContrastRollout]) -> LabelledRollouts:
    """Label every rollout by rule; all labellings are the same."""
    candidates = find_candidates(rollouts)
    lists: dict[str, dict[Label, list[str]]] = {}
    for candidate in candidates:
        by_label: dict[Label, list[str]] = {name: [] for name in Label}
        for rollout in rollouts:
            by_label[label(candidate, rollout)].append(rollout.rollout)
        lists[candidate.skill] = by_label
    labelling = Labelling.of(
        lists, [item.skill for item in candidates], [item.rollout for item in rollouts]
    )
    return LabelledRollouts(tuple(rollouts), candidates, (labelling,) * LABELLINGS)


def find_candidates(rollouts: Sequence[ContrastRollout]) -> tuple[RuleCandidate, ...]:
    """Return at most `MOST_SKILLS` candidates, most lacking first; of equals, a tool's."""
    by_tool: defaultdict[str, list[ContrastRollout]] = defaultdict(list)
    by_category: defaultdict[str, list[ContrastRollout]] = defaultdict(list)
    for item in rollouts:
        if item.pattern is not None:
            category, pivot = split_pattern(item.pattern)
            by_category[category].append(item)
            if pivot != NO_TOOL:
                by_tool[pivot].append(item)
    names = _name_tools(by_tool)
    candidates = [_build_tool(names[tool], tool, own) for tool, own in by_tool.items()]
    candidates += [_build_category(name, own) for name, own in by_category.items()]
    ranked = sorted(candidates, key=lambda item: (-len(item.lacking), not item.tool, item.skill))
    distinct = {item.lacking: item for item in reversed(ranked)}
    kept = [item for item in ranked if distinct[item.lacking] is item]
    return tuple(item for item in kept if len(item.lacking) >= LEAST_LACKING)[:MOST_SKILLS]


def label(candidate: RuleCandidate, rollout: ContrastRollout) -> Label:
    """Return a rollout's label for a candidate skill."""
    if rollout.failed:
        is_lacking = rollout.pattern in candidate.patterns
    else:
        is_lacking = rollout.has_loop and candidate.category == LOOP
    if is_lacking:
        return Label.LACKING
    applies = candidate.is_general or not candidate.tools.isdisjoint(rollout.tools)
    return Label.PRESENT if applies else Label.NA


def find_containers(candidates: Sequence[Candidate]) -> Mapping[str, tuple[str, ...]]:
    """Return candidate -> earlier candidates that `LEAST_SHARED` of its failures lack too."""
    return {
        item.skill: tuple(
            larger.skill
            for larger in candidates[:place]
            if item.lacking
            and len(item.lacking & larger.lacking) >= LEAST_SHARED * len(item.lacking)
        )
        for place, item in enumerate(candidates)
    }


def split_pattern(pattern: str) -> tuple[str, str]:
    """Return the category and the pivot of a failure pattern."""
    category, _, pivot = pattern.partition("|")
    return category, pivot


def _name_tools(tools: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for tool in sorted(tools):
        name = tool
        while name in CATEGORIES or name in names.values():
            name = f"tool:{name}"
        names[tool] = name
    return names


def _build_tool(skill: str, tool: str, failures: Sequence[ContrastRollout]) -> RuleCandidate:
    patterns = _list_patterns(failures)
    categories = ", ".join(sorted({split_pattern(name)[0] for name in patterns}))
    return RuleCandidate(
        skill=skill,
        description=f"Do what has to be done with {tool}. Failures: {categories}.",
        patterns=patterns,
        tool=tool,
        category=None,
        tools=frozenset({tool}),
        is_general=False,
        lacking=frozenset(item.rollout for item in failures),
    )


def _build_category(category: str, failures: Sequence[ContrastRollout]) -> RuleCandidate:
    patterns = _list_patterns(failures)
    pivots = {split_pattern(name)[1] for name in patterns}
    tools = frozenset(pivots - {NO_TOOL})
    return RuleCandidate(
        skill=category,
        description=f"Avoid {category}{_describe_tools(sorted(tools))}.",
        patterns=patterns,
        tool=None,
        category=category,
        tools=tools,
        is_general=NO_TOOL in pivots or category == LOOP,
        lacking=frozenset(item.rollout for item in failures),
    )


def _describe_tools(tools: Sequence[str]) -> str:
    if not tools:
        return ""
    more = f" and {len(tools) - MOST_TOOLS} more tools" if len(tools) > MOST_TOOLS else ""
    return f" with {', '.join(tools[:MOST_TOOLS])}{more}"


def _list_patterns(failures: Iterable[ContrastRollout]) -> tuple[str, ...]:
    return tuple(sorted({item.pattern for item in failures if item.pattern is not None}))
