"""Waits of a gate for an endpoint or a setting, which tell nothing of the candidate.

A trial without tokens for its users' endpoint (`models.user.max_tokens`), or with a missing or
wrong checkpoint (`agents.checkpoint`), ends with that setting's name. Its next attempt begins when
the setting, or the checkpoint's files, changed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict

from daemon.jobs.attempts import JobFolder, read_mtime
from daemon.jobs.runner import CHECKPOINT_SETTING, SPEC, Again, Exit, Over, verdict
from events.jobs import EndpointUser, ModelUser
from events.messages import StrictModel

_CONFIG: Final = "config.json"


@dataclass(frozen=True, slots=True)
class GateWait:
    """A gate that waits."""

    adapter: str
    alias: str
    role: Literal["agent", "user"]
    """Role of the adapter."""
    says: str
    """Reason as a sentence with the remedy."""
    waits_for: tuple[str, ...] = ()
    """URLs that have to answer first: the users' model."""
    setting: str | None = None
    """Setting to mend first, if any."""


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A trial's attempt that a setting ended."""

    setting: str
    reason: str
    is_due: bool
    """Whether the setting or its checkpoint changed since, so that the next attempt may begin."""


class Means(StrictModel):
    """Means of a trial that do not decide the players."""

    # A plan has more.
    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str
    user: ModelUser | None = None


def judge_exit(
    ended: Exit, folder: Path, means: Means, attempts: int
) -> Over | Again | SettingFault:
    """Return the meaning of an attempt's end; `attempts` in a row may fail, `means` are the
    next's."""
    result = ended.result
    if result is None or result.setting is None:
        return verdict(ended, attempts)
    changed = Means.model_validate_json((folder / SPEC).read_bytes()) != means
    if result.setting == CHECKPOINT_SETTING:
        changed = changed or _is_newer(Path(means.checkpoint), folder)
    return SettingFault(result.setting, result.reason or "", changed)


def _is_newer(checkpoint: Path, folder: Path) -> bool:
    """Return whether files of a checkpoint are newer than a trial's last attempt."""
    if not checkpoint.is_dir():
        return False
    ended = read_mtime(JobFolder(folder).attempts()[-1].with_suffix(".out"))
    return any(path.stat().st_ctime > ended for path in (checkpoint, *checkpoint.iterdir()))


def find_checkpoint_trouble(checkpoint: Path, alias: str) -> str | None:
    """Return why no trial can begin here without its checkpoint; None if it is there."""
    if (checkpoint / _CONFIG).is_file():
        return None
    return (
        f"the checkpoint of {alias} in the setting agents is {checkpoint}, which has no {_CONFIG}; "
        "correct it, and its gate goes on"
    )


def describe_endpoint_wait(adapter: str, user: EndpointUser) -> str:
    """Return the sentence on a trial that waits for the users' endpoint."""
    return (
        f"no trial of {adapter} runs: the next one waits for a slot (jobs.slots), and until the "
        f"model of its users answers at {user.url}"
    )
