"""The fold of `kintsugi patterns pin|mute|release`. An override stays on the pattern's rows of all
present bases until it is released."""

from collections.abc import Mapping
from typing import Final

from consumers.batch import Batch
from consumers.diagnosis.priority import Override
from consumers.diagnosis.rounds import override_pattern
from events.serving import OperatorActed

PIN: Final = "patterns pin"
MUTE: Final = "patterns mute"
RELEASE: Final = "patterns release"
"""Actions of a person; each names the `alias` and the `pattern`."""

_OVERRIDES: Final[Mapping[str, Override | None]] = {PIN: "pinned", MUTE: "muted", RELEASE: None}


def apply_pattern_override(data: OperatorActed, batch: Batch) -> None:
    """Pin, mute or release the pattern that an action names; ignore other actions."""
    if data.action not in _OVERRIDES:
        return
    override = _OVERRIDES[data.action]
    reason = None if override is None else data.reason
    alias, pattern = data.arguments.get("alias", ""), data.arguments.get("pattern", "")
    override_pattern(batch, alias, pattern, override, reason)
