"""Paths of adapters in events and rows, and their folders on this machine. A home may be restored
or moved to another path, so paths in it are stored relative to it. Older events have absolute
paths. Such a path into a folder `adapters` means this home's adapter of that name, because names of
adapters are never used twice. Any other absolute path is used as it is. A job's program has no
settings and reads the home's folders from an environment variable."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

FOLDER: Final = "adapters"
"""Folder of the adapters in a home, unless the setting `serving.adapters` names another."""
PATHS_VARIABLE: Final = "KINTSUGI_ADAPTER_PATHS"
"""Environment variable of a job's program with the JSON list [home, folder of adapters]."""


@dataclass(frozen=True, slots=True)
class AdapterPaths:
    """The paths of one home's adapters."""

    home: Path
    store: Path

    @classmethod
    def of_job(cls, environment: Mapping[str, str]) -> Self | None:
        """Return a job's paths; None for a job started by hand."""
        text = environment.get(PATHS_VARIABLE)
        return None if text is None else cls(*map(Path, json.loads(text)))

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables from which `of_job` reads these paths in a job."""
        return {PATHS_VARIABLE: json.dumps([str(self.home), str(self.store)])}

    def record(self, folder: Path) -> str:
        """Return a folder's path for an event: relative to the home if the folder is in it."""
        inside = folder.is_relative_to(self.home)
        return str(folder.relative_to(self.home) if inside else folder)

    def locate(self, path: str) -> Path:
        """Return the folder that a recorded path means on this machine."""
        folder = Path(os.path.normpath(self.home / path))  # An absolute path stays as it is.
        is_ours = folder.parent in (self.store, self.home / FOLDER)
        if is_ours or folder.parent.name not in (self.store.name, FOLDER):
            return folder
        return self.store / folder.name


def locate_for_job(path: str) -> Path:
    """Return the folder of a path in this job's spec; in a job started by hand, the path itself."""
    paths = AdapterPaths.of_job(os.environ)
    return Path(path) if paths is None else paths.locate(path)
