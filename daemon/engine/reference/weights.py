"""Where the reference policies lie: a module of its own, so that code that only names one does not
wait for torch."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
REFLECTING: Final = Path(__file__).parent / "reflecting"
"""The second policy, whose tokenizer has the tags of reflections."""
