"""Candidates for skills by rule, and what each rollout shows of them (pure).

    candidates = find_candidates(rollouts)          at most ten, frozen from then on
    label(candidate, rollout)                       NA, PRESENT or LACKING

A candidate is a union of failure patterns: all of one tool (whatever goes wrong with it), or all of
one category (whatever tool it goes wrong with). Nothing else of a rollout is read: no kind, no
capability and no id of a task, so labels of the environment cannot make a skill.

    tool        applies where the tool is called or expected; lacking where it is the pivot of a
                failure
    category    applies where one of its tools is, and everywhere for one that knows no tool;
                lacking in its failures; and where an agent loops or is refused a call, which
                is seen without a verdict, in any other failure and in successes as well

What applies and is not lacking is present, failed or not (TRACE: in doubt, a failure has it).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from consumers.diagnosis.detectors import CATEGORIES
from consumers.diagnosis.round_counts import OTHER
from consumers.reads.skills import NO_TOOL, SEEN_WITHOUT_VERDICT, ContrastRollout
from events.learning import MOST_SKILLS

LEAST: Final = 2
"""Failures that have to lack a candidate: one is an accident."""
NAMED: Final = 8
"""Tools that a description names."""
WITHIN: Final = 0.8
"""Share of a candidate's failures that another one has to hold."""


class Label(StrEnum):
    """What a rollout shows of a skill."""

    NA = "na"
    """It was not called for."""
    PRESENT = "present"
    LACKING = "lacking"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A skill that may be lacking."""

    skill: str
    description: str
    patterns: tuple[str, ...]
    tool: str | None
    """The tool; None for a category."""
    category: str | None
    """The category; None for a tool."""
    tools: frozenset[str]
    """Tools where it applies."""
    is_general: bool
    """Whether it applies to every rollout."""
    lacking: frozenset[str]
    """Failed rollouts that lack it."""


def find_candidates(rollouts: Sequence[ContrastRollout]) -> tuple[Candidate, ...]:
    """Return the candidates that most failures lack, at most `MOST_SKILLS`; of two that the same
    failures lack, the tool's."""
    failures = [item for item in rollouts if item.failed and item.pattern is not None]
    by_tool: defaultdict[str, list[ContrastRollout]] = defaultdict(list)
    by_category: defaultdict[str, list[ContrastRollout]] = defaultdict(list)
    for item in failures:
        if item.pivot != NO_TOOL:
            by_tool[item.pivot].append(item)
        for category in item.shown - {OTHER}:
            by_category[category].append(item)
    found = [_build_tool(tool, own) for tool, own in by_tool.items()]
    found += [_build_category(name, own) for name, own in by_category.items()]
    found = [item for item in found if item.patterns]
    ranked = sorted(found, key=lambda item: (-len(item.lacking), item.tool is None, item.skill))
    distinct = {item.lacking: item for item in reversed(ranked) if len(item.lacking) >= LEAST}
    return tuple(item for item in ranked if distinct.get(item.lacking) is item)[:MOST_SKILLS]


def label(candidate: Candidate, rollout: ContrastRollout) -> Label:
    """Return what a rollout shows of a candidate."""
    if candidate.tool is not None:
        lacking = rollout.failed and rollout.pivot == candidate.tool
    else:
        lacking = candidate.category in rollout.shown
    if lacking:
        return Label.LACKING
    applies = candidate.is_general or not candidate.tools.isdisjoint(rollout.tools)
    return Label.PRESENT if applies else Label.NA


def find_containers(candidates: Sequence[Candidate]) -> Mapping[str, str]:
    """Return candidate -> the first of those before it which `WITHIN` of its failures lack too.
    Candidates come in the order of their failures."""
    containers = {}
    for place, item in enumerate(candidates):
        for larger in candidates[:place]:
            if len(item.lacking & larger.lacking) >= WITHIN * len(item.lacking):
                containers[item.skill] = larger.skill
                break
    return containers


def _build_tool(tool: str, failures: Sequence[ContrastRollout]) -> Candidate:
    patterns = _list_patterns(failures)
    categories = ", ".join(sorted({name.rpartition("|")[0] for name in patterns}))
    return Candidate(
        skill=f"tool_{tool}" if tool in CATEGORIES else tool,
        description=f"Do what has to be done with {tool}. Failures: {categories}.",
        patterns=patterns,
        tool=tool,
        category=None,
        tools=frozenset({tool}),
        is_general=False,
        lacking=frozenset(item.rollout for item in failures),
    )


def _build_category(category: str, failures: Sequence[ContrastRollout]) -> Candidate:
    pivots = {item.pivot for item in failures}
    tools = frozenset(pivots - {NO_TOOL})
    return Candidate(
        skill=category,
        description=f"Avoid {category}{_describe_tools(sorted(tools))}.",
        patterns=tuple(
            name for name in _list_patterns(failures) if name.startswith(f"{category}|")
        ),
        tool=None,
        category=category,
        tools=tools,
        is_general=NO_TOOL in pivots or category in SEEN_WITHOUT_VERDICT,
        lacking=frozenset(item.rollout for item in failures),
    )


def _describe_tools(tools: Sequence[str]) -> str:
    if not tools:
        return ""
    more = f" and {len(tools) - NAMED} more tools" if len(tools) > NAMED else ""
    return f" with {', '.join(tools[:NAMED])}{more}"


def _list_patterns(failures: Sequence[ContrastRollout]) -> tuple[str, ...]:
    return tuple(sorted({item.pattern for item in failures if item.pattern is not None}))
