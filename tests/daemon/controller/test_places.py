"""Places of a directive: no key has more of them than of the failures, and none is lost."""

import math
from collections import Counter
from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from consumers.diagnosis.priority import quotas
from daemon.controller.places import Client, divide_places

Claims = dict[str, dict[Client, int]]

KEYS: tuple[Client, ...] = (None, "app", "partner", "tests")
PATTERNS = [f"p{number:02}" for number in range(24)]

counts = st.integers(min_value=1, max_value=300)
claims_of_patterns = st.dictionaries(
    st.sampled_from(PATTERNS),
    st.dictionaries(st.sampled_from(KEYS), counts, min_size=1),
    min_size=1,
)
weights = st.lists(
    st.one_of(st.just(0.0), st.floats(min_value=1e-6, max_value=5.0)), min_size=24, max_size=24
)


def count_failures(claims: Claims) -> dict[Client, int]:
    """Return key -> its failures over all patterns."""
    totals: Counter[Client] = Counter()
    for of_pattern in claims.values():
        totals.update(of_pattern)
    return dict(totals)


def weigh(claims: Claims, drawn: list[float]) -> dict[str, float]:
    return {pattern: drawn[PATTERNS.index(pattern)] for pattern in claims}


def count_places(places: dict[str, dict[Client, int]]) -> dict[Client, int]:
    return count_failures(places)


def list_shares(claims: Claims, goal: int) -> dict[Client, int]:
    """Return key -> its share of the places, rounded up."""
    failures = count_failures(claims)
    total = sum(failures.values())
    return {key: math.ceil(goal * count / total) for key, count in failures.items()}


def count_fillable(claims: Claims, limits: dict[Client, int], cap: int) -> int:
    """Return how many places these patterns can have within the limits of keys and patterns: the
    least cut over all sets of keys."""
    sets = chain.from_iterable(combinations(KEYS, size) for size in range(len(KEYS) + 1))
    return min(
        sum(limits.get(key, 0) for key in cut)
        + sum(cap for of_pattern in claims.values() if not of_pattern.keys() <= set(cut))
        for cut in sets
    )


@given(claims_of_patterns, weights, st.integers(min_value=1, max_value=64))
def test_no_key_gets_more_than_its_share_where_others_can_fill_the_rest(
    claims: Claims, drawn: list[float], most: int
) -> None:
    priorities = weigh(claims, drawn)
    places = divide_places(priorities, claims, count_failures(claims), most)
    goal, cap = sum(quotas(priorities, most).values()), math.ceil(most / 2)
    limits = list_shares(claims, goal)
    open_claims = {name: claims[name] for name in claims if priorities[name] > 0}
    if count_fillable(open_claims, limits, cap) >= goal:
        for key, number in count_places(places).items():
            assert number <= limits[key], key


@given(claims_of_patterns, weights, st.integers(min_value=1, max_value=64))
def test_all_places_are_divided_by_the_rules_of_quotas(
    claims: Claims, drawn: list[float], most: int
) -> None:
    priorities = weigh(claims, drawn)
    places = divide_places(priorities, claims, count_failures(claims), most)
    wanted = quotas(priorities, most)
    assert sum(count_places(places).values()) == sum(wanted.values())
    for pattern, of_pattern in places.items():
        assert priorities[pattern] > 0
        assert of_pattern.keys() <= claims[pattern].keys(), "a place follows a failure of its key"
        assert sum(of_pattern.values()) <= math.ceil(most / 2)


@given(claims_of_patterns, weights, st.integers(min_value=1, max_value=64))
def test_failures_of_one_key_are_followed_as_priorities_say(
    claims: Claims, drawn: list[float], most: int
) -> None:
    alone: Claims = {name: {None: sum(of_keys.values())} for name, of_keys in claims.items()}
    priorities = weigh(alone, drawn)
    places = divide_places(priorities, alone, count_failures(alone), most)
    assert {name: of_keys[None] for name, of_keys in places.items()} == quotas(priorities, most)


def test_a_key_that_fails_in_many_ways_once_has_its_share_and_not_a_place_for_each() -> None:
    claims: Claims = {f"p{number:02}": {"partner": 1} for number in range(20)}
    claims |= {"own1": {"app": 60}, "own2": {"app": 20}}
    priorities = dict.fromkeys(claims, 0.01) | {"own1": 0.6, "own2": 0.2}
    places = divide_places(priorities, claims, count_failures(claims), 32)
    assert sum(quotas(priorities, 32)[f"p{number:02}"] for number in range(20)) == 20
    assert count_places(places) == {"app": 32 - 7, "partner": 7}
    assert places["own1"] == {"app": 16}


def test_a_place_moves_to_another_key_of_its_pattern_for_one_that_has_no_other() -> None:
    claims: Claims = {"shared": {"app": 100, "partner": 100}, "lone": {"partner": 100}}
    priorities = {"shared": 0.5, "lone": 0.5}
    places = divide_places(priorities, claims, {"app": 150, "partner": 150}, 10)
    assert places == {"lone": {"partner": 5}, "shared": {"app": 5}}


def test_failures_of_earlier_rounds_have_places_only_where_this_round_leaves_some() -> None:
    claims: Claims = {"old": {"partner": 5}, "own": {"app": 3}, "own2": {"app": 2}}
    priorities = {"old": 0.9, "own": 0.1, "own2": 0.1}
    assert count_places(divide_places(priorities, claims, {"app": 5}, 8)) == {"app": 8}
    one = {name: claims[name] for name in ("old", "own")}
    places = divide_places({name: priorities[name] for name in one}, one, {"app": 3}, 8)
    assert places == {"old": {"partner": 4}, "own": {"app": 4}}
    assert (
        sum(count_places(divide_places({"old": 0.9}, {"old": {"partner": 5}}, {}, 8)).values()) == 4
    )
