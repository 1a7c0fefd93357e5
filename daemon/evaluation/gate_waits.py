"""What a gate waits for where that says nothing of who is judged: an endpoint, or a setting.

    judge_exit(ended, folder, means, attempts)   what the end of a trial's attempt means
    find_checkpoint_trouble(checkpoint)          why no trial can begin; None where one can
    GateWait(...)                                a gate that waits, as status shows it

A trial whose users' endpoint has no tokens left (`models.user.max_tokens`), or whose checkpoint is
none or of another base (`agents.checkpoint`), ends with the name of that setting. Its gate waits,
and its next attempt begins when the setting has another value, or the checkpoint other files.
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
    """That of the adapter."""
    says: str
    """Why, as a sentence with the remedy."""
    waits_for: tuple[str, ...] = ()
    """URLs that have to answer before it goes on: that of the model which plays its users."""
    setting: str | None = None
    """Setting that has to be mended before it goes on; None where it is none."""


@dataclass(frozen=True, slots=True)
class SettingFault:
    """A trial's attempt that ended because of a setting."""

    setting: str
    reason: str
    is_due: bool
    """Whether the setting, or the checkpoint that it names, changed since, so that the next attempt
    may begin."""


class Means(StrictModel):
    """What a trial is played with that does not decide who plays."""

    # A plan has more.
    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str
    user: ModelUser | None = None


def judge_exit(
    ended: Exit, folder: Path, means: Means, attempts: int
) -> Over | Again | SettingFault:
    """Return what the end of an attempt of the trial in a folder means, where so many in a row may
    bring nothing; `means` are those that the next attempt has."""
    result = ended.result
    if result is None or result.setting is None:
        return verdict(ended, attempts)
    changed = Means.model_validate_json((folder / SPEC).read_bytes()) != means
    if result.setting == CHECKPOINT_SETTING:
        changed = changed or _is_newer(Path(means.checkpoint), folder)
    return SettingFault(result.setting, result.reason or "", changed)


def _is_newer(checkpoint: Path, folder: Path) -> bool:
    """Whether files of a checkpoint were written or replaced after the last attempt of a trial."""
    if not checkpoint.is_dir():
        return False
    ended = read_mtime(JobFolder(folder).attempts()[-1].with_suffix(".out"))
    return any(path.stat().st_ctime > ended for path in (checkpoint, *checkpoint.iterdir()))


def find_checkpoint_trouble(checkpoint: Path, alias: str) -> str | None:
    """Return why no trial of an agent can begin on this machine; None where its checkpoint is
    there."""
    if (checkpoint / _CONFIG).is_file():
        return None
    return (
        f"the checkpoint of {alias} in the setting agents is {checkpoint}, which has no {_CONFIG}; "
        "correct it, and its gate goes on"
    )


def describe_endpoint_wait(adapter: str, user: EndpointUser) -> str:
    """Return what the next attempt of a trial waits for where a model behind an endpoint plays its
    users."""
    return (
        f"no trial of {adapter} runs: the next one waits for a slot (jobs.slots), and until the "
        f"model of its users answers at {user.url}"
    )
