"""Read a job's spec (events/jobs.py) from a file, and compute its identity."""

from pathlib import Path

from pydantic import ValidationError

from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.registry import first_problem


class BadSpec(KintsugiError):
    """The file is no spec of a job."""


def read_spec(path: Path) -> JobSpec:
    """Read the spec in a JSON file. Raises BadSpec, which names the field, and OSError."""
    try:
        return JobSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadSpec(f"{path} is no spec of a job: {first_problem(error)}") from None


def digest(spec: JobSpec) -> str:
    """Return the sha256 of the whole spec, defaults included."""
    return sha256(exact_json(spec.model_dump(mode="json")))
