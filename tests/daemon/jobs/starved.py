"""The learner in a process that may take 16 MiB more than its libraries need.

Called as `python -m daemon.solver` is. The limit is the kernel's (RLIMIT_AS): what is refused is
what a machine without memory would refuse.
"""

import resource
import runpy
from pathlib import Path

import daemon.solver.job  # noqa: F401  # Everything is imported, and only then is memory short.

ROOM = 16 << 20

if __name__ == "__main__":
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    runpy.run_module("daemon.solver", run_name="__main__", alter_sys=True)
