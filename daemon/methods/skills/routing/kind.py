"""The kind of job that trains a router: the check of its spec, and its run."""

from typing import Final

from daemon.solver.kind import JobKind, RunJob
from daemon.solver.spec import NotSupported
from events.jobs import JobSpec


def _check_router(spec: JobSpec) -> None:
    """Raise NotSupported if the spec asks for something that a router's job does not do."""
    unread = {
        "warm_start": spec.warm_start,
        "a parent, which its head is not fitted from": spec.router is not None
        and spec.router.form == "head"
        and spec.parent,
        "rounds": spec.rounds,
        "checkpoints": spec.checkpoints,
        "references of a pool": [pool for pool in spec.pools if pool.references],
        "the user of a pool": [pool for pool in spec.pools if pool.user],
        "the reward of a pool": [pool for pool in spec.pools if pool.reward != "verdict"],
    }
    for what, value in unread.items():
        if value:
            raise NotSupported(
                f"job {spec.job} teaches a router, which is supervised and plays nothing, and its "
                f"spec has {what}; leave it out"
            )
    assert spec.router is not None, "the contract sees to it"
    shown = {pool.skill for pool in spec.pools}
    for option in spec.router.options:
        # If every kind of the traffic needs a skill, no task shows the option for none.
        if option.skill is not None and option.skill not in shown:
            raise NotSupported(
                f"no pool of job {spec.job} has tasks of option {option.label} "
                f"({option.skill or 'no skill'}); add one, so that the router learns to choose it"
            )


def _load_run() -> RunJob:
    from daemon.methods.skills.routing.job import run

    return run


ROUTER: Final = JobKind(_check_router, _load_run)
