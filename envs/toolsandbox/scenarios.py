"""Load ToolSandbox's scenarios from a file of JSON Lines that the operator names.

    scenarios.jsonl    a scenario a line: name, categories, tool_allow_list, starting_messages,
                       starting_databases, milestones and minefields with their edges
    export_info.json   beside it, optional: when the scenarios were exported, `exported_at_unix`
    tools.json         beside it, optional: the published schemas, which the agent then sees

A scenario's clock shows the time of the export, to which its times are relative. Without
export_info.json it shows a minute after the newest row.

Guarantee: a damaged line is reported with its number and a remedy, and the others are loaded. Not
covered: the variants with scrambled names, types and descriptions of tools.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from envs.milestones.graph import (
    CONVERSATION,
    INSUFFICIENT,
    Constraint,
    Extractor,
    Measure,
    Milestone,
    MilestoneGraph,
    Milestones,
    Relation,
)
from envs.tau2.benchmark import VARIABLE, InvalidBenchmark, NoBenchmark
from envs.toolsandbox.device.arguments import EARLIEST, LATEST, Latitude, Longitude
from envs.toolsandbox.device.state import COLUMNS, CONTACT, MESSAGING, REMINDER, SETTING, Row
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.similarity import can_assign_rows, parse_traces
from envs.toolsandbox.snapshots import AGENT, ROW_COLUMNS, USER
from envs.users import STOP
from events.canonical import exact_json, sha256

SCENARIOS: Final = "scenarios"
"""Name of the split that holds the scenarios of a file."""

_MARKER: Final = "to complete:"
"""Words before the wish in the instructions for the original's user simulator."""
_HIDDEN: Final = re.compile(r"should (be|say)|leak|\bdo(n't| not| you)\b|^you do\b", re.IGNORECASE)
"""Pattern of sentences of the wish that a user must not say: expected answers and prohibitions."""
_SENTENCE: Final = re.compile(r"(?<=[.?!])\s*(?=[A-Z])")

_SYSTEM: Final = "SYSTEM"
_A_MINUTE: Final = 60.0
_SEED_BITS: Final = 60

_RELATIONS: Final[Mapping[str, Relation]] = {
    "snapshot_similarity": "snapshot",
    "addition_similarity": "addition",
    "removal_similarity": "removal",
    "update_similarity": "update",
    "tool_trace_dependant_similarity": "trace_dependent",
    "guardrail_similarity": "guardrail",
}

_MEASURES: Final[
    Mapping[str, Literal["exact", "contains", "rouge_l", "tool_trace", "close", "any"]]
] = {
    "column_exact_match_similarity": "exact",
    "column_contains_similarity": "contains",
    "column_rouge_l_similarity": "rouge_l",
    "column_tool_trace_exact_match_similarity": "tool_trace",
    "column_close_similarity": "close",
    "column_one_similarity": "any",
}

_ROUGE: Final = Measure(name="rouge_l")
_DEFAULTS: Final[Mapping[str, Mapping[str, Measure]]] = {
    CONVERSATION: {"content": _ROUGE, "tool_trace": Measure(name="tool_trace")},
    SETTING: {},
    CONTACT: {"relationship": _ROUGE},
    MESSAGING: {"content": _ROUGE},
    REMINDER: {"content": _ROUGE},
}
"""Table -> column -> its measure if the scenario names none. Other columns use `exact`."""


class _Raw(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Said(_Raw):
    sender: str
    recipient: str
    content: str
    visible_to: list[str] | None = None

    @property
    def is_example(self) -> bool:
        """Whether it is one of the examples that the original shows to its user simulator."""
        return self.visible_to == [USER]


class _Function(_Raw):
    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, raw: Any) -> Any:
        """Rename the field kwargs to options, because a pydantic field cannot be called kwargs."""
        return {**raw, "options": raw.get("kwargs", {})} if isinstance(raw, dict) else raw


class _Call(_Raw):
    tool_name: str
    arguments: dict[str, Any]


class _Constraint(_Raw):
    database: str
    constraint: _Function
    reference_milestone: int | None = None
    target_rows: list[dict[str, Any]] | None = None
    column_similarity: dict[str, _Function] | None = None

    def parse(self) -> Constraint:
        """Convert to a Constraint. Raise ValueError."""
        known = ROW_COLUMNS if self.database == CONVERSATION else COLUMNS.get(self.database)
        if known is None:
            raise ValueError(f"there is no table {self.database!r}; use {', '.join(_DEFAULTS)}")
        rows = tuple(self.target_rows or ())
        if len(rows) > 1 and not can_assign_rows():
            raise ValueError(
                f"a milestone has {len(rows)} target rows, which needs scipy; install it with pip "
                "install 'kintsugi[toolsandbox]'"
            )
        for row in rows:
            if unknown := sorted(set(row) - set(known)):
                raise ValueError(f"table {self.database} has no column {unknown[0]!r}")
            _check_traces(row.get("tool_trace"))
        measures = {
            name: _parse_measure(function)
            for name, function in (self.column_similarity or {}).items()
        }
        extractor: Extractor | None = self.constraint.options.get("extractor")
        return Constraint(
            table=self.database,
            relation=_look_up(_RELATIONS, self.constraint.name, "constraint"),
            rows=rows,
            columns={**_DEFAULTS[self.database], **measures},
            reference=self.reference_milestone,
            fill_to=self.constraint.options.get("fill_to"),
            extractor=extractor,
        )


class _Guardrail(_Raw):
    database: str
    reference_milestone: int


class _Milestone(_Raw):
    snapshot_constraints: list[_Constraint]
    guardrails: list[_Guardrail] = []

    def parse(self) -> Milestone:
        """Convert to a Milestone. Raise ValueError."""
        guardrails = (
            Constraint(
                table=item.database, relation="guardrail", reference=item.reference_milestone
            )
            for item in self.guardrails
            if _look_up(COLUMNS, item.database, "table")
        )
        constraints = (constraint.parse() for constraint in self.snapshot_constraints)
        return Milestone(constraints=(*constraints, *guardrails))


class _Setting(_Raw):
    device_id: str
    cellular: bool
    wifi: bool
    location_service: bool
    low_battery_mode: bool
    latitude: Latitude
    longitude: Longitude


class _Contact(_Raw):
    person_id: str
    name: str | None = None
    phone_number: str | None = None
    relationship: str | None = None
    is_self: bool = False


_Time = Annotated[float, Field(ge=EARLIEST, le=LATEST)]
"""POSIX seconds within the range of the tools' timestamps."""


class _Messaging(_Raw):
    message_id: str
    sender_person_id: str | None = None
    sender_phone_number: str | None = None
    recipient_person_id: str | None = None
    recipient_phone_number: str | None = None
    content: str | None = None
    creation_timestamp: _Time | None = None


class _Reminder(_Raw):
    reminder_id: str
    content: str | None = None
    creation_timestamp: _Time | None = None
    reminder_timestamp: _Time | None = None
    latitude: Latitude | None = None
    longitude: Longitude | None = None


class _Databases(_Raw):
    SETTING: Annotated[list[_Setting], Field(min_length=1, max_length=1)]
    CONTACT: list[_Contact] = []
    MESSAGING: list[_Messaging] = []
    REMINDER: list[_Reminder] = []

    @property
    def newest(self) -> float:
        """The newest row's time in POSIX seconds, or the beginning of 2025 without times."""
        rows: list[_Messaging | _Reminder] = [*self.MESSAGING, *self.REMINDER]
        times = [row.creation_timestamp or 0.0 for row in rows]
        return max(times, default=0.0) or 1_735_689_600.0


class _Scenario(_Raw):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=120)]
    categories: Annotated[list[str], Field(min_length=1)]
    tool_allow_list: list[str] | None = None
    starting_messages: list[_Said]
    starting_databases: _Databases
    milestones: list[_Milestone] = []
    milestone_edges: list[tuple[int, int]] = []
    minefields: list[_Milestone] = []
    minefield_edges: list[tuple[int, int]] = []


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A scenario read from a file."""

    name: str
    categories: tuple[str, ...]
    """ToolSandbox's categories, in lower case."""
    policy: str
    opening: str
    wish: str
    """The wish in the instructions for the user simulator."""
    aloud: str
    """The part of the wish that a user may say."""
    tools: tuple[str, ...]
    rows: Mapping[str, Sequence[Row]]
    now: float
    milestones: Milestones
    seed: int
    """Seed made from the digest of the line, so that a changed line is another task."""
    schemas: Mapping[str, Mapping[str, Any]]
    """Tool -> its published schema, if tools.json has one."""

    @property
    def capability(self) -> str:
        """The most telling one of its categories."""
        return next((name for name in _BY_WEIGHT if name in self.categories), self.categories[0])


_BY_WEIGHT: Final = (
    INSUFFICIENT,
    "state_dependency",
    "canonicalization",
    "multiple_user_turn",
    "multiple_tool_call",
    "single_tool_call",
)


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The scenarios in a file, and its damaged lines."""

    path: Path
    scenarios: Mapping[str, LoadedScenario]
    """Name -> scenario, in the order of the file."""
    damaged: tuple[str, ...]
    """For each line that could not be loaded, a sentence with the reason."""


def find_file(benchmarks: Path) -> Path:
    """Return the path of the scenarios in the operator's folder."""
    return benchmarks / "toolsandbox" / "scenarios.jsonl"


def load(path: Path | None) -> ScenarioFile:
    """Read scenarios. Raise NoBenchmark if the file is missing, InvalidBenchmark if it has none."""
    if path is None:
        raise NoBenchmark(
            f"no file of scenarios is named; give --scenarios FILE, or let {VARIABLE} name the "
            "folder that holds toolsandbox/scenarios.jsonl"
        )
    exported, schemas = _read_export_time(path), _read_schemas(path)
    scenarios: dict[str, LoadedScenario] = {}
    damaged: list[str] = []
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        try:
            scenario = _parse(line, exported, schemas)
        except (ValueError, RecursionError) as error:
            damaged.append(f"{path}, line {number}, is no scenario: {_explain(error)}")
            continue
        if scenarios.setdefault(scenario.name, scenario) is not scenario:
            damaged.append(
                f"{path}, line {number}: the name {scenario.name!r} is there twice; give each its "
                "own"
            )
    if not scenarios:
        why = damaged[0] if damaged else f"{path} has no lines"
        raise InvalidBenchmark(f"{why}; export the scenarios again")
    return ScenarioFile(path, scenarios, tuple(damaged))


def _parse(
    line: str, exported: float | None, schemas: Mapping[str, Mapping[str, Any]]
) -> LoadedScenario:
    """Read the scenario in a line. Raise ValueError (including pydantic's ValidationError)."""
    raw = _Scenario.model_validate_json(line)
    known = ToolSandboxTools.tools().keys() | {"end_conversation"}
    allowed = known if raw.tool_allow_list is None else raw.tool_allow_list
    if unknown := sorted(set(allowed) - known):
        raise ValueError(f"there is no tool {unknown[0]!r}; correct tool_allow_list")
    milestones = Milestones(
        wanted=_parse_graph(raw.milestones, raw.milestone_edges),
        forbidden=_parse_graph(raw.minefields, raw.minefield_edges),
    )
    wish = _find_said(raw, _SYSTEM, USER).rpartition(_MARKER)[2].strip()
    return LoadedScenario(
        name=raw.name,
        categories=tuple(category.lower() for category in raw.categories),
        policy=_find_said(raw, _SYSTEM, AGENT),
        opening=_find_said(raw, USER, AGENT),
        wish=wish,
        aloud=_select_aloud(wish),
        tools=tuple(sorted(set(allowed) - {"end_conversation"})),
        rows=raw.starting_databases.model_dump(),
        now=raw.starting_databases.newest + _A_MINUTE if exported is None else exported,
        milestones=milestones,
        seed=int(sha256(exact_json([line, exported])), 16) >> (256 - _SEED_BITS),
        schemas=schemas,
    )


def _parse_graph(
    milestones: Sequence[_Milestone], edges: Sequence[tuple[int, int]]
) -> MilestoneGraph:
    return MilestoneGraph(
        milestones=tuple(milestone.parse() for milestone in milestones), edges=tuple(edges)
    )


def _find_said(raw: _Scenario, sender: str, recipient: str) -> str:
    """Return the first message from sender to recipient that is no example. Raise ValueError."""
    for said in raw.starting_messages:
        if (said.sender, said.recipient) == (sender, recipient) and not said.is_example:
            if not said.content.strip() or STOP in said.content:
                raise ValueError(f"the message from {sender} to {recipient} is empty or a stop")
            return said.content
    raise ValueError(f"starting_messages has no message from {sender} to {recipient}; add it")


def _select_aloud(wish: str) -> str:
    sentences = [s.strip() for s in _SENTENCE.split(wish)]
    aloud = " ".join(s for s in sentences if s and not _HIDDEN.search(s))
    aloud = re.sub(r"^Ask User B (to )?", "", aloud).replace("(User A's) ", "")
    return aloud or wish


def _parse_measure(function: _Function) -> Measure:
    raw = function.options.get("atol_dict") or {}
    if isinstance(raw, dict):
        tolerance = {name: None if v == float("inf") else v for name, v in raw.items()}
        return Measure(name=_look_up(_MEASURES, function.name, "measure"), tolerance=tolerance)
    raise ValueError(f"atol_dict is {raw!r}; give an object of names and numbers")


def _look_up(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; use one of {', '.join(known)}")
    return known[name]


def _check_traces(target: Any) -> None:
    """Raise ValueError if a target trace is neither a call nor a list of calls."""
    if target is None:
        return
    calls = parse_traces(target)
    if not calls:
        raise ValueError(f"tool_trace {target!r} allows no call, so nothing reaches it; name one")
    for call in calls:
        _Call.model_validate(call)


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}; correct or remove the line"
    return str(error)[:300]


def _read_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from lines
    except OSError as error:
        raise NoBenchmark(
            f"{path} cannot be read ({error.strerror}); name a file of exported scenarios"
        ) from error


def _read_beside(path: Path, name: str) -> Any:
    beside = path.with_name(name)
    try:
        return json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidBenchmark(
            f"{beside} is no JSON that can be read: {error}; mend or remove it"
        ) from error


def _read_export_time(path: Path) -> float | None:
    info = _read_beside(path, "export_info.json")
    if info is None:
        return None
    time = info.get("exported_at_unix") if isinstance(info, dict) else None
    if not isinstance(time, int | float) or not EARLIEST <= time <= LATEST:
        raise InvalidBenchmark(
            f"{path.with_name('export_info.json')} has no number exported_at_unix between "
            f"{EARLIEST:.0f} and {LATEST:.0f}; correct or remove it"
        )
    return float(time)


def _read_schemas(path: Path) -> dict[str, Mapping[str, Any]]:
    tools = _read_beside(path, "tools.json")
    try:
        return {tool["function"]["name"]: tool for tool in tools or ()}
    except (KeyError, TypeError) as error:
        raise InvalidBenchmark(
            f"{path.with_name('tools.json')} is no list of schemas in OpenAI's format; correct or "
            "remove it"
        ) from error
