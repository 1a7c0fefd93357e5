"""docs/events.md says what the code says, field by field."""

import re
from pathlib import Path

import pytest

from events import codec, envelope
from events.envelope import Envelope, to_headers
from events.gate import (
    AfterError,
    AnswerEvidence,
    Check,
    EvidenceReport,
    GatePlan,
    GateReport,
    Rate,
    TargetReport,
)
from events.jobs import PanelRouter, RouterOption
from events.learning import (
    BadTries,
    ClientPart,
    Directive,
    JobParent,
    JobRound,
    Mastered,
    ModeChoice,
    PatternFinding,
    PlanName,
    PoolShare,
    Quota,
    RepairEdit,
    SealedDefinition,
    SkillContrast,
    SkillLabels,
    Verified,
)
from events.lifecycle import NEXT
from events.log import Headers
from events.messages import Action, Message, StrictModel, ToolCall
from events.registry import REGISTRY
from events.rollouts import (
    EventData,
    HoldoutDraw,
    Labels,
    MemberChoice,
    RolloutVerdict,
    Task,
    ToolRoles,
)
from events.serving import (
    AdapterMerge,
    ArmCounts,
    LiveEvidence,
    MergedAdapter,
    Panel,
    PanelMember,
    PassRates,
    RouteShare,
    UserFaultRate,
)
from events.streams import MAX_INLINE_BODY_BYTES, MAX_VALUE_BYTES, STREAMS
from events.synthesis.faults import FaultOpinion
from events.synthesis.plans import Plan, PlanRevision, PlanRule

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
PARTS: dict[str, type[StrictModel]] = {
    "Task": Task, "Labels": Labels, "ToolRoles": ToolRoles,
    "RolloutVerdict": RolloutVerdict,
    "Directive": Directive, "BadTries": BadTries, "Quota": Quota, "ModeChoice": ModeChoice,
    "ClientPart": ClientPart,
    "Mastered": Mastered,
    "PatternFinding": PatternFinding, "Verified": Verified, "SealedDefinition": SealedDefinition,
    "RepairEdit": RepairEdit, "Message": Message,
    "ToolCall": ToolCall, "Action": Action,
    "RouteShare": RouteShare, "HoldoutDraw": HoldoutDraw,
    "PassRates": PassRates, "LiveEvidence": LiveEvidence,
    "ArmCounts": ArmCounts,
    "GateReport": GateReport, "AfterError": AfterError,
    "EvidenceReport": EvidenceReport, "AnswerEvidence": AnswerEvidence,
    "GatePlan": GatePlan, "Check": Check,
    "Rate": Rate, "TargetReport": TargetReport, "JobParent": JobParent,
    "JobRound": JobRound, "PoolShare": PoolShare,
    "SkillContrast": SkillContrast, "SkillLabels": SkillLabels,
    "AdapterMerge": AdapterMerge, "MergedAdapter": MergedAdapter,
    "Panel": Panel, "PanelMember": PanelMember, "PanelRouter": PanelRouter,
    "RouterOption": RouterOption, "MemberChoice": MemberChoice,
    "PlanName": PlanName, "Plan": Plan, "PlanRule": PlanRule, "PlanRevision": PlanRevision,
    "FaultOpinion": FaultOpinion, "UserFaultRate": UserFaultRate,
}  # fmt: skip


def section(title: str) -> str:
    """The text below a heading, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/events.md has no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in `text`, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0].startswith("`")]


def first_column(text: str) -> list[str]:
    return [row[0].strip("`") for row in rows(text)]


def test_every_stream_is_described() -> None:
    described = [[cell.strip("`") for cell in row] for row in rows(section("Streams"))]
    assert described == [
        [stream.name, stream.topic, str(stream.partitions), stream.keyed_by, stream.retention]
        for stream in STREAMS.values()
    ]


def written(headers: Headers) -> set[str]:
    return {name for name, _ in headers}


def test_every_header_is_described() -> None:
    least = Envelope(id="i", type="T", version=1, subject="s")
    most = Envelope(
        id="i", type="T", version=1, subject="s", time=envelope.utc_now(), cause="c",
        correlation="r", traceparent="t", epoch=1, person="p", keyid="k",
    )  # fmt: skip
    described = {row[0].strip("`"): row[1] for row in rows(section("Envelope"))}
    always = {name for name, when in described.items() if when == "yes"}
    on_kafka = {name for name, when in described.items() if when == "on Kafka"}
    assert always == written(to_headers(least, codec.FRAMED))
    assert set(described) - on_kafka == written(to_headers(most, codec.FRAMED))
    assert on_kafka == {envelope.HEADER_SOURCE, envelope.HEADER_SEQUENCE}


def test_the_limits_and_content_types_are_the_codecs() -> None:
    assert f"above {MAX_INLINE_BODY_BYTES:,} bytes" in PAGE
    assert f"at most\n{MAX_VALUE_BYTES:,}" in PAGE
    assert codec.FRAMED in PAGE
    assert codec.PLAIN in PAGE


def test_exactly_the_types_of_the_registry_have_a_section() -> None:
    headings = set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE))
    assert headings - set(PARTS) == set(REGISTRY.types)


@pytest.mark.parametrize("name", sorted(REGISTRY.types))
def test_every_field_of_a_type_is_described(name: str) -> None:
    data_type: type[EventData] = REGISTRY.types[name]
    text = section(name)
    assert first_column(text) == [field for field in data_type.model_fields if field != "content"]
    found = re.search(r"^Content: (.*)\.$", text, re.MULTILINE)
    described = re.findall(r"`(\w+)`", found[1]) if found else []
    assert described == content_fields(data_type)


def content_fields(data_type: type[EventData]) -> list[str]:
    if "content" not in data_type.model_fields:
        return []
    return list(codec._content_model(data_type).model_fields)


@pytest.mark.parametrize("name", sorted(REGISTRY.types))
def test_a_type_stands_below_its_stream(name: str) -> None:
    stream = REGISTRY.types[name].STREAM
    assert PAGE.index(f"## Types on `{stream}`") < PAGE.index(f"### {name}\n")
    if stream == "rollouts":
        assert PAGE.index(f"### {name}\n") < PAGE.index("## Types on `learning`")


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_field_of_a_part_is_described(name: str) -> None:
    assert first_column(section(name)) == list(PARTS[name].model_fields)


def test_the_states_of_an_adapter_are_the_codes() -> None:
    described = {
        state.strip("`"): set(re.findall(r"`(\w+)`", followers))
        for state, _, followers in rows(section("States of an adapter"))
    }
    assert described == {state: set(followers) for state, followers in NEXT.items()}
    assert list(described) == list(NEXT)
