"""Decrypt, in a job, the bodies of tasks that were made from persons' sessions; seal their
rollouts.

Such a task is ciphertext in the job's directory (envs/sealed_body.py). The tokens of its rollouts
are encrypted too, because they begin with the person's words. Task ids, policies and verdicts stay
readable. The role `work` passes the keys in memory alone. Guarantee: no words of a sealed task are
written in readable form; keys are never written. Not covered: weights, and a running job's memory.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Final

from pydantic import ConfigDict, TypeAdapter

from daemon.solver.trajectory import Trajectory, Turn
from envs.sealed_body import find_seal, open_body
from envs.task import BadDefinition
from events.errors import BadRecord, KintsugiError
from events.privacy.sealing import Key, seal, unseal

KEYS: Final = "KINTSUGI_JOB_KEYS"
"""Environment variable of a job's process: JSON, key id -> secret in base64."""

# The learner refuses -inf, so stored rollouts must be able to hold it.
_TURNS: TypeAdapter[tuple[Turn, ...]] = TypeAdapter(
    tuple[Turn, ...], config=ConfigDict(ser_json_inf_nan="constants")
)


class BadSeal(KintsugiError):
    """A sealed rollout was changed, or the variable with keys is malformed."""


def write_keys(keys: Iterable[Key]) -> dict[str, str]:
    """Return the environment variables that pass `keys` to a job's process, without persons'
    names."""
    secrets = {key.id: base64.b64encode(key.secret).decode() for key in keys}
    return {KEYS: json.dumps(secrets, sort_keys=True)} if secrets else {}


def take_keys(variables: MutableMapping[str, str]) -> dict[str, Key]:
    """Remove the keys from the environment variables, so that child processes do not get them, and
    return key id -> key. Raise BadSeal."""
    text = variables.pop(KEYS, "")
    try:
        secrets = json.loads(text) if text else {}
        return {
            name: Key(name, "", base64.b64decode(secret, validate=True))
            for name, secret in secrets.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise BadSeal(f"variable {KEYS} is not as the role work writes it; unset it") from None


class Seals:
    """Bodies of a job's tasks, and the keys of the sealed bodies."""

    def __init__(self, bodies: Mapping[str, str], keys: Mapping[str, Key]) -> None:
        """Take `bodies`: task id -> text of its body, or the ciphertext of a sealed body."""
        self._bodies = bodies
        self._keys = keys
        seals = {task: find_seal(text) for task, text in bodies.items()}
        self._keyids = {task: keyid for task, keyid in seals.items() if keyid is not None}

    @property
    def lost(self) -> tuple[str, ...]:
        """Sealed tasks whose key is missing: their person was erased, or the key store lacks it."""
        return tuple(sorted(t for t, keyid in self._keyids.items() if keyid not in self._keys))

    def find_body(self, task: str) -> str | None:
        """Return the text of a task's body; None if it is missing or cannot be opened."""
        text = self._bodies.get(task)
        try:
            return None if text is None else open_body(task, text, self._keys.get)
        except BadDefinition:
            return None

    def close(self, trajectories: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
        """Return trajectories as the journal stores them: turns on sealed tasks encrypted."""
        return tuple(
            item if (key := self._find_key(item.task)) is None else _close(item, key)
            for item in trajectories
        )

    def open(self, trajectories: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
        """Return stored trajectories with their turns decrypted. Raise BadSeal if that fails."""
        return tuple(
            item if item.sealed is None else _open(item, self._find_key(item.task))
            for item in trajectories
        )

    def _find_key(self, task: str) -> Key | None:
        """Return a sealed task's key; None for an open task. Raise BadSeal for a missing key."""
        keyid = self._keyids.get(task)
        if keyid is None:
            return None
        if keyid not in self._keys:
            raise BadSeal(f"task {task} is sealed, and its key {keyid} was not handed over")
        return self._keys[keyid]


NO_SEALS: Final = Seals({}, {})


def _close(trajectory: Trajectory, key: Key) -> Trajectory:
    turns = zlib.compress(_TURNS.dump_json(trajectory.turns))
    sealed = base64.b64encode(seal(key, turns, _context(trajectory))).decode()
    return replace(trajectory, turns=(), sealed=sealed)


def _open(trajectory: Trajectory, key: Key | None) -> Trajectory:
    assert trajectory.sealed is not None, "others are not opened"
    if key is None:
        raise BadSeal(f"rollout {trajectory.rollout} is sealed, and its task is not")
    try:
        sealed = base64.b64decode(trajectory.sealed, validate=True)
        turns = zlib.decompress(unseal(key, sealed, _context(trajectory)))
        return replace(trajectory, turns=_TURNS.validate_json(turns), sealed=None)
    except (BadRecord, binascii.Error, zlib.error, ValueError) as error:
        raise BadSeal(
            f"rollout {trajectory.rollout} of the journal cannot be opened with key {key.id}: the "
            "file was damaged; remove it to begin again"
        ) from error


def _context(trajectory: Trajectory) -> str:
    return f"rollout {trajectory.rollout} of task {trajectory.task}"
