"""Path of the reference policy, apart so that code that only names it does not wait for torch."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
