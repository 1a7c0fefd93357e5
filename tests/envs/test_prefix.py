"""Episodes that begin midway: what a prefix does to the state, and what it costs the agent."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from envs.environment import Environment
from envs.episode import Episode, Party, PrefixMismatch, play
from envs.evaluation import assess_recorded
from envs.grading import grade
from envs.registry import open_environment
from envs.reward import conduct_of
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import STOP
from events.messages import Message
from tests.envs.mini import DONE, Mini, Reciting, called, calls, heard, said, task

OPENING = heard("Please cancel me about order w1.")
LOOK = called("get_order", order_id="w1")
CANCEL = called("cancel_order", order_id="w1")


def begin(environment: Environment, whole: TaskDefinition, *messages: Message) -> TaskDefinition:
    """The task that begins after these messages, with what the tools answer to them."""
    episode = Episode(environment, whole)
    begin = len(episode.messages)
    for message in messages:
        episode.receive(message)
    return whole.model_copy(update={"prefix": tuple(episode.messages[begin:])})


def play_oracle(environment: Environment, whole: TaskDefinition) -> Episode:
    episode = Episode(environment, whole)
    return play(episode, environment.oracle(whole), environment.user(whole))


def plain(messages: Sequence[Message]) -> list[Message]:
    """Messages without the mark of those that nobody wrote."""
    return [message.model_copy(update={"sampled": None}) for message in messages]


def cuts(environment: Environment, whole: TaskDefinition) -> Iterator[TaskDefinition]:
    """The task, begun after each message of the oracle's episode that a party may follow."""
    messages = play_oracle(environment, whole).messages
    start = int(environment.greeting is not None and not whole.solo)
    for place in range(start + 1, len(messages)):
        if messages[place].role != "tool":
            yield whole.model_copy(update={"prefix": tuple(messages[start:place])})


def check_cuts(environment: Environment, splits: Sequence[str], count: int) -> int:
    """Play the rest of every cut of the first tasks of these splits; return how many there are."""
    played = 0
    for whole in (t for split in splits for t in islice(environment.tasks(split), count)):
        expected = play_oracle(environment, whole)
        if not grade(environment, whole, expected.messages, expected.termination).success:
            continue
        for cut in cuts(environment, whole):
            episode = play_oracle(environment, cut)
            assert plain(episode.messages) == plain(expected.messages)
            assert episode.database.digest() == expected.database.digest()
            verdict = grade(environment, cut, episode.messages, episode.termination)
            assert verdict.success, (cut.id, verdict)
            played += 1
    return played


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom", "toolsandbox"])
def test_an_oracle_goes_on_from_any_place_of_its_own_episode(name: str) -> None:
    assert check_cuts(open_environment(name), ["generated"], 6) > 20


@pytest.mark.benchmarks
def test_so_does_an_oracle_of_recorded_tasks(benchmarks: Path) -> None:
    bfcl = open_environment("bfcl", benchmarks=benchmarks)
    assert check_cuts(bfcl, list(bfcl.splits), 3) > 20
    telecom = open_environment("telecom", benchmarks=benchmarks)
    assert check_cuts(telecom, ["test", "test-solo"], 2) > 20


def test_the_writes_of_a_prefix_are_in_the_state() -> None:
    made = Episode(Mini(), begin(Mini(), task(), OPENING, CANCEL))
    assert made.database["orders"]["w1"]["status"] == "cancelled"
    assert made.turn is Party.AGENT
    assert [message.sampled for message in made.messages] == [False] * 3
    other = Episode(Mini(), task())
    assert other.database["orders"]["w1"]["status"] == "pending"


def test_a_prefix_counts_for_no_limit_and_as_no_error() -> None:
    wrong = calls(("get_order", "no json"), ("get_order", {"order_id": "w9"}))
    made = Episode(Mini(), begin(Mini(), task(), OPENING, wrong, wrong, wrong))
    assert (made.steps, made.rounds, made.errors, made.malformed) == (0, 0, 0, 0)
    made.receive(wrong)
    assert (made.steps, made.rounds, made.errors, made.malformed) == (2, 1, 2, 1)


def test_a_prefix_costs_no_penalty_and_its_repetition_by_the_agent_does() -> None:
    whole = begin(Mini(), task(), OPENING, LOOK, LOOK, calls(("get_order", "no json")), LOOK)
    rest = [said("Do you confirm?"), CANCEL, said(DONE)]
    for first, repeated in (([], 0), ([LOOK], 1), ([LOOK, LOOK], 2)):
        episode = play(Episode(Mini(), whole), Reciting(*first, *rest), Mini().user(whole))
        conduct = conduct_of(episode.messages, Mini().catalog, episode.malformed, 0)
        assert (conduct.repeated, conduct.malformed) == (repeated, 0)
        again = assess_recorded(Mini(), whole, episode.messages, 0)
        assert again.grade.success
        assert again.penalties["format"] == 0


def test_a_write_before_the_lookup_is_blamed_on_who_makes_it() -> None:
    shop = Shop()
    whole = shop.generate("cancel", 1)
    write = next(a for a in whole.criteria.gold_actions or () if a.name in shop.writes)
    early = called(write.name, **write.arguments)
    opening = Episode(shop, whole)
    opening.receive(shop.user(whole).reply([]))
    own = begin(shop, whole, opening.messages[0])
    foreign = begin(shop, whole, opening.messages[0], early)
    by_agent = play(Episode(shop, own), Reciting(early, said(STOP)), shop.user(own))
    by_prefix = play(Episode(shop, foreign), Reciting(said(STOP)), shop.user(foreign))
    assert plain(by_agent.messages) == plain(by_prefix.messages)
    assert len(shop.violations(own, by_agent.messages)) == 2
    assert shop.violations(foreign, by_prefix.messages) == ()
    for episode, blamed in ((by_agent, True), (by_prefix, False)):
        assert conduct_of(episode.messages, shop.catalog, 0).unauthenticated_write is blamed


def test_shops_oracle_asks_again_after_a_write_that_failed() -> None:
    shop = Shop()
    whole = shop.generate("exchange", 2)
    messages = play_oracle(shop, whole).messages
    place = next(
        n for n, m in enumerate(messages) if any(c.name in shop.writes for c in m.tool_calls)
    )
    name, arguments = messages[place].tool_calls[0].name, messages[place].tool_calls[0].arguments
    assert isinstance(arguments, dict)
    wrong = called(name, **{**arguments, "order_id": "W0"})
    spoken = [message for message in messages[:place] if message.role != "tool"]
    episode = play_oracle(shop, begin(shop, whole, *spoken, wrong))
    assert episode.messages[place + 1].error
    assert grade(shop, whole, episode.messages, episode.termination).success
    assert sum(message.sampled is False for message in episode.messages) == place + 2


GOOD = begin(Mini(), task(), OPENING, LOOK, said("Do you confirm?"), heard("Yes.")).prefix


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ((LOOK, *GOOD[2:]), "message 0: a message of assistant, at the user's turn"),
        ((*GOOD, heard("Yes?")), "message 5: a message of user, at the agent's turn"),
        ((Message(role="system", content="Be kind."), *GOOD), "message 0: a message of system"),
        (GOOD[:2], "2 messages, and now 3"),
        ((*GOOD[:2], GOOD[3]), "message 2: assistant 'Do you confirm.', and now tool "),
        ((*GOOD[:3], GOOD[2], *GOOD[3:]), "message 3: tool "),
        (
            (*GOOD[:2], GOOD[2].model_copy(update={"content": "gone"}), *GOOD[3:]),
            "message 2: tool 'gone', and now tool ",
        ),
        (
            (*GOOD[:2], GOOD[2].model_copy(update={"error": True}), *GOOD[3:]),
            r"message 2: tool .* \(an error\), and now tool ",
        ),
        ((*GOOD[:-1], heard(STOP)), "message 4: it ends the episode: user_stop"),
        ((OPENING, said("")), "message 1: it ends the episode: agent_error"),
        ((OPENING, said(STOP), heard("Hello?")), "message 2: a message of user, after the end"),
    ],
)
def test_a_prefix_that_does_not_replay_is_refused(prefix: tuple[Message, ...], reason: str) -> None:
    with pytest.raises(PrefixMismatch, match=reason):
        Episode(Mini(), task().model_copy(update={"prefix": prefix}))


def test_calls_of_a_prefix_that_have_no_ids_get_some() -> None:
    nameless = calls(("get_order", {"order_id": "w1"}), ("get_order", {"order_id": "w2"}))
    unnamed = tuple(call.model_copy(update={"id": None}) for call in nameless.tool_calls)
    cut = begin(Mini(), task(), OPENING, nameless.model_copy(update={"tool_calls": unnamed}))
    made = Episode(Mini(), cut)
    ids = [call.id for call in made.messages[1].tool_calls]
    assert len({*ids}) == 2
    assert [message.tool_call_id for message in made.messages[2:]] == ids
    assert None not in ids


def test_a_definition_without_a_prefix_keeps_its_digest() -> None:
    assert "prefix" not in task().model_dump(mode="json")
    cut = begin(Mini(), task(), OPENING)
    assert cut.digest() != task().digest()
    assert TaskDefinition.model_validate_json(cut.model_dump_json()) == cut
