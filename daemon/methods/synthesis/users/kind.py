"""The kind of job that trains a user's model: the check of its spec, its dialogues and its run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.user_training.dialogue_file import DIALOGUES, write_dialogues
from daemon.solver.kind import JobKind, RunJob, ShownRollouts
from daemon.solver.spec import NotSupported
from events.jobs import JobSpec

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App


def _check_user(spec: JobSpec) -> None:
    """Raise NotSupported for fields that a user's job does not read. The oracle and the exact user
    play `references` for training and `tasks` to hold out; `warm_start` has the settings."""
    warm = spec.warm_start
    unread = {
        "grpo, which is true unless the spec says otherwise": spec.grpo,
        "rounds": spec.rounds,
        "checkpoints": spec.checkpoints,
        "siblings": warm and warm.siblings,
        "the user of a pool": [pool for pool in spec.pools if pool.user],
        "the reward of a pool": [pool for pool in spec.pools if pool.reward != "verdict"],
    }
    for what, value in unread.items():
        if value:
            raise NotSupported(
                f"job {spec.job} teaches the user, which is supervised and samples nothing, and "
                f"its spec has {what}; leave it out"
            )
    if unknown := [manner for manner in spec.manners if manner not in MANNERS]:
        raise NotSupported(
            f"job {spec.job} has tasks in the manner {unknown[0]!r}; there is {', '.join(MANNERS)}"
        )
    assert warm is not None, "the contract sees to it: there is no grpo"
    if warm.successes != spec.dialogues:
        raise NotSupported(
            f"job {spec.job} teaches the user, and its file of dialogues is "
            f"{str(spec.dialogues)[:12]}, while its successes are those of "
            f"{str(warm.successes)[:12]}; successes of its pools name the rollouts in its file of "
            "dialogues, so give both one sha256"
        )


def _load_run() -> RunJob:
    from daemon.methods.synthesis.user_training.job import run

    return run


def _read_shown(app: "App", connection: "Connection", rollouts: Sequence[str]) -> ShownRollouts:
    """Return the file of dialogues. Raise NotShown."""
    from daemon.methods.synthesis.users.dialogues import read_dialogues

    dialogues = read_dialogues(app, connection, rollouts)
    tasks = tuple(dialogue.task for dialogue in dialogues)
    return ShownRollouts(DIALOGUES, write_dialogues(dialogues), tasks)


USER: Final = JobKind(_check_user, _load_run, role="user", read_shown=_read_shown)
