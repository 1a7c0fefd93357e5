"""The programs that check the chart, built where they are not on PATH.

    python -m ops.helm.programs        prints where they are; some minutes the first time

`helm` renders, and `kubectl-validate` holds what comes out against the schemas of Kubernetes that
it has with it: neither needs a cluster.
"""

import sys
from pathlib import Path
from typing import Final

from ops.golang import ProgramUnavailable, install, program

MODULES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.4",
    "kubectl-validate": "sigs.k8s.io/kubectl-validate@v0.0.4",
}


def checker(name: str) -> Path:
    """Where one of them is, built now if it is nowhere yet. Raises ProgramUnavailable."""
    module = MODULES[name]
    return program(name, module.rpartition("/")[2], lambda folder: install(module, folder))


def main() -> int:
    """The command line: 0 and where they are, or 1 and the remedy."""
    try:
        for name in MODULES:
            print(checker(name))
    except ProgramUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
