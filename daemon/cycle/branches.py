"""The branches of a cycle: several jobs, each with its own targets and adapter.

A gate judges a branch's adapter on the branch's kinds. Those that pass become one version with
members (state_machine.py). A cycle without branches has one job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that a cycle's next job may train."""

    name: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """A cycle's branches, and those left out."""

    branches: tuple[Branch, ...] = ()
    """Branches in the order of their jobs; empty for a cycle with one job."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Branch left out -> why."""

    @property
    def patterns(self) -> frozenset[str]:
        """Return the patterns of all branches."""
        return frozenset(pattern for branch in self.branches for pattern in branch.patterns)


class VersionRefusal(KintsugiError):
    """No version can ever be composed of a cycle's branches."""
