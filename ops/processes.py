"""Check whether a process runs that this process does not wait for."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and is not waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    # It may go while it is read.
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
