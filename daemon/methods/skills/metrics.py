"""Metrics of skills and of the members of panels.

The members' figures are reused for a minute, since they count every session of a panel's last day.
`slot` is `canary` or `promoted`. `skill` has few values: a comparison has at most ten, a panel at
most as many as its router has labels; `NO_SKILL` is the base where no member answers.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from consumers.methods.skills.measures import SkillState
from consumers.methods.skills.reads import read_skills
from daemon.methods.skills.choice import read_skill_status
from daemon.methods.skills.practice import PanelState, read_panel_states
from daemon.metrics.families import Family, Sheet
from daemon.metrics.loop import MethodMetrics
from daemon.metrics.recent import Recent
from events.envelope import utc_now
from events.lifecycle import State

if TYPE_CHECKING:
    from daemon.metrics.loop import LoopReading

NO_SKILL: Final = "(none)"
_GATE: Final = "kintsugi_member_gate_pass_ratio"

SKILLS: Final = (
    Family(
        "kintsugi_skill_contrast",
        "Of a selected skill: share of the failures to which it applies that lack it, less that of "
        "the successes.",
        ("alias", "skill"),
    ),
    Family(
        "kintsugi_skill_coverage_ratio",
        "Share of all failures that lack a selected skill.",
        ("alias", "skill"),
    ),
    Family(
        "kintsugi_skill_taught_info",
        "What is or was taught of a selected skill.",
        ("alias", "skill", "taught"),
    ),
    Family(
        "kintsugi_member_info",
        "Who answers a skill for a panel that has a share of the sessions.",
        ("alias", "slot", "skill", "adapter"),
    ),
    Family(
        "kintsugi_member_sessions",
        "Sessions of the last day that a member of such a panel answered.",
        ("alias", "slot", "skill"),
    ),
    Family(
        "kintsugi_member_session_ratio",
        "Share of the panel's sessions; absent where it has none.",
        ("alias", "slot", "skill"),
    ),
    Family(
        "kintsugi_member_judged_sessions",
        "Those of its sessions that were judged.",
        ("alias", "slot", "skill"),
    ),
    Family(
        "kintsugi_member_live_pass_ratio",
        "Share of these that passed; absent without one.",
        ("alias", "slot", "skill"),
    ),
    Family(
        _GATE,
        "pass^1 of a member and of the incumbent on the tasks of its skill, when it was measured "
        "last; absent for the base.",
        ("alias", "slot", "skill", "side"),
    ),
)


def build_metrics() -> MethodMetrics:
    """Return the metrics of skills and panels' members, and the function that reports them."""
    panels = Recent(lambda connection: read_panel_states(connection, utc_now()))

    def report(reading: "LoopReading", sheet: Sheet) -> None:
        _report_skills(reading, sheet)
        _report_members(sheet, panels.read(reading.connection), reading.aliases)

    return MethodMetrics(SKILLS, report)


def _report_skills(reading: "LoopReading", sheet: Sheet) -> None:
    connection = reading.connection
    for pair in reading.pairs:
        taught = read_skill_status(connection, reading.settings, pair, SkillState.SELECTED)
        for line in read_skills(connection, pair.alias, SkillState.SELECTED):
            if line.base != pair.base:
                continue
            sheet.say("kintsugi_skill_contrast", line.delta, pair.alias, line.skill)
            sheet.say("kintsugi_skill_coverage_ratio", line.coverage, pair.alias, line.skill)
            state = taught[line.skill].state
            sheet.say("kintsugi_skill_taught_info", 1, pair.alias, line.skill, state)


def _report_members(sheet: Sheet, panels: Iterable[PanelState], names: Collection[str]) -> None:
    for panel in panels:
        if panel.alias not in names:
            continue
        slot = "canary" if panel.state == State.CANARY else "promoted"
        for member in panel.members:
            labels = (panel.alias, slot, member.skill or NO_SKILL)
            sheet.say("kintsugi_member_info", 1, *labels, member.adapter or panel.base)
            sheet.say("kintsugi_member_sessions", member.sessions, *labels)
            sheet.say("kintsugi_member_session_ratio", member.share, *labels)
            sheet.say("kintsugi_member_judged_sessions", member.judged, *labels)
            if member.judged:
                rate = member.passed / member.judged
                sheet.say("kintsugi_member_live_pass_ratio", rate, *labels)
            if member.gate is not None:
                gate = member.gate
                sheet.say(_GATE, gate.candidate_pass, *labels, "candidate")
                sheet.say(_GATE, gate.incumbent_pass, *labels, "incumbent")
