"""The reference of the settings, from their declarations: names, values, defaults and meanings. A
meaning is the text below the setting in its class. It is read from the source only on request,
because pydantic would read it at each start of the program."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from textwrap import dedent
from typing import Any, Final

from pydantic import BaseModel

from daemon.config.settings import Settings, names, variable

_TYPES: Final = {
    "boolean": "true or false", "integer": "integer", "number": "number", "object": "table",
    "string": "text",
}  # fmt: skip
_FORMATS: Final = {"path": "path", "password": "secret"}
_LIMITS: Final = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
    "exclusiveMaximum": "below",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting."""

    setting: str
    """Dotted name, as in TOML."""
    variable: str
    values: str
    default: Any
    """Default as JSON; None where the setting is unset."""
    meaning: str


def list_settings() -> Iterator[SettingEntry]:
    """Yield every setting; a list of tables is one setting."""
    whole = schema()
    for name in names():
        *sections, last = name.split(".")
        model: Any = Settings
        for section in sections:
            model = model.model_fields[section].annotation
        declared = _properties(whole, model)[last]
        yield SettingEntry(
            name, variable(name), _values(declared), declared.get("default"),
            declared.get("description", ""),
        )  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file (TOML), with the settings' meanings."""
    whole = Settings.model_json_schema()
    for model in _models(Settings):
        for name, declared in _properties(whole, model).items():
            if meaning := _meanings(model).get(name):
                declared["description"] = meaning
    return whole


def _properties(whole: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    place = whole if model is Settings else whole["$defs"][model.__name__]
    properties: dict[str, Any] = place["properties"]
    return properties


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _models(kind)


@cache
def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return each setting's name -> the text below it, in its class or a base class."""
    meanings: dict[str, str] = {}
    for origin in reversed(model.__mro__):
        if issubclass(origin, BaseModel) and origin.__module__.split(".")[0] in (
            "daemon",
            "events",
        ):
            (parsed,) = ast.parse(dedent(inspect.getsource(origin))).body
            assert isinstance(parsed, ast.ClassDef)
            meanings |= dict(_texts(parsed))
    return meanings


def _texts(parsed: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for declared, text in zip(parsed.body, parsed.body[1:], strict=False):
        match declared, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                yield name, " ".join(meaning.split())


def _values(declared: dict[str, Any]) -> str:
    if "anyOf" in declared:
        return " or ".join(
            _values(option) for option in declared["anyOf"] if option.get("type") != "null"
        )
    if "enum" in declared:
        return ", ".join(map(str, declared["enum"]))
    if "const" in declared:
        return str(declared["const"])
    if declared.get("type") == "array":
        return f"list of {_values(declared.get('items', {}))}"
    kind = _FORMATS.get(declared.get("format", ""), _TYPES.get(declared.get("type", ""), "table"))
    limits = [f"{word} {declared[key]:g}" for key, word in _LIMITS.items() if key in declared]
    return ", ".join([kind, *limits])
