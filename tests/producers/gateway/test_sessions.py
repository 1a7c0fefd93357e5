"""Which session a call is of, which call it goes on from, and who may ask."""

from typing import Any

from producers.gateway.feedback import Rate
from producers.gateway.keys import ClientKey, Keyring, hashed, minted_key
from producers.gateway.sessions import Attributed, Conversation, Named, Parent, Sessions

SCOPE = ("agent", None)
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello", "tool_calls": []}
NEXT = {"role": "user", "content": "And?"}


def known(scope: Any = SCOPE, most: int = 100) -> Sessions:
    """One call of session `s`, answered."""
    sessions = Sessions(most)
    asked = Conversation.of([USER], [{"a": 1}])
    sessions.started("s", "c1", asked)
    sessions.answered("s", "c1", scope, asked, ANSWER)
    return sessions


def attributed(sessions: Sessions, *messages: Any, named: Named | None = None) -> Attributed:
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


def test_two_conversations_that_begin_alike_are_two_until_an_answer_tells_them_apart() -> None:
    found = attributed(known(), USER)
    assert (found.session, found.by, found.parent) == ("fresh", "none", None)


def test_a_name_goes_before_a_beginning_and_a_parent_is_of_the_same_session() -> None:
    elsewhere = attributed(known(), USER, ANSWER, NEXT, named=Named("t", "header"))
    assert (elsewhere.session, elsewhere.by, elsewhere.parent) == ("t", "header", None)
    again = attributed(known(), USER, named=Named("s", "path"))
    assert again.parent == Parent("c1", 1, True)


def test_a_rewritten_or_compacted_history_goes_on_from_nothing() -> None:
    sessions = known()
    system = {"role": "system", "content": "Now shorter."}
    for messages in ([system, USER, ANSWER, NEXT], [NEXT], [ANSWER, NEXT]):
        assert attributed(sessions, *messages, named=Named("s", "header")).parent is None


def test_another_key_or_user_never_joins_a_session() -> None:
    for scope in (("other", None), ("agent", "rosa")):
        assert attributed(known(scope), USER, ANSWER, NEXT).by == "none"


def test_what_is_forgotten_costs_a_session_and_never_a_wrong_parent() -> None:
    sessions = known(most=1)
    found = attributed(sessions, USER, ANSWER, NEXT)
    assert found.parent is None or found.parent == Parent("c1", 2, True)
    for number in range(10):
        sessions.placed(f"c{number}", "s")
    assert attributed(sessions, USER, ANSWER, NEXT).by == "none"


def test_a_key_is_known_by_its_hash_and_names_a_session() -> None:
    key = minted_key()
    ring = Keyring([ClientKey("agent", hashed(key), frozenset(("call",)))])
    client = ring.client(f"Bearer {key}~talk")
    assert client is not None
    assert (client.name, client.session) == ("agent", "talk")
    plain = ring.client(f"bearer {key}")
    assert plain is not None
    assert plain.session is None
    for wrong in (None, "", key, f"Basic {key}", f"Bearer {key}x", "Bearer ", f"Bearer ~{key}"):
        assert ring.client(wrong) is None


def test_without_keys_everybody_may_ask_and_nobody_is_trusted() -> None:
    client = Keyring([]).client(None)
    assert client is not None
    assert client.scopes == {"call", "feedback", "status"}


def test_a_rate_is_a_bucket_that_fills_again() -> None:
    rate = Rate(60)
    assert [rate.wait("a", 0.0) for _ in range(60)] == [0.0] * 60
    assert rate.wait("a", 0.0) == 1.0
    assert rate.wait("b", 0.0) == 0.0
    assert rate.wait("a", 1.0) == 0.0
