"""The shaped reward: what it takes away, and that it never reorders success and failure."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from consumers.diagnosis.detectors import KAPPA
from envs.catalog import CATALOGS
from envs.reward import DEFAULT, Conduct, Shaping, conduct_of, shape
from events.messages import Message, ToolCall
from tests.envs.mini import Mini, called, calls, heard, said

RETAIL = CATALOGS["retail"]
MINI = Mini().catalog
PENALTIES = ("authentication", "format", "repetition", "length")

amounts = st.floats(0, 1) | st.floats(0, 1e300)
conducts = st.builds(
    Conduct,
    unauthenticated_write=st.booleans(),
    malformed=st.integers(0, 10**9),
    repeated=st.integers(0, 10**9),
    tokens=st.none() | st.integers(0, 10**12),
)


@st.composite
def shapings(draw: st.DrawFn) -> Shaping:
    """Any valid one, those at the very limit included."""
    shares = [draw(st.floats(0, 1)) for _ in range(4)]
    assume(sum(shares) > 0)
    scale = draw(st.floats(0, 0.999) | st.just(0.999)) / sum(shares)
    authentication, *caps = (share * scale for share in shares)
    assume(authentication + caps[0] + caps[1] + caps[2] <= 0.999)
    return Shaping(
        authentication=authentication,
        format=draw(amounts),
        format_cap=caps[0],
        repetition=draw(amounts),
        repetition_cap=caps[1],
        length=draw(amounts),
        length_cap=caps[2],
        length_budget=draw(st.integers(0, 10**6)),
        floor=draw(st.floats(-10, 0)),
    )


@settings(deadline=None, max_examples=200)
@given(shapings(), conducts, conducts)
def test_every_success_is_above_every_failure(
    shaping: Shaping, good: Conduct, bad: Conduct
) -> None:
    success, failure = shape(1.0, good, shaping), shape(0.0, bad, shaping)
    assert success.total > 0 >= failure.total >= shaping.floor
    assert success.total > failure.total


@settings(deadline=None, max_examples=100)
@given(shapings(), conducts, st.sampled_from([0.0, 1.0]))
def test_the_components_sum_to_the_total_unless_it_is_at_the_floor(
    shaping: Shaping, conduct: Conduct, worth: float
) -> None:
    reward = shape(worth, conduct, shaping)
    assert tuple(reward.components) == ("task", *PENALTIES)
    assert reward.components["task"] == worth
    caps = (shaping.authentication, shaping.format_cap, shaping.repetition_cap, shaping.length_cap)
    for name, cap in zip(PENALTIES, caps, strict=True):
        assert -cap <= reward.components[name] <= 0
    assert reward.total == pytest.approx(max(shaping.floor, sum(reward.components.values())))


@settings(deadline=None, max_examples=100)
@given(shapings(), conducts, conducts)
def test_worse_conduct_is_never_worth_more(shaping: Shaping, one: Conduct, other: Conduct) -> None:
    worse = Conduct(
        unauthenticated_write=one.unauthenticated_write or other.unauthenticated_write,
        malformed=max(one.malformed, other.malformed),
        repeated=max(one.repeated, other.repeated),
        tokens=max(one.tokens or 0, other.tokens or 0),
    )
    for worth in (0.0, 1.0):
        better, now = shape(worth, one, shaping), shape(worth, worse, shaping)
        assert all(now.components[name] <= better.components[name] for name in PENALTIES)
        assert now.total <= better.total + 1e-12


@given(conducts)
def test_by_default_carelessness_reaches_diagnosis_and_care_does_not(conduct: Conduct) -> None:
    total = shape(1.0, conduct).total
    if conduct.unauthenticated_write:
        assert 0.2 - 1e-9 <= total <= 0.5 < KAPPA
    else:
        assert total >= 0.7 - 1e-9 >= KAPPA


def test_the_defaults_take_away_what_the_notes_say() -> None:
    conduct = Conduct(unauthenticated_write=True, malformed=1, repeated=3, tokens=6144 + 1000)
    reward = shape(1.0, conduct)
    assert reward.components == {
        "task": 1.0,
        "authentication": -0.5,
        "format": -0.05,
        "repetition": -0.06,
        "length": -0.02,
    }
    assert reward.total == pytest.approx(0.37)
    spotless = shape(1.0, Conduct())
    assert (spotless.total, str(spotless.components["format"])) == (1.0, "0.0")
    assert shape(0.0, Conduct(True, 99, 99, 10**9)).total == -0.5 == DEFAULT.floor
    assert shape(1.0, Conduct(tokens=6144)).total == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("authentication", 0.7), ("authentication", 1.0), ("format_cap", 0.5), ("length_cap", 1e9),
        ("repetition_cap", float("inf")), ("format", float("inf")), ("length", float("nan")),
        ("format", -0.1), ("format_cap", -0.1), ("floor", 0.1), ("length_budget", -1),
        ("lenght", 0.1),
    ],
)  # fmt: skip
def test_a_shaping_that_could_reorder_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError):
        Shaping(**{field: value})


def answered(*messages: Message, error: bool = False) -> list[Message]:
    """Messages with a result after each call, an error where it is the last and should be one."""
    found: list[Message] = []
    for message in messages:
        found.append(message)
        for call in message.tool_calls:
            found.append(Message(role="tool", content="x", tool_call_id=call.id, error=False))
    if error:
        found[-1] = found[-1].model_copy(update={"error": True})
    return found


FIND = called("find_user_id_by_email", email="a@b.c")
CANCEL = called("cancel_pending_order", order_id="#W1")
LOOK = called("get_order_details", order_id="#W1")


@pytest.mark.parametrize(
    ("messages", "unauthenticated"),
    [
        (answered(FIND, CANCEL), False),
        (answered(CANCEL, FIND), True),
        (answered(CANCEL), True),
        ([*answered(FIND, error=True), *answered(CANCEL)], True),
        ([*answered(FIND, error=True), *answered(FIND, CANCEL)], False),
        (answered(LOOK, LOOK), False),
        (answered(CANCEL, error=True), False),
        ([*answered(CANCEL, error=True), *answered(CANCEL)], True),
        ([FIND], False),
        ([CANCEL], True),
        ([], False),
    ],
)
def test_a_write_needs_an_authentication_that_succeeded_before(
    messages: list[Message], unauthenticated: bool
) -> None:
    assert conduct_of(messages, RETAIL, 0).unauthenticated_write is unauthenticated


def test_what_a_user_calls_authenticates_nobody_and_is_no_write_of_the_agents() -> None:
    call = CANCEL.tool_calls[0]
    users = Message(role="user", tool_calls=(call,))
    found = [Message(role="user", tool_calls=FIND.tool_calls), Message(role="tool", content="u")]
    assert not conduct_of(answered(users), RETAIL, 0).unauthenticated_write
    assert conduct_of([*found, *answered(CANCEL)], RETAIL, 0).unauthenticated_write


def look(**arguments: Any) -> Message:
    return called("get_order", **arguments)


W1, W2, WRITE = look(order_id="w1"), look(order_id="w2"), called("cancel_order", order_id="w1")


@pytest.mark.parametrize(
    ("messages", "repeated"),
    [
        (answered(W1, W1, W1), 2),
        (answered(W1, W2, W1), 0),
        (answered(calls(("a", {"x": 1, "y": 2}), ("a", {"y": 2, "x": 1}))), 1),
        (answered(look(x=1), look(x=1.0)), 0),
        (answered(look(x=1), look(x=True)), 0),
        (answered(calls(("a", "{"), ("a", "{"))), 1),
        ([*answered(W1), said("Hm?"), heard("Yes."), *answered(W1)], 0),
        ([heard("Hi."), *answered(W1, W1)], 1),
        (answered(W1, WRITE, W1), 0),
        (answered(WRITE, WRITE), 0),
        ([*answered(WRITE, error=True), *answered(WRITE, error=True), *answered(WRITE)], 2),
        ([*answered(W1), Message(role="user", tool_calls=W1.tool_calls), *answered(W1)], 0),
    ],
)
def test_a_call_repeats_the_one_before_it(messages: list[Message], repeated: int) -> None:
    assert conduct_of(messages, MINI, 0).repeated == repeated


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"v": value}
    return value


@pytest.mark.parametrize(
    "value",
    [deep(5_000), 10**6_000, float("nan"), "\ud800", {1: 2}],
    ids=["deep", "huge", "nan", "half a character", "key"],
)
def test_arguments_that_no_tool_looks_at_stop_nothing(value: Any) -> None:
    call = ToolCall(name="get_order", arguments={"v": value})
    message = Message(role="assistant", tool_calls=(call,))
    assert conduct_of([message, message], MINI, 2, 5) == Conduct(malformed=2, tokens=5)
