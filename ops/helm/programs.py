"""The programs that check the chart, built from the Go module proxy where they are not on PATH.

    python -m ops.helm.programs        prints where they are; some minutes the first time

`helm` renders, and `kubectl-validate` holds what comes out against the schemas of Kubernetes that
it has with it: neither needs a cluster.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MODULES: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.4",
    "kubectl-validate": "sigs.k8s.io/kubectl-validate@v0.0.4",
}
FOLDER: Final = Path(__file__).parents[2] / ".local" / "go"
BUILD_SECONDS: Final = 1800
_GO: Final = "/usr/local/go/bin"
"""Where Go's own archive puts it, which is on the PATH of nobody by itself."""


class ProgramMissing(Exception):
    """A program is not there and cannot be built; the text names the remedy."""


def program(name: str, folder: Path = FOLDER) -> Path:
    """Where a program is, built now if it is nowhere yet. Raises ProgramMissing."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    # The version is part of the folder's name, so another one is another folder.
    place = folder / MODULES[name].rpartition("/")[2] / name
    if place.exists():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _build(name, place.parent)
    return place


def _build(name: str, folder: Path) -> None:
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:{_GO}")
    if go is None:
        raise ProgramMissing(f"{name} and Go are not on PATH; install one of them (https://go.dev)")
    done = subprocess.run(
        [go, "install", MODULES[name]], env=os.environ | {"GOBIN": str(folder)},
        capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ProgramMissing(
            f"{MODULES[name]} cannot be built (exit {done.returncode}); put {name} on PATH, or "
            f"configure GOPROXY:\n{done.stderr.strip()[-1500:]}"
        )


def main() -> int:
    """The command line: 0 and where they are, or 1 and the remedy."""
    try:
        for name in MODULES:
            print(program(name))
    except ProgramMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
