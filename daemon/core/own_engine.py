"""The engine that `kintsugi up` runs for a home, for the commands beside it. `up` writes the
address into the home's lock, and each start may write another. A server there is the home's engine
only if it shows a mark of this home (start_mark.py): another home's engine may have the port by
now."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from daemon.core.start_mark import mint, whose

LOCK: Final = "up.lock"
"""File in a home, locked by its `up`: the process number, then its engine's URL."""

_REMEDY: Final = "start kintsugi up, or name an engine with --upstream"


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """The engine that the home's `kintsugi up` runs."""

    url: str | None
    """URL that ends in `/v1`; None if the engine does not answer."""
    trouble: str = ""
    """Reason why the engine does not answer, with the remedy."""

    @classmethod
    def read(cls, home: Path) -> Self:
        """Return the engine of a home as it is now."""
        try:
            lines = (home / LOCK).read_text().splitlines()
        except FileNotFoundError:
            lines = []
        if len(lines) < 2:
            return cls(
                None,
                "no engine is named, neither by --upstream nor in the setting upstreams, and "
                f"kintsugi up has run none for {home}: {_REMEDY}",
            )
        url = lines[1]
        owner = whose(f"{url.removesuffix('/v1')}/health", mint(home))
        if owner == "home":
            return cls(url)
        state = "gives no answer" if owner == "nobody" else "has its port taken by another process"
        return cls(None, f"the engine of kintsugi up at {url} {state}: {_REMEDY}")
