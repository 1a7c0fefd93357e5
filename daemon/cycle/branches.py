"""The branches of a cycle: several jobs, each with targets of its own and an adapter of its own.

A gate judges the adapter of a branch on the branch's own kinds of tasks. What passes becomes one
version with members (state_machine.py). A cycle without branches has one job for everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that the next job of a cycle may train for."""

    name: str
    patterns: tuple[str, ...]
    """Failure patterns whose written tasks are its targets."""


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """The branches of a cycle, and those that it leaves out."""

    branches: tuple[Branch, ...] = ()
    """In the order in which their jobs are requested; empty of a cycle with one job."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Name of another branch -> why the cycle leaves it out."""

    @property
    def patterns(self) -> frozenset[str]:
        """Return the patterns of all branches."""
        return frozenset(pattern for branch in self.branches for pattern in branch.patterns)


class VersionRefusal(KintsugiError):
    """No version can ever be composed of what the branches of a cycle left."""
