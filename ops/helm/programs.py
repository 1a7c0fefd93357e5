"""`helm`, which renders the chart, and `kubectl-validate`, which checks it offline.

    python -m ops.helm.programs        prints their paths; builds them the first time (minutes)

Neither needs a cluster: `kubectl-validate` contains the schemas of Kubernetes.
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
    """Return a program's path; build it if it is missing. Raise ProgramUnavailable."""
    module = MODULES[name]
    return program(name, module.rpartition("/")[2], lambda folder: install(module, folder))


if __name__ == "__main__":
    print_path(lambda: "\n".join(str(checker(name)) for name in MODULES), ProgramUnavailable)
