"""Long texts of spans in JSON are read as protobuf's own parser reads short ones."""

import base64
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from producers.spans.otlp import JSON, PROTOBUF, BadTraces, ClientSpan, spans

LENGTHS = [1, 1 << 14, (1 << 14) + 1, 1 << 17]


def read(span: dict[str, Any]) -> ClientSpan:
    ids = {"traceId": f"{1:032x}", "spanId": f"{2:016x}"}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [ids | span]}]}]}
    (only,) = spans(json.dumps(document).encode(), JSON)
    return only


def attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


@pytest.mark.parametrize("length", LENGTHS)
def test_texts_of_any_length_are_read_wherever_they_stand(length: int) -> None:
    text, other = "ä\N{GRINNING FACE}" * length, '"\\' * length
    content = base64.b64encode(text.encode()).decode()
    span = read(
        {
            "attributes": [
                attribute("text", stringValue=text),
                attribute(other, stringValue="x"),
                attribute("list", arrayValue={"values": [{"stringValue": other}]}),
                attribute("map", kvlistValue={"values": [attribute("k", stringValue=text)]}),
                attribute("bytes", bytesValue=content),
            ],
            "events": [{"name": text, "attributes": [attribute("text", stringValue=other)]}],
            "status": {"code": 2, "message": text},
        }
    )
    assert span.attributes == {
        "text": text, other: "x", "list": [other], "map": {"k": text}, "bytes": content,
    }  # fmt: skip
    assert span.events == ((text, {"text": other}),)
    assert span.error == text


@pytest.mark.parametrize("length", LENGTHS)
def test_half_of_a_pair_is_refused_in_a_text_of_any_length(length: int) -> None:
    with pytest.raises(BadTraces, match="send OTLP"):
        read({"attributes": [attribute("text", stringValue="x" * length + "\ud800")]})


@pytest.mark.parametrize("length", LENGTHS)
def test_a_number_that_is_a_long_text_is_refused(length: int) -> None:
    with pytest.raises(BadTraces, match="send OTLP"):
        read({"startTimeUnixNano": "x" * length})


@pytest.mark.parametrize("length", LENGTHS)
def test_both_forms_of_a_request_are_read_alike(length: int) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.attributes.add(key="text").value.string_value = "a\0b" * length
    first, second = (
        spans(request.SerializeToString(), PROTOBUF),
        spans(MessageToJson(request).encode(), JSON),
    )
    assert first == second
