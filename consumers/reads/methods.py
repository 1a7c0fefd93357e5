"""Connect reads with methods. Methods import reads, so reads import this module in functions."""

from consumers.methods.lessons.reads import describe_content, describe_pools
from consumers.methods.skills.old_members import describe_retraining
from consumers.methods.skills.reads import list_wanted_branches
from consumers.methods.synthesis.explanation import (
    build_plan_node,
    build_verdict_nodes,
    describe_role_gate,
    find_set_node,
)

__all__ = [
    "build_plan_node",
    "build_verdict_nodes",
    "describe_content",
    "describe_pools",
    "describe_retraining",
    "describe_role_gate",
    "find_set_node",
    "list_wanted_branches",
]
