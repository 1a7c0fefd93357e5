"""A panel before the gate: a candidate whose router is judged with it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.methods.skills.members import MemberShare, read_member_shares
from consumers.reads.serving import AdapterRow
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.evaluation.players import Adapter, NoSuchPart, PlayerWithMembers, build_player
from events.canonical import exact_json, sha256
from events.envelope import derive_id
from events.gate import GateReport
from events.jobs import PanelRouter, RouterOption
from events.learning import Decision
from events.serving import AdapterStaged, GateDecided, Panel, PanelComposed, PanelMember
from tests.daemon.evaluation.test_candidate_evaluation import (
    OTHER,
    RECORDED,
    TARGET,
    base,
    examined,
    large,
    of_type,
    recorded,
    rollouts,
    row_of,
    staged,
    trained,
    unchanged,
)
from tests.daemon.serving.recorded_trial import COMMAND, RecordedRunner

__all__ = ["base", "large", "unchanged"]


def compose(app: App, member: AdapterRow, cycle: str | None = None) -> AdapterRow:
    """A panel of one member that replicas are said to hold."""
    panel = Panel(
        members=(PanelMember(skill=TARGET, adapter=member.adapter),),
        router=PanelRouter(
            options=(
                RouterOption(skill=TARGET, label="a", token=6, description="letters"),
                RouterOption(label="b", token=7, description="others"),
            )
        ),
    )
    said: dict[str, Decision] = {
        "composed": PanelComposed(
            adapter="panel", alias="agent", base="letters", panel=panel, cycle=cycle,
            sha256=sha256(exact_json(panel.model_dump(mode="json"))),
        ),
        "staged": AdapterStaged(
            adapter="panel", replicas=("http://one/v1",), distance=0, from_base=1
        ),
    }  # fmt: skip
    Decisions(app).take_all(said, "somebody", origin="panel")
    return row_of(app, "panel")


def read_targets(app: App) -> list[str]:
    """The targets of the last report."""
    report: GateReport = of_type(app, GateDecided)[-1].report
    return [target.name for target in report.targets]


def test_a_panel_is_judged_on_what_its_cycle_wrote(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the skills that its cycle's jobs taught: what else it wrote is another's."""
    recorded(monkeypatch, target=(0.4, 0.8), other=(0.5, 0.9))
    written = {TARGET: [TARGET] * 5, OTHER: [OTHER] * 4}
    member = trained(large, unchanged, base, written, skill=TARGET)
    panel = compose(large, member, derive_id("cycle", "agent", "letters", "1"))
    examined(large, panel, base, COMMAND, RECORDED)
    assert row_of(large, "panel").state == "gated"
    assert read_targets(large) == [TARGET]
    own = [data for data in rollouts(large) if data.policy == "panel"]
    counts = Counter(data.task.capability for data in own if data.task)
    passed = sum(bool(data.success) for data in own if data.member and data.member.skill)
    with large.reading() as connection:
        shares = read_member_shares(connection, "panel")
        assert read_member_shares(connection, "letters") == []
    assert {(share.capability, share.member, share.skill, share.rollouts) for share in shares} == {
        (TARGET, member.adapter, TARGET, counts[TARGET]),
        (OTHER, "letters", None, counts[OTHER]),
    }
    assert MemberShare(
        capability=TARGET, member=member.adapter, skill=TARGET, purpose="evaluate",
        rollouts=counts[TARGET], judged=counts[TARGET], passed=passed,
    ) in shares  # fmt: skip


def test_a_panel_that_a_person_composed_is_judged_on_the_kinds_of_its_members(
    large: App, base: Path, unchanged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, target=(0.4, 0.9), other=(0.95, 0.5))
    panel = compose(large, staged(large, unchanged, base, TARGET))
    examined(large, panel, base, COMMAND, RECORDED)
    assert read_targets(large) == [TARGET]
    gate = row_of(large, "panel").gate
    assert gate is not None
    verdicts = {check.name: check.verdict for check in gate.checks}
    assert verdicts[f"slice {OTHER}"] == "FAIL", "what its router spoils counts"


def test_a_panel_plays_with_the_files_of_its_members(
    large: App, base: Path, unchanged: Path
) -> None:
    member = staged(large, unchanged, base, TARGET)
    panel = compose(large, member)
    assert panel.composition is not None
    with large.reading() as connection:
        player = build_player(connection, panel)
        assert isinstance(player, PlayerWithMembers)
        files = Adapter(name=member.adapter, folder=member.path, sha256=member.sha256)
        assert (player.members, player.router) == ({TARGET: files}, panel.composition.router)
        gone = panel.composition.model_copy(
            update={"members": (PanelMember(skill=TARGET, adapter="gone"),)}
        )
        with pytest.raises(NoSuchPart, match="has gone as a part, which is not known"):
            build_player(connection, replace(panel, composition=gone))
    agent = RECORDED.model_copy(update={"checkpoint": base})
    runner = RecordedRunner(large.home / "trials")
    beside = CandidateEvaluation(large, runner, agent, member, panel)
    assert beside.digest != CandidateEvaluation(large, runner, agent, member, None).digest
