"""What goes wrong when: every target in turn, a calm end, and the same again for the same seed."""

from ops.soak.troubles import CALM, LAST, troubles

TARGETS = ("engine", "gateway", "consume", "work", "up")
HOURS = 7200.0


def test_every_target_is_killed_once_before_one_is_killed_twice() -> None:
    kills = [one.target for one in troubles(HOURS, TARGETS, 1, servers=True) if one.target]
    assert len(kills) >= 2 * len(TARGETS)
    assert set(kills[: len(TARGETS)]) == set(TARGETS) == set(kills[len(TARGETS) : 2 * len(TARGETS)])


def test_no_role_is_killed_in_the_calm_and_servers_go_away_until_the_end() -> None:
    found = troubles(HOURS, TARGETS, 2, servers=True)
    assert max(one.at for one in found if one.kind == "kill") < HOURS * CALM
    outages = [one for one in found if one.kind != "kill"]
    assert HOURS * CALM < max(one.at for one in outages) < HOURS * LAST
    assert {one.kind for one in outages} == {
        "broker killed", "broker stopped", "database killed", "database stopped",
    }  # fmt: skip
    assert all(one.away > 0 for one in outages)
    assert [one.at for one in found] == sorted(one.at for one in found)


def test_a_short_run_has_its_troubles_too() -> None:
    kinds = {one.kind for one in troubles(120.0, TARGETS, 1, servers=True)}
    assert "kill" in kinds
    assert len(kinds) > 2


def test_a_seed_says_it_all_and_without_servers_none_goes_away() -> None:
    assert troubles(HOURS, TARGETS, 3, servers=True) == troubles(HOURS, TARGETS, 3, servers=True)
    assert troubles(HOURS, TARGETS, 3, servers=True) != troubles(HOURS, TARGETS, 4, servers=True)
    assert {one.kind for one in troubles(HOURS, TARGETS, 3, servers=False)} == {"kill"}
