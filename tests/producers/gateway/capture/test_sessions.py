"""Which session a call is of, which call it goes on from, and who may ask."""

from typing import Any

from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.feedback import Rate
from producers.gateway.capture.lookalikes import MAX_ALIKE
from producers.gateway.capture.sessions import (
    MAX_KNOWN,
    CallAttribution,
    Parent,
    SessionName,
    Sessions,
)
from producers.gateway.privacy.keys import ClientKey, ClientKeys, hash_key, mint_key

SCOPE = ("agent", None)
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello", "tool_calls": []}
NEXT = {"role": "user", "content": "And?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def known(scope: Any = SCOPE, most: int = 100) -> Sessions:
    """One call of session `s`, answered."""
    sessions = Sessions(most)
    asked = Conversation.of([USER], [{"a": 1}])
    sessions.remember_request("s", "c1", asked)
    sessions.remember_answer("s", "c1", scope, asked, asked.digest_answer(ANSWER))
    return sessions


def attributed(
    sessions: Sessions, *messages: Any, named: SessionName | None = None
) -> CallAttribution:
    conversation = Conversation.of(messages, [{"a": 1}])
    return sessions.attribute(named, SCOPE, conversation, "fresh")


def test_a_call_that_begins_with_an_answered_one_is_of_its_session() -> None:
    found = attributed(known(), USER, ANSWER, NEXT)
    assert (found.session, found.by, found.parent) == ("s", "prefix", Parent("c1", 2, True))


def test_an_answer_is_known_by_what_it_says_not_by_how_it_is_sent_back() -> None:
    sent_back = {"role": "assistant", "content": "Hello", "refusal": None, "audio": None}
    assert attributed(known(), USER, sent_back, NEXT).session == "s"
    other = {"role": "assistant", "content": "Hello!"}
    assert attributed(known(), USER, other, NEXT).by == "none"


def test_a_name_goes_before_a_beginning_and_a_parent_is_of_the_same_session() -> None:
    elsewhere = attributed(known(), USER, ANSWER, NEXT, named=SessionName("t", "header"))
    assert (elsewhere.session, elsewhere.by, elsewhere.parent) == ("t", "header", None)
    again = attributed(known(), USER, named=SessionName("s", "path"))
    assert again.parent == Parent("c1", 1, True)


def test_a_rewritten_or_compacted_history_goes_on_from_nothing() -> None:
    sessions = known()
    system = {"role": "system", "content": "Now shorter."}
    for messages in ([system, USER, ANSWER, NEXT], [NEXT], [ANSWER, NEXT]):
        assert attributed(sessions, *messages, named=SessionName("s", "header")).parent is None


def test_another_key_or_user_never_joins_a_session() -> None:
    for scope in (("other", None), ("agent", "rosa")):
        assert attributed(known(scope), USER, ANSWER, NEXT).by == "none"


def test_what_is_forgotten_costs_a_session_and_never_a_wrong_parent() -> None:
    sessions = known(most=1)
    found = attributed(sessions, USER, ANSWER, NEXT)
    assert found.parent is None or found.parent == Parent("c1", 2, True)
    for number in range(10):
        sessions.remember_call(f"c{number}", "s")
    assert attributed(sessions, USER, ANSWER, NEXT).by == "none"


class Talks:
    """Customers of one key that say the same, through one memory."""

    def __init__(self, name: str = "new", most: int = MAX_KNOWN) -> None:
        self.sessions = Sessions(most)
        self._name = name
        self._calls = 0

    def asks(
        self, *messages: Any, scope: Any = SCOPE, named: SessionName | None = None
    ) -> CallAttribution:
        """A request comes."""
        self._calls += 1
        conversation = Conversation.of(messages)
        return self.sessions.attribute(named, scope, conversation, f"{self._name}-{self._calls}")

    def tries(self, *messages: Any) -> CallAttribution:
        """A request comes and fails."""
        found = self.asks(*messages)
        self.sessions.settle(found.claim, completed=False)
        return found

    def says(
        self,
        *messages: Any,
        answer: Any = ANSWER,
        scope: Any = SCOPE,
        named: SessionName | None = None,
    ) -> str:
        """A request comes and is answered; its session."""
        found = self.asks(*messages, scope=scope, named=named)
        conversation, call = Conversation.of(messages), f"c{self._calls}"
        self.sessions.remember_request(found.session, call, conversation)
        heard = conversation.digest_answer(answer)
        self.sessions.remember_answer(found.session, call, scope, conversation, heard)
        self.sessions.settle(found.claim, completed=True)
        return found.session


def test_of_several_that_began_alike_none_is_guessed() -> None:
    talks = Talks()
    openings = {talks.says(USER) for _ in range(5)}
    later = {talks.says(USER, ANSWER, {"role": "user", "content": f"I am {n}"}) for n in range(5)}
    assert (len(openings), len(later)) == (5, 5)
    assert not openings & later, "which opening is whose cannot be known"


def test_who_says_the_same_after_another_goes_on_with_the_own_beginning() -> None:
    talks, third = Talks(), {"role": "user", "content": "Bye"}
    sessions: list[str] = []
    for _ in range(5):
        first = talks.says(USER)
        assert talks.says(USER, ANSWER, NEXT) == first
        assert talks.says(USER, ANSWER, NEXT, ANSWER, third) == first
        sessions.append(first)
    assert len(set(sessions)) == 5


def test_one_that_stopped_makes_the_next_that_is_alike_doubtful_also_when_it_is_ended() -> None:
    talks = Talks()
    stopped = talks.says(USER)
    talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT).by == "none"
    talks.sessions.end_session(stopped)
    assert talks.tries(USER, ANSWER, NEXT).by == "none", "who judged it may go on nevertheless"


def test_a_session_that_its_client_ended_is_not_continued() -> None:
    talks = Talks()
    ended = talks.says(USER)
    talks.sessions.end_session(ended)
    again = talks.says(USER, ANSWER, NEXT)
    assert again != ended
    assert talks.says(USER, ANSWER, NEXT, ANSWER, NEXT) == again


def test_other_words_after_an_answer_that_was_gone_on_from_may_be_anothers() -> None:
    talks = Talks()
    talks.says(USER)
    waiting = talks.asks(USER, ANSWER, NEXT)
    other_words = {"role": "user", "content": "Or?"}
    assert talks.tries(USER, ANSWER, other_words).by == "none"
    talks.sessions.settle(waiting.claim, completed=True)
    assert talks.tries(USER, ANSWER, other_words).by == "none"


def test_an_answer_without_its_white_space_may_be_anothers() -> None:
    talks = Talks()
    talks.says(USER)
    mine = talks.says(SYSTEM, USER, answer={"role": "assistant", "content": "Hello\n"})
    assert talks.tries(SYSTEM, USER, ANSWER, NEXT).session == mine, "and where none is, it is mine"
    talks.says(USER, answer={"role": "assistant", "content": "Hello\n"})
    assert talks.tries(USER, ANSWER, NEXT).by == "none"


def test_what_a_client_can_have_of_a_cut_answer_may_be_anothers() -> None:
    for cut, by in (("Hello the", "none"), ("Hel", "prefix"), ("Good", "prefix")):
        talks = Talks()
        talks.says(USER)
        asked = Conversation.of([USER])
        answer = asked.digest_answer({"role": "assistant", "content": cut})
        talks.sessions.remember_possible_answer("other", SCOPE, asked, answer)
        assert talks.tries(USER, ANSWER, NEXT).by == by, cut


def test_of_two_that_are_alike_the_one_that_is_remembered_is_not_taken_for_the_other() -> None:
    talks = Talks(most=40)
    talks.says(USER)
    for number in range(20):
        talks.says({"role": "user", "content": f"{number}"})
    talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT).by == "none"
    unlike = talks.says(SYSTEM, USER)
    assert talks.tries(SYSTEM, USER, ANSWER, NEXT).session == unlike, "what was forgotten is unlike"


def test_what_was_gone_on_from_is_forgotten_without_doubt() -> None:
    talks = Talks(most=40)
    talks.says(USER)
    talks.says(USER, ANSWER, NEXT)
    for number in range(20):
        talks.says({"role": "user", "content": f"{number}"})
    mine = talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT).session == mine


def test_a_long_conversation_whose_answers_may_not_have_been_heard_is_settled() -> None:
    sessions, conversation = Sessions(), Conversation.of([NEXT])
    answers: list[Any] = []
    for _ in range(1_200):
        claim = sessions.attribute(None, SCOPE, conversation, "s").claim
        heard = conversation.digest_answer(ANSWER)
        sessions.remember_answer("s", "c", SCOPE, conversation, heard)
        sessions.settle(claim, completed=True)
        answers.append((claim, heard.loose))
        conversation = conversation.extend([ANSWER, NEXT])
    for claim, answer in reversed(answers[1:]):
        sessions.doubt_delivery(claim, answer)
    last = sessions.attribute(None, SCOPE, conversation, "s")
    sessions.settle(last.claim, completed=True)
    assert sessions._unsure == {}


def test_a_call_that_came_to_nothing_leaves_its_beginning_to_who_asks_again() -> None:
    talks = Talks()
    mine = talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT).session == mine
    talks.says(USER)
    again = talks.asks(USER, ANSWER, {"role": "user", "content": "Other words"})
    assert again.by == "none", "it may be either's"


def test_while_a_call_is_being_answered_its_beginning_is_doubtful() -> None:
    talks, other_words = Talks(), {"role": "user", "content": "Or?"}
    mine = talks.says(USER)
    waiting = talks.asks(USER, ANSWER, NEXT)
    other = talks.says(USER)
    assert waiting.session == mine
    for words in (NEXT, other_words):
        assert talks.tries(USER, ANSWER, words).by == "none", "a retry, a side call, or the other's"
    talks.sessions.settle(waiting.claim, completed=True)
    assert talks.tries(USER, ANSWER, other_words).session == other


def test_an_answer_in_between_that_is_not_known_tells_of_another_call() -> None:
    talks = Talks()
    mine = talks.says(USER)
    assert talks.says(USER, ANSWER, NEXT) == mine
    unknown = {"role": "assistant", "content": "As the client rewrote it"}
    assert talks.tries(USER, ANSWER, NEXT, unknown, NEXT).session == mine
    talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT, unknown, NEXT).by == "none"


def test_too_many_that_are_alike_are_all_doubtful() -> None:
    talks = Talks()
    for _ in range(MAX_ALIKE + 5):
        talks.says(USER)
    assert talks.asks(USER, ANSWER, NEXT).by == "none"
    assert max(len(getattr(known, "sessions", ())) for known in talks.sessions._known.values()) < 20


def test_nothing_is_joined_before_what_was_known_is_recalled() -> None:
    talks, before = Talks(), Talks("earlier")
    before.says(USER)
    talks.sessions.expect_recall()
    talks.says(USER)
    assert talks.tries(USER, ANSWER, NEXT).by == "none"
    talks.sessions.recall(before.sessions)
    assert talks.tries(USER, ANSWER, NEXT).by == "none", "both have that beginning"
    other = talks.says(SYSTEM, USER)
    assert talks.tries(SYSTEM, USER, ANSWER, NEXT).session == other


def test_a_parent_is_of_the_same_person() -> None:
    talks, named = Talks(), SessionName("desk", "header")
    people: tuple[Any, ...] = (("agent", "rosa"), ("agent", "otto"), ("agent", None))
    for scope in people:
        assert talks.asks(USER, scope=scope, named=named).parent is None
        conversation = Conversation.of([USER])
        talks.sessions.remember_request("desk", f"of-{scope[1]}", conversation, scope[1])
        heard = conversation.digest_answer(ANSWER)
        talks.sessions.remember_answer("desk", f"of-{scope[1]}", scope, conversation, heard)
    for scope in people:
        found = talks.asks(USER, ANSWER, NEXT, scope=scope, named=named)
        assert found.parent == Parent(f"of-{scope[1]}", 2, same_tools=True)


def test_a_key_is_known_by_its_hash_and_names_a_session() -> None:
    key = mint_key()
    ring = ClientKeys([ClientKey("agent", hash_key(key), frozenset(("call",)))])
    client = ring.client(f"Bearer {key}~talk")
    assert client is not None
    assert (client.name, client.session) == ("agent", "talk")
    plain = ring.client(f"bearer {key}")
    assert plain is not None
    assert plain.session is None
    for wrong in (None, "", key, f"Basic {key}", f"Bearer {key}x", "Bearer ", f"Bearer ~{key}"):
        assert ring.client(wrong) is None


def test_without_keys_everybody_may_ask_and_nobody_is_trusted() -> None:
    client = ClientKeys([]).client(None)
    assert client is not None
    assert client.scopes == {"call", "feedback", "status"}


def test_a_rate_is_a_bucket_that_fills_again() -> None:
    rate = Rate(60)
    assert [rate.wait("a", 0.0) for _ in range(60)] == [0.0] * 60
    assert rate.wait("a", 0.0) == 1.0
    assert rate.wait("b", 0.0) == 0.0
    assert rate.wait("a", 1.0) == 0.0
