"""A span as data: what is known of it before anybody says how it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from producers.spans.trace_context import TraceContext

Attributes = Mapping[str, Any]
"""Text, numbers, truth values, and lists of texts; None is left out."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something at one moment within a span."""

    name: str
    time: str
    """RFC 3339."""
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from one moment to another."""

    name: str
    context: TraceContext
    parent: str | None
    """Id of the span around it, in the same trace."""
    began: str
    ended: str
    attributes: Attributes
    kind: Literal["internal", "client"] = "internal"
    links: tuple[TraceContext, ...] = ()
    happened: tuple[SpanEvent, ...] = ()
    error: str | None = None
    """What went wrong, in a word; None where nothing did."""
