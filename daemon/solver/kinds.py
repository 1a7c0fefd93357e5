"""The kinds of jobs: `agent` is the core's own, methods.py has the others."""

from collections.abc import Mapping
from typing import Final

from daemon.solver.kind import JobKind, RunJob
from daemon.solver.methods import METHOD_KINDS
from daemon.solver.spec import check_pools, check_ranges
from events.errors import KintsugiError
from events.jobs import JobSpec


class UnknownKind(KintsugiError):
    """No method here teaches what a job asks for."""


def _load_agent() -> RunJob:
    from daemon.solver.job import run

    return run


KINDS: Final[Mapping[str, JobKind]] = {
    "agent": JobKind(check=lambda _: None, load_run=_load_agent),
    **METHOD_KINDS,
}
"""A spec's `teaches` -> its kind."""


def find_kind(spec: JobSpec) -> JobKind:
    """Return the kind of a job. Raise UnknownKind."""
    kind = KINDS.get(spec.teaches)
    if kind is None:
        raise UnknownKind(
            f"job {spec.job} teaches the {spec.teaches}, which nothing here does (it teaches "
            f"{', '.join(KINDS)}); install the version that requested it, or call the job off: "
            f"kintsugi jobs cancel {spec.job}"
        )
    return kind


def check_supported(spec: JobSpec) -> None:
    """Raise NotSupported or UnknownKind if this learner does not do what a spec asks for."""
    check_ranges(spec)
    find_kind(spec).check(spec)
    check_pools(spec)
