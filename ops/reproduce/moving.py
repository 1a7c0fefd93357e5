"""Jobs whose endpoint moved before they ended."""

from daemon.solver import journal
from daemon.solver.job import ADAPTER, JOURNAL, OUTCOME
from daemon.solver.spec import digest, read_spec
from events.jobs import EndpointSource, EndpointUser, JobSpec
from ops.reproduce.commands import Folder, write_model
from ops.reproduce.settings import Served


def move_jobs(plan: Served, folder: Folder) -> None:
    """Give the jobs that have not ended the plan's addresses: their specs, and the journals of
    those that were begun. Raises BadSpec, BadJournal, OSError."""
    for path in sorted(folder.jobs.glob("*.json")):
        job = folder.job(path.stem)
        if (job / ADAPTER).exists() or (job / OUTCOME).exists():
            continue
        spec = read_spec(path)
        changed = set_addresses(plan, spec)
        if changed != spec:
            # The journal first: killed between both, this is done again.
            journal.rename(job / JOURNAL, digest(spec), digest(changed))
            write_model(path, changed)


def set_addresses(plan: Served, spec: JobSpec) -> JobSpec:
    """Return the spec with the plan's addresses, of its source and of users behind an endpoint."""
    source = spec.sampler.source
    if isinstance(source, EndpointSource):
        source = source.model_copy(update={"url": plan.base_url})
    user = {"url": plan.addresses.user}
    pools = tuple(
        pool.model_copy(update={"user": pool.user.model_copy(update=user)})
        if isinstance(pool.user, EndpointUser)
        else pool
        for pool in spec.pools
    )
    sampler = spec.sampler.model_copy(update={"source": source})
    return spec.model_copy(update={"sampler": sampler, "pools": pools})
