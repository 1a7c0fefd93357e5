"""The programs that check the chart, built where they are not on PATH.

    python -m ops.helm.programs        prints where they are; some minutes the first time

`helm` renders, and `kubectl-validate` holds what comes out against the schemas of Kubernetes that
it has with it: neither needs a cluster.
"""

from pathlib import Path
from typing import Final

from ops.command_line import print_path
from ops.golang import ProgramUnavailable, install, program

MODULES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.4",
    "kubectl-validate": "sigs.k8s.io/kubectl-validate@v0.0.4",
}


def checker(name: str) -> Path:
    """Where one of them is, built now if it is nowhere yet. Raises ProgramUnavailable."""
    module = MODULES[name]
    return program(name, module.rpartition("/")[2], lambda folder: install(module, folder))


if __name__ == "__main__":
    print_path(lambda: "\n".join(str(checker(name)) for name in MODULES), ProgramUnavailable)
