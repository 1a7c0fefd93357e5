"""The kinds of jobs: `agent` is defined here, methods.py adds the methods' kinds."""

from collections.abc import Mapping
from typing import Final

from daemon.solver.kind import JobKind, RunJob
from daemon.solver.methods import METHOD_KINDS
from daemon.solver.spec import check_pools, check_ranges
from events.errors import KintsugiError
from events.jobs import JobSpec


class UnknownKind(KintsugiError):
    """No kind of job here teaches what the spec names in `teaches`."""


def _load_agent() -> RunJob:
    from daemon.solver.job import run

    return run


KINDS: Final[Mapping[str, JobKind]] = {
    "agent": JobKind(check=lambda _: None, load_run=_load_agent),
    **METHOD_KINDS,
}
"""Value of a spec's `teaches` -> the kind of job."""


def find_kind(spec: JobSpec) -> JobKind:
    """Return the kind of the spec's job. Raise UnknownKind."""
    kind = KINDS.get(spec.teaches)
    if kind is None:
        raise UnknownKind(
            f"job {spec.job} teaches the {spec.teaches}, which nothing here does (it teaches "
            f"{', '.join(KINDS)}); install the version that requested it, or call the job off: "
            f"kintsugi jobs cancel {spec.job}"
        )
    return kind


def check_supported(spec: JobSpec) -> None:
    """Check that this learner can do what the spec asks for. Raise NotSupported, UnknownKind."""
    check_ranges(spec)
    find_kind(spec).check(spec)
    check_pools(spec)
