"""An agent that is instrumented with OpenTelemetry and asks another provider: the real SDK."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from producers.spans import conventions as genai

TOOLS = [{"type": "function", "name": "get_user", "parameters": {"type": "object"}}]
ASKED = {"role": "user", "parts": [{"type": "text", "content": "Who is U12?"}]}
CALLED = {
    "role": "assistant",
    "parts": [
        {"type": "tool_call", "id": "c1", "name": "get_user", "arguments": {"user_id": "U12"}}
    ],
}
RESULT = {
    "role": "tool",
    "parts": [{"type": "tool_call_response", "id": "c1", "response": {"name": "Rosa"}}],
}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "U12 is Rosa."}]}


class Agent:
    """Spans of an agent, kept until they are sent."""

    def __init__(self) -> None:
        self._finished = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._finished))
        self.tracer: Tracer = self._provider.get_tracer("agent")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Those that have ended."""
        return self._finished.get_finished_spans()

    @contextmanager
    def chat(self, **told: Any) -> Iterator[Span]:
        """A call of the model."""
        attributes = {genai.OPERATION: "chat", genai.REQUEST_MODEL: "gpt-x", **told}
        with self.tracer.start_as_current_span("chat gpt-x", attributes=attributes) as span:
            yield span

    def talk(self, session: str) -> None:
        """Two calls of the model with a tool between them, in one trace."""
        with self.tracer.start_as_current_span("invoke_agent shop"):
            self.says(session, [ASKED], CALLED, "tool_calls")
            with self.tracer.start_as_current_span("execute_tool get_user"):
                pass
            self.says(session, [ASKED, CALLED, RESULT], SAID, "stop")

    def says(self, session: str, asked: list[Any], said: Any, finish: str) -> None:
        """One answer."""
        told = {
            genai.CONVERSATION: session,
            genai.RESPONSE_MODEL: "gpt-x-2026",
            genai.INSTRUCTIONS: json.dumps([{"type": "text", "content": "Be brief."}]),
            genai.INPUT: json.dumps(asked),
            genai.OUTPUT: json.dumps([{**said, "finish_reason": finish}]),
            genai.TOOLS: json.dumps(TOOLS),
            genai.INPUT_TOKENS: 30 * len(asked),
            genai.OUTPUT_TOKENS: 7,
            "gen_ai.request.temperature": 0.2,
        }
        with self.chat(**told):
            pass

    def fails(self, session: str) -> None:
        """A call that its provider refuses."""
        told = {genai.CONVERSATION: session, genai.INPUT: json.dumps([ASKED])}
        with self.chat(**told) as span:
            span.set_status(Status(StatusCode.ERROR, "the provider is overloaded"))

    def sent(self, url: str, key: str | None = None, gzip: bool = False) -> bool:
        """Whether the SDK's own exporter could send them all to `url`, without `/v1/traces`."""
        exporter = OTLPSpanExporter(
            endpoint=f"{url}/v1/traces",
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            compression=Compression.Gzip if gzip else Compression.NoCompression,
            timeout=20,
        )
        try:
            return exporter.export(self.spans) is SpanExportResult.SUCCESS
        finally:
            exporter.shutdown()  # type: ignore[no-untyped-call]
