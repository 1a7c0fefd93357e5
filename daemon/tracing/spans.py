"""Data of a span, independent of how it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from producers.spans.trace_context import TraceContext

Attributes = Mapping[str, Any]
"""Texts, numbers, booleans, and lists of texts; None is left out."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one moment within a span."""

    name: str
    time: str
    """Time in RFC 3339."""
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """An operation with a start and an end."""

    name: str
    context: TraceContext
    parent: str | None
    """Id of the parent span in the same trace."""
    began: str
    ended: str
    attributes: Attributes
    kind: Literal["internal", "client"] = "internal"
    links: tuple[TraceContext, ...] = ()
    happened: tuple[SpanEvent, ...] = ()
    error: str | None = None
    """Kind of error, in a word, if any."""
