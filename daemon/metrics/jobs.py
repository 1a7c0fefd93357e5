"""Training metrics, from the output of running jobs (role `work`). An agent's metrics show the last
update of its newest job until its next job has made one. The output is read without torch, so not
by the learner's models. Guarantee: the agent is the only label, and `MOST_AGENTS` bounds it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from consumers.reads import learning
from daemon.jobs.attempts import JobFolder, read_mtime
from daemon.jobs.runner_factory import jobs_of
from daemon.jobs.updates import newest_update
from daemon.metrics.families import Family, Sheet
from daemon.metrics.loop import MOST_AGENTS
from daemon.metrics.observations import BackgroundCollector

if TYPE_CHECKING:
    from pathlib import Path

    from daemon.config.settings import Settings
    from daemon.core.app import App

_NEWEST: Final = 20
"""Number of newest jobs among which each agent's newest one is searched."""

_BY: Final = ("alias",)

OF_UPDATES: Final = {
    "reward": Family("kintsugi_job_reward_mean", "Of the rollouts of an update, shaped.", _BY),
    "success": Family("kintsugi_job_success_ratio", "Share of them that passed.", _BY),
    "kl": Family("kintsugi_job_kl_mean", "From the reference, k3, in nats; absent without.", _BY),
    "entropy": Family("kintsugi_job_entropy_mean", "Of a token, in nats.", _BY),
    "zero_advantage": Family(
        "kintsugi_job_zero_advantage_ratio", "Share of sequences that taught nothing.", _BY
    ),
    "informative": Family(
        "kintsugi_job_informative_ratio", "Share of groups with both verdicts.", _BY
    ),
    "mismatch_mean": Family(
        "kintsugi_job_logprob_gap_mean",
        "Of a token's log-probabilities, between learner and sampler, absolute, in nats.",
        _BY,
    ),
    "mismatch_max": Family("kintsugi_job_logprob_gap_max", "The largest of an update.", _BY),
    "gradient_norm": Family("kintsugi_job_gradient_norm", "Before clipping.", _BY),
    "malformed": Family(
        "kintsugi_job_malformed_ratio", "Share of rollouts with a malformed call.", _BY
    ),
}  # fmt: skip
"""Field of an update's metrics -> the metric it becomes."""

OF_PROGRESS: Final = {
    "steps": Family("kintsugi_job_steps", "Optimizer steps so far.", _BY),
    "rollouts": Family("kintsugi_job_rollouts", "Used of the budget.", _BY),
    "budget": Family("kintsugi_job_rollout_budget", "Of rollouts.", _BY),
}

_SAID: Final = Family(
    "kintsugi_job_heartbeat_timestamp_seconds", "When the job last said something.", _BY
)

JOBS: Final = (*OF_UPDATES.values(), *OF_PROGRESS.values(), _SAID)


def jobs(settings: "Settings") -> BackgroundCollector:
    """Return the collector of the training metrics."""
    folder = jobs_of(settings).folder
    return BackgroundCollector("jobs", JOBS, settings, lambda app, sheet: read(app, sheet, folder))


def read(app: "App", sheet: Sheet, folder: "Callable[[str], Path]") -> None:
    """Add the samples of `JOBS` to a sheet; `folder` returns the directory of a job."""
    with app.reading() as connection:
        rows = learning.jobs(connection, limit=_NEWEST)
    aliases: set[str] = set()
    for row in rows:
        attempts = JobFolder(folder(row.job)).attempts()
        if attempts and row.alias not in aliases and len(aliases) < MOST_AGENTS:
            aliases.add(row.alias)
            _say(sheet, row.alias, attempts)


def _say(sheet: Sheet, alias: str, attempts: "list[Path]") -> None:
    sheet.say(_SAID.name, read_mtime(attempts[-1].with_suffix(".out")), alias)
    updates = (newest_update(item) for item in reversed(attempts))
    update = next((item for item in updates if item is not None), None)
    if update is None:
        return
    for field, family in OF_PROGRESS.items():
        sheet.say(family.name, getattr(update, field), alias)
    for field, family in OF_UPDATES.items():
        sheet.say(family.name, update.metrics.get(field), alias)
