"""The labels of a rollout: from its words, or from the event's head if its words are sealed.

The process that closes a person's session can read it and writes the labels into the head
(daemon/sessions/closing.py). The fold never opens sealed words, so the tables do not depend on
existing keys and a rebuild after an erasure makes the same rows. Later rules therefore never label
a sealed rollout anew. Of each rule, the first `FINDINGS` findings up to `EVIDENCE_CHARACTERS` of
JSON are kept, with the number of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumers.diagnosis.anchors import select_tools, sign_request
from consumers.diagnosis.detectors import dedup_key, diagnose
from consumers.diagnosis.facts import Finding, agent_calls
from consumers.diagnosis.rules import tool_loops
from envs.catalog import ToolCatalog, catalog, restore_catalog
from events.canonical import exact_json
from events.codec import Event
from events.errors import BadRecord
from events.rollouts import Labels, RolloutEnded

FINDINGS: Final = 200
"""Most findings that are kept of one rule."""

EVIDENCE_CHARACTERS: Final = 100_000
"""Most characters of one rule's evidence, which quotes arguments of any length."""


@dataclass(frozen=True, slots=True)
class LabelResult:
    """The labels and the evidence of a rollout by the rules."""

    labels: Labels
    evidence: dict[str, list[Finding]] | None
    """Rule -> findings, which quote the rollout. None if the rollout is sealed or no rule holds."""


def label_rollout(data: RolloutEnded) -> LabelResult:
    """Label a rollout by the rules, from its messages and calls."""
    diagnosis = diagnose(data, _find_catalog(data))
    messages = data.content.messages if data.content else ()
    calls = [call for call in agent_calls(messages) if call.is_own]
    # The diagnosis of a failure has the loops already.
    failed = data.success is False
    loops = diagnosis.evidence.get("tool_loop", []) if failed else tool_loops(calls)
    labels = Labels(
        messages=len(messages),
        tool_calls=len(calls),
        tool_errors=sum(call.item.failed for call in calls),
        malformed_calls=sum(isinstance(call.item.call.arguments, str) for call in calls),
        loops=len(loops),
        category=diagnosis.category,
        categories=diagnosis.categories,
        pivot=diagnosis.pivot,
        trace_key=dedup_key(data),
        tools=tuple(select_tools(call.name for call in calls)),
        words=sign_request(messages),
    )
    kept = {name: _first(findings) for name, findings in diagnosis.evidence.items()}
    return LabelResult(labels, kept if diagnosis.category else None)


def _find_catalog(data: RolloutEnded) -> ToolCatalog | None:
    """Return the event's tool catalog, else the known one of its environment, or None."""
    environment = (data.task.environment if data.task else None) or ""
    if data.tool_roles is not None:
        return restore_catalog(environment, data.tool_roles, data.known_tools or ())
    return catalog(environment)


def _first(findings: Sequence[Finding]) -> list[Finding]:
    """Return the first findings within the bounds, and a last one with the number left out."""
    kept: list[Finding] = []
    characters = 0
    for finding in findings[:FINDINGS]:
        characters += len(exact_json(finding))
        if characters > EVIDENCE_CHARACTERS:
            break
        kept.append(finding)
    left_out = len(findings) - len(kept)
    return [*kept, {"left_out": left_out}] if left_out else kept


def label_event(event: Event, data: RolloutEnded) -> LabelResult:
    """Label a rollout by its words. If the words are sealed or in a blob, return the labels in the
    event's head. Raise BadRecord for a sealed rollout whose head has no labels."""
    if not event.sealed and (event.blob is None or data.labels is None):
        return label_rollout(data)
    if data.labels is None:
        raise BadRecord(
            f"rollout {data.rollout} is sealed and carries no labels; only who closes sessions "
            "(kintsugi work) writes sealed rollouts"
        )
    return LabelResult(data.labels, None)
