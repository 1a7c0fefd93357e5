"""Rounds whose parts do not stop one another (roles `work` and `schedule`).

    breaks = Breaks()
    breaks.attempt("jobs", lambda: advance(app, runner))      returns, whatever broke in it
    breaks.failed, breaks.troubles                            what did, to be counted and told

What is wrong with log or tables is wrong for every part, and is raised (`HALTS`).
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
"""What is wrong with log or tables, and so with whatever reads them."""

PARTS: Final = (
    "sessions", "canaries", "holdouts", "jobs", "cycles", "users", "gateways", "keys", "replicas",
    "repairs",
)  # fmt: skip
"""The parts of a round of the role `work`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Breaks:
    """What broke off in a round and did not stop the rest of it."""

    failed: list[str] = field(default_factory=list)
    """The kinds of parts that did, once for each time."""
    troubles: list[str] = field(default_factory=list)
    """Why, as sentences."""

    def attempt(self, kind: str, part: Callable[[], None], name: str = "") -> None:
        """Do a part of a round; whatever breaks in it is kept here. `name` says which part of its
        kind it is. Raises what HALTS names."""
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
