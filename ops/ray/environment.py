"""The virtual environment of Ray, made once (ops/isolated.py): 45 packages that nothing of ours
imports.

    python -m ops.ray.environment        prints its Python
"""

import sys
from pathlib import Path
from typing import Final

from ops.isolated import InstallError, interpreter

RAY: Final = "ray[default]==2.60.0"


def python() -> Path:
    """The Python that has Ray, installed now if it is not there yet. Raises InstallError,
    OSError."""
    return interpreter(RAY)


if __name__ == "__main__":
    try:
        print(python())
    except InstallError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
