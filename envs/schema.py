"""A tool's description for a model: OpenAI's format of functions, with JSON Schema for arguments.

Guarantee: a schema that validates here has the shape that endpoints and our agents accept. Not
covered: keywords of JSON Schema that no tool here uses; they are ignored.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Shape(BaseModel):
    """Base of the checked parts of a schema. Fields without a check are kept and ignored."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


_Type = Literal["string", "integer", "number", "boolean", "array", "object", "null"]


class JsonSchema(_Shape):
    """The keywords of JSON Schema that models see."""

    type: _Type | list[_Type] | None = None
    description: str | None = None
    enum: Annotated[list[Any], Field(min_length=1)] | None = None
    properties: dict[str, "JsonSchema"] = {}
    required: list[str] = []
    items: "JsonSchema | bool | None" = None
    any_of: Annotated[list["JsonSchema"] | None, Field(alias="anyOf", min_length=1)] = None
    definitions: Annotated[dict[str, "JsonSchema"], Field(alias="$defs")] = {}

    @model_validator(mode="after")
    def _check_properties(self) -> Self:
        for name in self.required:
            if name not in self.properties:
                raise ValueError(f"{name!r} is required and is no property")
        return self


class Parameters(JsonSchema):
    """The arguments of a tool."""

    type: Literal["object"]


class Function(_Shape):
    """A tool in the form in which a model sees it."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, Field(min_length=1)]
    parameters: Parameters


class ToolSchema(_Shape):
    """OpenAI's object around a function."""

    type: Literal["function"]
    function: Function
