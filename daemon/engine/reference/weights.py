"""Where the reference policy lies: a module of its own, so that code that only names one does not
wait for torch."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
