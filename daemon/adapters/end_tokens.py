"""Finds a checkpoint's end tokens without torch. They are in `generation_config.json` (or else
`config.json`) and in `tokenizer_config.json`; the chat template writes one at the end of a turn.
Not covered: a template that composes its end token of parts; the engine refuses such a checkpoint
(daemon/engine/chat.py)."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

REMEDY: Final = (
    "set eos_token_id in its generation_config.json, or eos_token in tokenizer_config.json"
)

_MARK: Final = re.compile(r"<[|｜][^<>\s]{1,60}[|｜]>|<end_of_turn>|</s>")
"""Special tokens that end a turn, as templates write them."""


def describe_absence(checkpoint: Path, written: str | None = None, ids: Iterable[int] = ()) -> str:
    """Return the error text for a checkpoint without end token. Its template ends a turn with the
    token `written`, if known. `ids` are configured end tokens that its vocabulary lacks."""
    unknown = ", ".join(map(str, sorted(ids)))
    instead = f" (eos_token_id {unknown} is not in its vocabulary)" if unknown else ""
    ends = f" (its chat template ends a turn with {written})" if written else ""
    return (
        f"no end token is configured for the checkpoint {checkpoint}{instead}{ends}, so each of "
        f"its answers would run to max_tokens; {REMEDY}"
    )


def describe_other(checkpoint: Path, configured: str, written: str) -> str:
    """Return the error text for a checkpoint whose template ends a turn with another token."""
    return (
        f"the checkpoint {checkpoint} ends an answer with {configured}, and its chat template ends "
        f"a turn with {written}, so its answers would run past their end; {REMEDY}"
    )


class WrongEndToken(ValueError):
    """The configured end tokens cannot be read; the text has the remedy."""


def read_end_ids(checkpoint: Path) -> list[int]:
    """Return the end tokens' ids from a checkpoint's generation settings. Raises WrongEndToken."""
    own = checkpoint / "generation_config.json"
    file = own if own.exists() else checkpoint / "config.json"
    settings = _load(file)
    if settings is None and file == own:
        raise WrongEndToken(f"{own} holds no settings; correct it, or remove the file")
    named = (settings or {}).get("eos_token_id")
    ids = [token for token in (named if isinstance(named, list) else [named]) if token is not None]
    wrong = next((token for token in ids if type(token) is not int), None)
    if wrong is not None:
        raise WrongEndToken(
            f"eos_token_id in {file} holds {str(wrong)[:40]!r}, which is no id of a token; write "
            "the number of the token, or a list of numbers"
        )
    return ids


def find_trouble(checkpoint: Path) -> str | None:
    """Return why a checkpoint's answers would not end; None if they do or the files do not tell."""
    tokenizer = _read(checkpoint / "tokenizer_config.json")
    try:
        ids = read_end_ids(checkpoint)
    except WrongEndToken as error:
        return str(error)
    token = tokenizer.get("eos_token") or _read(checkpoint / "special_tokens_map.json").get(
        "eos_token"
    )
    content = token.get("content") if isinstance(token, dict) else token
    texts = {content} if isinstance(content, str) else set()
    known = _read(checkpoint / "tokenizer.json").get("added_tokens") or []
    by_id = {entry["id"]: entry["content"] for entry in known}
    texts |= {by_id[number] for number in ids if number in by_id}
    template = _read_template(checkpoint, tokenizer)
    marks = [mark for mark in _MARK.findall(template) if _closes(mark)]
    written = marks[0] if marks else None
    if not ids and not texts:
        return describe_absence(checkpoint, written)
    unknown = len(by_id.keys() & {*ids}) < len(ids) or written not in by_id.values()
    if written is None or unknown or "eos_token" in template or any(t in template for t in texts):
        return None
    return describe_other(checkpoint, " or ".join(sorted(texts)), written)


def _closes(mark: str) -> bool:
    return mark == "</s>" or "end" in mark or "eot" in mark


def _read(path: Path) -> dict[str, Any]:
    return _load(path) or {}


def _load(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _read_template(checkpoint: Path, tokenizer: dict[str, Any]) -> str:
    try:
        return (checkpoint / "chat_template.jinja").read_text()
    except (OSError, ValueError):
        return str(tokenizer.get("chat_template") or "")
