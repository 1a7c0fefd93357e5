"""The event types, and upcasters of older versions: pure functions from one version's JSON to the
next version's. Only the newest version is validated. A version may only gain an optional field with
a default; any other change is a new version with an upcaster. schemas/ holds each version's frozen
JSON Schema and golden/ its bytes; tests check both."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from events import learning, rollouts, serving
from events.errors import BadRecord, SchemaAhead
from events.rollouts import EventData
from events.synthesis import faults, plans

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


class UnknownType(BadRecord):
    """An event type is not in the registry. A fold skips the event."""


@dataclass(frozen=True)
class Registry:
    """Event types by name, and the upcasters from each older version to the next."""

    types: Mapping[str, type[EventData]]
    upcasters: Mapping[tuple[str, int], Upcaster] = field(default_factory=dict)

    @staticmethod
    def of(types: Iterable[type[EventData]]) -> "Registry":
        """Return a registry of types that have no older versions."""
        return Registry({data_type.TYPE: data_type for data_type in types})

    def check(self, name: str, version: int) -> type[EventData]:
        """Return the type `name`. Raises UnknownType, or SchemaAhead for a newer version."""
        data_type = self.types.get(name)
        if data_type is None:
            raise UnknownType(f"event type {name!r} is not one of {', '.join(sorted(self.types))}")
        if version > data_type.VERSION:
            raise SchemaAhead(
                f"{name} version {version} was written by a newer kintsugi, this one knows up to "
                f"{data_type.VERSION}; upgrade this process"
            )
        return data_type

    def parse(self, name: str, version: int, raw: bytes) -> EventData:
        """Upcast stored JSON to the newest version and validate it. Raises BadRecord."""
        data_type = self.check(name, version)
        try:
            if version == data_type.VERSION:
                return data_type.model_validate_json(raw)
            return data_type.model_validate(self._upcast(name, version, data_type.VERSION, raw))
        except ValidationError as error:
            raise BadRecord(f"{name}: {first_problem(error)}") from error

    def _upcast(self, name: str, version: int, newest: int, raw: bytes) -> dict[str, Any]:
        try:
            data = json.loads(raw)
        except ValueError as error:
            raise BadRecord(f"{name} version {version} is no JSON: {error}") from error
        if not isinstance(data, dict):
            raise BadRecord(f"{name} version {version} is no JSON object: {str(data)[:80]!r}")
        upcast: dict[str, Any] = data
        for step in range(version, newest):
            upcaster = self.upcasters.get((name, step))
            if upcaster is None:
                raise BadRecord(f"{name} version {version} has no upcaster from version {step}")
            try:
                upcast = upcaster(upcast)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                # Upcasters run before validation, so the stored data may have any form.
                raise BadRecord(f"{name} version {version} cannot be upcast: {error!r}") from error
        return upcast


def first_problem(error: ValidationError) -> str:
    """Return pydantic's first error as a clause: field, message and value."""
    return describe_problem(error.errors(include_url=False)[0])


def describe_problem(problem: ErrorDetails) -> str:
    """Return an error of pydantic as a clause: field, message and value."""
    where = ".".join(str(part) for part in problem["loc"]) or "value"
    return f"{where}: {problem['msg']} (got {str(problem.get('input'))[:80]!r})"


REGISTRY: Final = Registry.of(
    (*rollouts.EVENTS, *learning.EVENTS, *serving.EVENTS, *plans.EVENTS, *faults.EVENTS)
)
