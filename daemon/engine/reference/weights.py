"""Where the reference policy lies: a module of its own, so that who only names it does not wait for
torch."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
