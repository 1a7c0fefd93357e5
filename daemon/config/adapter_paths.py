"""Paths of adapters in events and rows, and their folders on this machine. A home may be restored
or moved to another path, so paths in it are stored relative to it. An older event's absolute path
into a folder named like the present one (`adapters`) means the adapter of that name in this home,
because names of adapters are never used twice. Any other absolute path means itself. Programs of
jobs read such paths without settings, by a variable."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

FOLDER: Final = "adapters"
"""Folder of the adapters in a home, unless the setting `serving.adapters` names another."""
PATHS_VARIABLE: Final = "KINTSUGI_ADAPTER_PATHS"
"""Variable of a job's program: home and folder of adapters, as a JSON list."""


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
        """Return the variables from which a job reads them (`of_job`)."""
        return {PATHS_VARIABLE: json.dumps([str(self.home), str(self.store)])}

    def record(self, folder: Path) -> str:
        """Return the path of a folder as events hold it."""
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
    """Return the folder of a path in this job's spec; the path itself for a job started by hand."""
    paths = AdapterPaths.of_job(os.environ)
    return Path(path) if paths is None else paths.locate(path)
