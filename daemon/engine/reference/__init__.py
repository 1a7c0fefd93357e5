"""The reference policy: a tiny model that serves shop well, and has known weaknesses."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
"""Its weights: here, so that who only names them does not wait for torch."""
