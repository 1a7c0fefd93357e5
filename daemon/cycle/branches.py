"""The branches of a cycle: several jobs, each with its own targets and adapter.

The gate judges a branch's adapter on the kinds of task of that branch. The adapters that pass
become the members of one version (state_machine.py). A cycle without branches has one job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.errors import KintsugiError


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a cycle: a name and the failure patterns that its job trains on."""

    name: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """The branches that a cycle trains, and those that it leaves out."""

    branches: tuple[Branch, ...] = ()
    """Branches in the order of their jobs; empty for a cycle with one job."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Branch that is left out -> the reason."""

    @property
    def patterns(self) -> frozenset[str]:
        """Return the failure patterns of all branches."""
        return frozenset(pattern for branch in self.branches for pattern in branch.patterns)


class VersionRefusal(KintsugiError):
    """The adapters of a cycle's branches can never be composed to one version."""
