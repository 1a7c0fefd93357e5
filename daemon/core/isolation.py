"""Run parts of a round so that a failure does not stop the others (roles `work`, `schedule`).
Errors of log or tables concern every part, and are raised (`HALTS`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from consumers.database import DatabaseError
from consumers.runner import FoldVersionMismatch
from events.errors import (
    AheadOfLog,
    KintsugiError,
    LogCorrupt,
    LogTruncated,
    LogUnavailable,
    SchemaAhead,
)
from events.privacy.keys import KeysUnavailable

HALTS: Final = (
    AheadOfLog, LogCorrupt, LogTruncated, LogUnavailable, FoldVersionMismatch, SchemaAhead,
    DatabaseError,
)  # fmt: skip

PARTS: Final = (
    "sessions", "canaries", "holdouts", "jobs", "cycles", "users", "gateways", "keys", "replicas",
    "repairs",
)  # fmt: skip
"""The parts of a round of the role `work`, in order."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Breaks:
    """Failures of parts in a round; the other parts ran all the same."""

    failed: list[str] = field(default_factory=list)
    """Names of the failed parts, one entry per failure."""
    troubles: list[str] = field(default_factory=list)

    def attempt(self, kind: str, part: Callable[[], None], name: str = "") -> None:
        """Run a part of a round and store its error here. Raises the errors in HALTS."""
        why: str | None = None
        try:
            part()
        except KeysUnavailable as error:
            why = str(error)  # stops those that need a key, and no others
        except HALTS:
            raise
        except KintsugiError as error:
            why = str(error)
        except Exception as error:  # the boundary of a part: told and counted, the others go on
            log.exception("%s broke off", name or kind)
            why = f"{type(error).__name__}: {error}"
        if why is None:
            return
        self.failed.append(kind)
        self.troubles.append(f"{name or kind} broke off: {why}; the next round tries again")
