"""Reasons why a gate waits for an endpoint or a setting. They say nothing about the candidate.

A trial ends with a setting's name if its users' endpoint has no tokens left
(`models.user.max_tokens`), or the checkpoint is missing or wrong (`agents.checkpoint`). Its next
attempt begins when that setting, or a file of the checkpoint, has changed.
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
    """Why the gate of an adapter waits."""

    adapter: str
    alias: str
    role: Literal["agent", "user"]
    """Role of the adapter."""
    says: str
    """The reason and its remedy, as a sentence."""
    waits_for: tuple[str, ...] = ()
    """URLs that must answer first: the endpoint of the users' model."""
    setting: str | None = None
    """Setting that must be corrected first; None if no setting is at fault."""


@dataclass(frozen=True, slots=True)
class SettingFault:
    """The end of a trial's attempt by a wrong setting."""

    setting: str
    reason: str
    is_due: bool
    """Whether the setting or the checkpoint has changed, so that the next attempt may begin."""


class Means(StrictModel):
    """The part of a trial's plan that waits depend on: checkpoint and users' model."""

    # A plan has more fields.
    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str
    user: ModelUser | None = None


def judge_exit(
    ended: Exit, folder: Path, means: Means, attempts: int
) -> Over | Again | SettingFault:
    """Return the meaning of an attempt's end. The limit of failed attempts in a row is `attempts`;
    the next attempt would use `means`."""
    result = ended.result
    if result is None or result.setting is None:
        return verdict(ended, attempts)
    changed = Means.model_validate_json((folder / SPEC).read_bytes()) != means
    if result.setting == CHECKPOINT_SETTING:
        changed = changed or _is_newer(Path(means.checkpoint), folder)
    return SettingFault(result.setting, result.reason or "", changed)


def _is_newer(checkpoint: Path, folder: Path) -> bool:
    """Return whether a checkpoint's files changed after a trial's last attempt ended."""
    if not checkpoint.is_dir():
        return False
    ended = read_mtime(JobFolder(folder).attempts()[-1].with_suffix(".out"))
    return any(path.stat().st_ctime > ended for path in (checkpoint, *checkpoint.iterdir()))


def find_checkpoint_trouble(checkpoint: Path, alias: str) -> str | None:
    """Return a sentence if this machine lacks the agent's checkpoint; None if it has it."""
    if (checkpoint / _CONFIG).is_file():
        return None
    return (
        f"the checkpoint of {alias} in the setting agents is {checkpoint}, which has no {_CONFIG}; "
        "correct it, and its gate goes on"
    )


def describe_endpoint_wait(adapter: str, user: EndpointUser) -> str:
    """Return the sentence that the next trial waits for a slot and for the users' endpoint."""
    return (
        f"no trial of {adapter} runs: the next one waits for a slot (jobs.slots), and until the "
        f"model of its users answers at {user.url}"
    )
