"""The fold of what a person makes of a failure pattern: `kintsugi patterns pin|mute|release`.

The word stays on the pattern's rows until it is released. It counts for the patterns that the agent
has when it is given, on every base.
"""

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
    """Pin, mute or release the pattern that an action names; nothing for any other action."""
    if data.action not in _OVERRIDES:
        return
    override = _OVERRIDES[data.action]
    reason = None if override is None else data.reason
    alias, pattern = data.arguments.get("alias", ""), data.arguments.get("pattern", "")
    override_pattern(batch, alias, pattern, override, reason)
