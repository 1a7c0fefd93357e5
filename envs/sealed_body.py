"""The body of a task that is made of a person's session, encrypted with that person's key.

    task = salt_task(task, key)              under an id that reveals nothing about guesses
    stored = seal_body(task, key)            the sealed body in an event
    text = write_sealed(task.environment, stored)    its text in tables and files
    open_body(task.id, text, find_key)       the text of the body; None if the person was erased

Read bodies through `open_body`, which returns unsealed ones unchanged. The id is the SHA-256 of the
body with its salt, and checks the opened body (task.py). The salt follows from the key, so the same
task has the same id again. Without the key, nobody can test a guess of the body by its id.
"""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

from envs.task import (
    MAKER,
    BadDefinition,
    TaskDefinition,
    describe_origin,
    read_body,
    write_body,
)
from events.canonical import exact_json
from events.errors import BadRecord
from events.learning import SealedDefinition
from events.privacy.sealing import Key, digest_with_key, seal, unseal

FindKey = Callable[[str], Key | None]
"""Function that returns the key with an id, or None if its person was erased."""

_SEALED: Final = "sealed"
"""Field that holds the ciphertext. No unsealed body has it."""
_KEYID: Final = "keyid"


def salt_task(task: TaskDefinition, key: Key) -> TaskDefinition:
    """Return the task with a salt and its id by content. The salt depends only on the content and
    the person's key, not on an earlier salt."""
    body = task.model_copy(update={"salt": None}).dump_body()
    salt = digest_with_key(key, exact_json(body))
    return task.model_copy(update={"salt": salt}).name_by_content()


def seal_body(task: TaskDefinition, key: Key) -> SealedDefinition:
    """Encrypt the body of a salted task, bound to the task's id."""
    assert task.salt is not None, "salt_task comes first"
    body = seal(key, write_body(task.dump_body()).encode(), _context(task.id))
    return SealedDefinition(
        keyid=key.id,
        body=base64.b64encode(body).decode(),
        operator=task.operator,
        source=None if task.operator is None else task.source,
        rollout=task.source_rollout,
    )


def write_sealed(environment: str, stored: SealedDefinition) -> str:
    """Return the text of a sealed body: JSON with environment, key id, ciphertext and origin."""
    fields: dict[str, Any] = {
        "environment": environment,
        _KEYID: stored.keyid,
        _SEALED: stored.body,
    }
    if stored.operator is not None:
        fields |= describe_origin(stored.model_dump(include={"operator", "source", "rollout"}))
    return write_body(fields)


def find_seal(text: str) -> str | None:
    """Return the id of the key with which a body's text is sealed, or None if it is not sealed."""
    # Most texts are long and not sealed; this saves parsing them.
    if f'"{_SEALED}":' not in text:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    sealed = isinstance(fields, dict) and isinstance(fields.get(_SEALED), str)
    return str(fields.get(_KEYID)) if sealed else None


def open_body(task: str, text: str, find_key: FindKey) -> str | None:
    """Return the text of a task's body, decrypted if sealed; None if its person was erased. Raise
    BadDefinition, which quotes nothing, for a wrong key or body. Pass on errors of `find_key`."""
    keyid = find_seal(text)
    if keyid is None:
        return text
    key = find_key(keyid)
    if key is None:
        return None
    try:
        sealed = base64.b64decode(json.loads(text)[_SEALED], validate=True)
        body = unseal(key, sealed, _context(task)).decode()
    except (BadRecord, binascii.Error, UnicodeDecodeError) as error:
        raise BadDefinition(f"the body of task {task} cannot be opened: {error}") from error
    try:
        read_body(task, body)
    except BadDefinition:
        # The reason is left out: it quotes the body, and errors are written into events.
        raise BadDefinition(
            f"the sealed body of task {task} is no body of it for this version; make the task "
            f"anew: {MAKER}"
        ) from None
    return body


def _context(task: str) -> str:
    return f"task {task}"
