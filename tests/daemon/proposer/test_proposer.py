"""Proposing: quotas are filled by both modes, and a redo proposes the same."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.methods.lessons.task_writer import LessonSupply, draft_lessons
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, Evaluation, PriorTask, Source
from daemon.proposer.proposer import TRIES, Proposal, ProposalRequest, propose
from daemon.proposer.verification import seed_of
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.learning import BadTries, Directive, Mode, ModeChoice, Quota, TaskProposed, TaskRejected
from tests.envs.mini import Mini

SHOP = Shop()
PATTERN, OTHER = "missing_write_action|cancel_order", "tool_loop|*"


def source(kind: str, number: int = 0) -> Source:
    return Source(f"rollout-{kind}-{number}", SHOP.generate(kind, 2**24 + number))


def wanted(
    sources: Mapping[str, Sequence[Source]], tasks: int = 8, cycle: str = "cycle-1", **given: Any
) -> ProposalRequest:
    """So many tasks for each pattern."""
    quotas = tuple(Quota(pattern=name, tasks=tasks, priority=1.0, status="NEW") for name in sources)
    directive = Directive(quotas=quotas)
    return ProposalRequest(
        cycle=cycle, alias="agent", base="base", directive=directive, sources=sources, **given
    )


def split(proposals: Sequence[Proposal]) -> tuple[list[TaskProposed], list[TaskRejected]]:
    accepted = [one.data for one in proposals if isinstance(one.data, TaskProposed)]
    return accepted, [one.data for one in proposals if isinstance(one.data, TaskRejected)]


def test_every_quota_is_filled_with_tasks_like_the_failed_ones() -> None:
    sources = {PATTERN: [source("fallback"), source("fallback", 1)], OTHER: [source("question")]}
    proposals = list(propose(SHOP, wanted(sources, explore=0.5)))
    accepted, _ = split(proposals)
    assert Counter(one.pattern for one in accepted) == {PATTERN: 8, OTHER: 8}
    assert len({one.task.id for one in accepted}) == 16
    rollouts = {one.rollout for them in sources.values() for one in them}
    for one in accepted:
        again = SHOP.task(one.task.id)
        assert again.digest() == one.task.definition
        assert again.capability == {PATTERN: "fallback", OTHER: "question"}[one.pattern]
        assert (one.alias, one.base, one.cycle) == ("agent", "base", "cycle-1")
        assert one.source_rollout in rollouts
        assert len(one.verified) == 9
        assert one.text_by is None


def test_half_of_the_places_are_fresh_tasks_and_half_the_failed_one_in_other_words() -> None:
    accepted, rejected = split(
        list(propose(SHOP, wanted({PATTERN: [source("compound")]}, 20, explore=0.5)))
    )
    modes = Counter(one.mode for one in accepted)
    assert modes["explore"] >= 10
    assert modes["inherit"] >= 5
    assert {one.check for one in rejected} <= {"novelty"}
    gold = source("compound").task.criteria.gold_actions
    for one in accepted:
        assert (one.task.gold_actions == gold) == (one.mode == "inherit")
        if one.mode == "explore":
            assert FIRST_SEED <= (seed_of(one.task.id) or 0) <= LAST_SEED


def test_a_redo_is_the_same_and_another_cycle_is_not() -> None:
    sources = {PATTERN: [source("fallback"), source("return")], OTHER: [source("cancel")]}
    first = list(propose(SHOP, wanted(sources)))
    assert list(propose(Shop(), wanted(sources))) == first
    assert len({one.id for one in first}) == len(first)
    second = list(propose(SHOP, wanted(sources, cycle="cycle-2")))
    assert not {one.id for one in first} & {one.id for one in second}
    ids = [{one.task.id for one in split(them)[0]} for them in (first, second)]
    assert not ids[0] & ids[1]


def test_what_the_buffer_has_is_not_written_again() -> None:
    one = source("one_order")
    given = wanted({PATTERN: [one]}, 12, explore=0.0)
    known = [
        PriorTask.of(made) for n in range(400) if (made := SHOP.rephrase(one.task, n)) is not None
    ]
    accepted, rejected = split(
        list(propose(SHOP, ProposalRequest(**{**vars_of(given), "known": known})))
    )
    assert len(accepted) == 12
    assert {(one.mode, one.check) for one in rejected} == {("inherit", "novelty")}
    assert len(rejected) >= 12 * (TRIES - 1) * 0.9
    assert all(one.instruction.startswith("Reason for call: ") for one in rejected)


def test_a_mode_that_failed_in_the_cycle_before_is_not_begun_with() -> None:
    sources = {PATTERN: [source("compound")], OTHER: [source("question")]}

    def begun(*bad: Mode) -> dict[str, set[Mode | None]]:
        """Pattern -> the modes of its written tasks."""
        given = wanted(sources, 12, explore=0.5)
        tries = [
            BadTries(pattern=PATTERN, mode=mode, tries=4, rejected=3, reasons=()) for mode in bad
        ]
        directive = given.directive.model_copy(update={"bad_tries": tuple(tries)})
        proposals = list(
            propose(SHOP, ProposalRequest(**{**vars_of(given), "directive": directive}))
        )
        return {
            pattern: {one.data.mode for one in proposals if one.data.pattern == pattern}
            for pattern in sources
        }

    both: set[Mode | None] = {"inherit", "explore"}
    assert begun() == begun("inherit", "explore") == {PATTERN: both, OTHER: both}
    assert begun("inherit") == {PATTERN: {"explore"}, OTHER: both}
    assert begun("explore")[OTHER] == both
    assert "inherit" in begun("explore")[PATTERN]


def vars_of(given: ProposalRequest) -> dict[str, Any]:
    return {name: getattr(given, name) for name in ProposalRequest.__slots__}


def test_at_most_three_tries_a_place() -> None:
    given = wanted({PATTERN: [source("cancel")]}, 5, evaluation=Evaluation(seeds=range(7)))
    accepted, rejected = split(list(propose(SHOP, given)))
    assert len(accepted) + len(rejected) <= 5 * TRIES
    assert {one.check for one in rejected if one.mode == "explore"} == {"contamination"}


def test_the_current_policy_has_a_say_where_it_is_sampled() -> None:
    tasks = wanted({PATTERN: [source("cancel")]}, 10, sampler=lambda _: 0)
    accepted, rejected = split(list(propose(SHOP, tasks)))
    assert len(accepted) == 3
    assert {one.check for one in rejected} <= {"informative", "novelty"}

    def easy(task: TaskDefinition) -> int:
        return 8

    accepted, rejected = split(
        list(propose(SHOP, wanted({PATTERN: [source("cancel")]}, 4, sampler=easy)))
    )
    assert not accepted
    assert {one.check for one in rejected} == {"informative"}


def test_an_environment_without_other_words_gets_fresh_tasks() -> None:
    mini = Mini()
    failed = Source("rollout-1", mini.generate("cancel", 2**24))
    given = wanted({PATTERN: [failed]}, 2, explore=0.0)
    accepted, rejected = split(list(propose(mini, given)))
    assert {one.mode for one in accepted} == {"explore"}
    assert {one.check for one in rejected} <= {"novelty"}


def test_a_benchmarks_task_is_not_followed() -> None:
    real = source("cancel").task.model_copy(update={"split": "test"})
    given = wanted({PATTERN: [Source("rollout-1", real)]}, 1, explore=1.0)
    accepted, rejected = split(list(propose(SHOP, given)))
    assert not accepted
    assert len(rejected) == TRIES


def test_a_pattern_without_a_known_task_says_so() -> None:
    (proposal,) = propose(SHOP, wanted({PATTERN: []}))
    assert isinstance(proposal.data, TaskRejected)
    assert "none to follow" in proposal.data.reason


def test_a_pattern_whose_lessons_were_all_written_says_so() -> None:
    sources = [source("cancel")]
    drafts = draft_lessons(SHOP, sources, (), TRIES * 2, f"cycle-1 {PATTERN}").tasks
    assert drafts
    choice = ModeChoice(mode="repair", tasks=2, reason="refused calls")
    quota = Quota(pattern=PATTERN, tasks=4, priority=1.0, status="NEW", modes=(choice,))
    request = ProposalRequest(
        cycle="cycle-1",
        alias="agent",
        base="base",
        directive=Directive(quotas=(quota,)),
        sources={PATTERN: sources},
        writers=(LessonSupply(taken=frozenset(draft.task.id for draft in drafts)).build_writer(),),
    )
    accepted, rejected = split(list(propose(SHOP, request)))
    assert len(accepted) == 4
    assert [row.mode for row in rejected if row.check == "lesson"] == ["repair"]
    assert rejected[0].reason == (
        f"the {len(drafts)} lessons that could be made were all written before"
    )
