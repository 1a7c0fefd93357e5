"""The JSON Schema of an event type or a job's spec as it is frozen, without prose."""

from typing import Any

from pydantic import BaseModel

from events.rollouts import EventData


def schema_of(data_type: type[EventData]) -> dict[str, Any]:
    """What the newest version of a type accepts."""
    head = data_type.model_json_schema()
    content = head["properties"].pop("content", None)
    frozen = {"type": data_type.TYPE, "version": data_type.VERSION, "stream": data_type.STREAM}
    if content is None:
        return {**frozen, "head": _without_prose(head)}
    model = _content_model(data_type)
    return {
        **frozen,
        "head": _without_prose(_used(head)),
        "content": _without_prose(model.model_json_schema()),
    }


def plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a model that is no event accepts."""
    found: dict[str, Any] = _without_prose(model.model_json_schema())
    return found


def _content_model(data_type: type[EventData]) -> type[BaseModel]:
    annotation = data_type.model_fields["content"].annotation
    parts = getattr(annotation, "__args__", ())
    model: type[BaseModel]
    (model,) = (part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return model


def _used(schema: dict[str, Any]) -> dict[str, Any]:
    """Without definitions that only the content referred to."""
    definitions = schema.pop("$defs", {})
    found: dict[str, Any] = {}
    text = str(schema)
    while more := {
        name: body
        for name, body in definitions.items()
        if name not in found and f"'#/$defs/{name}'" in text
    }:
        found |= more
        text += str(more)
    return {**schema, "$defs": found} if found else schema


def _without_prose(schema: Any, names: bool = False) -> Any:
    """Without titles and descriptions; `names` says that the keys are names of fields or types."""
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_prose(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key not in ("title", "description")
    }
