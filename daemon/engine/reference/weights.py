"""Path of the reference policy's files, in a module that can be imported without torch."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
