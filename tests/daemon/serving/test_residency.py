"""Room for adapters: what answers keeps its slot, what is only kept goes first, the rest waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.serving.residency import NoRoom, Plan, Role, Room, plan_together

ROLES: list[Role] = ["stable", "canary", "shadow", "pinned", "draining", "staged", "kept"]


def plan(
    resident: dict[str, Role], name: str, room: Room, role: Role = "staged", replica: str = "it"
) -> Plan:
    return plan_together(resident, {name: role}, room, replica)


def test_stable_canary_draining_and_one_more_have_room_in_four_slots() -> None:
    resident: dict[str, Role] = {"a-1": "draining", "a-2": "stable", "a-3": "canary"}
    found = plan(resident, "a-4", Room(4, 8))
    assert found.resident == ("a-1", "a-2", "a-3", "a-4")
    assert found.give_up == ()


def test_one_that_answers_more_is_refused_with_the_numbers() -> None:
    resident: dict[str, Role] = {"a-1": "draining", "a-2": "stable", "a-3": "canary"}
    with pytest.raises(NoRoom) as refused:
        plan(resident, "a-4", Room(3, 8), replica="http://here/v1")
    assert str(refused.value).startswith(
        "http://here/v1 has no slot for a-4: 4 are needed (1 canary, 1 draining, 1 stable, "
        "1 staged, with 1 for what is staged), and max_loras is 3"
    )
    assert "--max-loras 4" in str(refused.value)


def test_a_spare_slot_is_left_when_a_staged_adapter_begins_to_answer() -> None:
    resident: dict[str, Role] = {"a-1": "stable", "a-2": "staged"}
    assert plan(resident, "a-2", Room(3, 3), "canary").resident == ("a-1", "a-2")
    with pytest.raises(NoRoom, match="3 are needed"):
        plan(resident, "a-2", Room(2, 2), "canary")


def test_what_is_only_kept_needs_no_slot_and_goes_first_the_oldest_before() -> None:
    resident: dict[str, Role] = {"a-1": "kept", "a-2": "kept", "a-3": "stable", "a-4": "kept"}
    found = plan(resident, "a-5", Room(2, 3))
    assert found.give_up == ("a-1", "a-2")
    assert found.resident == ("a-3", "a-4", "a-5")


def test_what_is_kept_gives_way_to_whatever_is_used() -> None:
    resident: dict[str, Role] = {"a-1": "staged", "a-2": "stable"}
    assert plan(resident, "a-3", Room(2, 2), "kept").give_up == ("a-3",)


def test_an_adapter_that_is_there_takes_no_second_place() -> None:
    resident: dict[str, Role] = {"a-1": "stable", "a-2": "kept"}
    found = plan(resident, "a-2", Room(2, 2), "staged")
    assert (found.resident, found.give_up) == (("a-1", "a-2"), ())


@pytest.mark.parametrize(("slots", "memory"), [(0, 4), (5, 4), (-1, 1)])
def test_room_that_no_engine_has_is_refused(slots: int, memory: int) -> None:
    with pytest.raises(ValueError, match=f"max_loras is {slots} and max_cpu_loras {memory}"):
        Room(slots, memory)


@given(
    st.lists(st.sampled_from(ROLES), max_size=8),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from(ROLES),
)
def test_a_plan_keeps_everything_in_use_and_exceeds_nothing(
    roles: list[Role], slots: int, more: int, role: Role
) -> None:
    resident = {f"a-{number}": role for number, role in enumerate(roles)}
    room = Room(slots, slots + more)
    try:
        found = plan(resident, "new", room, role)
    except NoRoom:
        return
    assert set(found.resident) | set(found.give_up) == {*resident, "new"}
    assert all(resident[name] == "kept" for name in found.give_up)
    assert len(found.resident) <= room.max_cpu_loras
    after = {**resident, "new": role}
    used = sum(use != "kept" for use in after.values())
    assert used + ("staged" not in after.values()) <= room.max_loras
