"""The branches of a cycle: several jobs, each with its own targets and adapter.

The gate judges a branch's adapter on the kinds of task of that branch. The adapters that pass
become the members of one version (state_machine.py). A cycle without branches has one job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch: the failure patterns that one of the cycle's jobs may train on."""

    name: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """The branches of a cycle, and the branches that it leaves out."""

    branches: tuple[Branch, ...] = ()
    """Branches in the order of their jobs; empty for a cycle with one job."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Branch that is left out -> the reason."""

    @property
    def patterns(self) -> frozenset[str]:
        """Return the failure patterns of all branches."""
        return frozenset(pattern for branch in self.branches for pattern in branch.patterns)


class VersionRefusal(KintsugiError):
    """A cycle's branches can never be composed to a version."""
