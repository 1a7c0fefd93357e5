"""Run only the tests that the documents name as proof.

    python -m ops.proofs [--long] [OPTION ...]      pytest takes the other options

The exit code is pytest's: 0 if every proof ran and passed.
"""

import sys
from pathlib import Path
from typing import Final

import pytest

from ops.proofs.claims import claims_of

ROOT: Final = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Run the command line."""
    is_long = "--long" in arguments
    rest = [argument for argument in arguments if argument != "--long"]
    wanted = [
        proof.test
        for claim in claims_of(ROOT)
        for proof in claim.proofs
        if (proof.condition == "make long") == is_long
    ]
    run = ["--proofs", "long", "-m", "long"] if is_long else ["--proofs", "test"]
    return int(pytest.main(["--rootdir", str(ROOT), *run, *rest, *dict.fromkeys(wanted)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
