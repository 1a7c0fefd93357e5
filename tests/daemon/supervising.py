"""A supervisor of some roles as a process: `python -m tests.daemon.supervising NOTES`."""

import signal
import sys
import threading

from daemon.roles.supervisor import Program, Supervisor

ROLES = ("ship", "work", "gateway")


def main() -> None:
    """Supervise until SIGTERM."""
    notes = sys.argv[1]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    roles = [Program(name, ("tests.daemon.role_program", notes, name)) for name in ROLES]
    Supervisor(roles).run(stop)


if __name__ == "__main__":
    main()
