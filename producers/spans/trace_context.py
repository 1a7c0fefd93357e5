"""W3C trace context: the ids of a span and its trace. An event's header names the span in which the
event was written. A span's first event (`CallStarted`, `CycleStarted`, `JobRequested`) names the
parent span instead. Span ids derive from their subjects, so all processes compute the same ids."""

import re
from dataclasses import dataclass
from typing import Final

from events.envelope import derive_id

_HEADER: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACE_DIGITS: Final = 32
_SPAN_DIGITS: Final = 16
_SAMPLED: Final = 1
"""Flag bit of a sampled trace."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of a span and its trace."""

    trace: str
    span: str
    sampled: bool = True
    """Whether the program that began the trace records it."""

    @property
    def header(self) -> str:
        """Return the value of the header `traceparent`."""
        return f"00-{self.trace}-{self.span}-{int(self.sampled):02x}"

    def child(self, *of: str) -> "TraceContext":
        """Return the span, in the same trace, of a thing named by `of` (kind, then name)."""
        return TraceContext(self.trace, span_id(*of), self.sampled)


def parse_traceparent(header: str | None) -> TraceContext | None:
    """Return the ids in a `traceparent` header; None if it is missing or invalid."""
    match = _HEADER.fullmatch(header) if header else None
    if match is None:
        return None
    trace, span, flags = match.groups()
    if not int(trace, 16) or not int(span, 16):
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED))


def root(*of: str) -> TraceContext:
    """Return the span of a thing named by `of` in a trace of its own."""
    return TraceContext(_digits("trace", *of)[:_TRACE_DIGITS], span_id(*of))


def span_id(*of: str) -> str:
    """Return the span id of a thing named by `of`: its kind, then its name."""
    return _digits("span", *of)[-_SPAN_DIGITS:]


def _digits(*parts: str) -> str:
    # A uuid5 has set bits in its middle, so neither half is all zeros.
    return derive_id(*parts).replace("-", "")
