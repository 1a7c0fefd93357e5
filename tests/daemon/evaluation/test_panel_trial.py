"""A trial in which a panel plays: its router chooses, and the members play as they would alone."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.evaluation.players import Adapter, Player, PlayerWithMembers
from daemon.evaluation.trial import Plan, TrialAttempt, play, read_attempts
from daemon.jobs.runner import JOURNAL
from daemon.methods.skills.engine_router import ask
from events.jobs import PanelRouter, RouterOption
from events.rollouts import MemberChoice
from ops.random_adapters import Maker
from producers.gateway.skills.label_router import RouterAnswer

FORCED = 1e6
"""Nats that no score makes up for."""
LONG = [{"role": "user", "content": "order 7 please " * 100}] * 9


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """An adapter that answers otherwise than the base."""
    folder = Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "member", 0.3)
    return Adapter(name="member", folder=str(folder), sha256=verify(folder).files[WEIGHTS])


def build_panel(member: Adapter, name: str, calibration: tuple[float, ...]) -> PlayerWithMembers:
    """A panel whose router is the base, with one calibration for both orders."""
    chat = Chat(CHECKPOINT)
    labels = ("A", "B", "C")
    tokens = [token for label in labels for token in chat.encode(label)]
    options = tuple(
        RouterOption(skill=skill, label=label, token=token, description=str(skill))
        for skill, label, token in zip(("first", "second", None), labels, tokens, strict=True)
    )
    router = PanelRouter(options=options, calibration=(calibration, calibration))
    return PlayerWithMembers(name=name, members={"first": member, "second": None}, router=router)


def build_plan(*players: Player) -> Plan:
    return Plan(
        name="t", environment="shop", checkpoint=str(CHECKPOINT), alias="agent", base="reference",
        players=players, tasks=("shop/cancel/1", "shop/question/2", "shop/address/3"), trials=1,
        seed=5, max_tokens=48, threads=1,
    )  # fmt: skip


def play_all(plan: Plan, out: Path) -> Mapping[str, list[TrialAttempt]]:
    """Policy -> its attempts."""
    play(plan, out)
    attempts = [attempt for chunk in read_attempts(out, plan) for attempt in chunk]
    return {
        plan.name_policy(player): [item for item in attempts if item.player == player]
        for player in range(len(plan.players))
    }


@pytest.mark.long
def test_the_member_that_the_router_chooses_plays_as_it_would_alone(
    tmp_path: Path, member: Adapter
) -> None:
    plan = build_plan(
        None,
        member,
        build_panel(member, "to first", (-FORCED, 0, 0)),
        build_panel(member, "to second", (0, -FORCED, 0)),
        build_panel(member, "to none", (0, 0, -FORCED)),
    )
    played = play_all(plan, tmp_path / "whole")
    said = {name: [attempt.messages for attempt in attempts] for name, attempts in played.items()}
    assert said["member"] != said["reference"]
    assert said["to first"] == said["member"]
    assert said["to second"] == said["to none"] == said["reference"]
    chosen = {
        name: {attempt.head.member for attempt in attempts} for name, attempts in played.items()
    }
    assert chosen == {
        "reference": {None},
        "member": {None},
        "to first": {MemberChoice(skill="first", adapter="member")},
        "to second": {MemberChoice(skill="second")},
        "to none": {MemberChoice(doubt="none")},
    }
    assert {attempt.head.policy for attempt in played["to first"]} == {"to first"}

    whole = (tmp_path / "whole" / JOURNAL).read_bytes()
    lines = whole.splitlines(keepends=True)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / JOURNAL).write_bytes(b"".join(lines[:3]) + lines[3][:100])
    play(plan, tmp_path / "killed")
    assert (tmp_path / "killed" / JOURNAL).read_bytes() == whole


def test_a_plan_is_read_as_it_was_written(member: Adapter) -> None:
    adapter = Adapter(name="a", folder="/adapters/a", sha256="0" * 64)
    for player in (adapter, build_panel(member, "p", (0, 0, 0))):
        plan = build_plan(player)
        assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_panel_has_a_member_for_each_skill_of_its_router(member: Adapter) -> None:
    panel = build_panel(member, "p", (0, 0, 0))
    with pytest.raises(ValueError, match="the members of p are of first, and its router chooses"):
        PlayerWithMembers(name="p", members={"first": member}, router=panel.router)
    asked = panel.router.model_copy(update={"adapter": "router"})
    with pytest.raises(ValueError, match="is router, and the files are those of the base"):
        PlayerWithMembers(name="p", members=panel.members, router=asked)


def test_a_router_whose_prompt_does_not_fit_leaves_the_session_to_the_base(
    member: Adapter,
) -> None:
    policy = Policy.load(CHECKPOINT, "reference")
    router = build_panel(member, "p", (-FORCED, 0, 0)).router
    short = [{"role": "user", "content": "cancel it"}]
    answers = ask(policy, Chat(CHECKPOINT), router, [short, [*short, *LONG], short])
    failed = RouterAnswer(None, "failed")
    assert answers == [RouterAnswer("first", None), failed, RouterAnswer("first", None)]
