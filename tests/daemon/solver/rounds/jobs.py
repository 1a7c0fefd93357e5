"""A small job with rounds: the reference policy on `shop`, half of it on a kind that it is weak
in."""

from typing import Any, Final

from daemon.engine.reference.weights import CHECKPOINT
from events.jobs import JobSpec

WEAK: Final = "information_error|*"


def spec(**changes: Any) -> JobSpec:
    """Four batches of 16 rollouts, and a round after the second."""
    known: dict[str, Any] = {
        "job": "00000000-0000-5000-8000-000000000001",
        "base": "reference",
        "checkpoint": str(CHECKPOINT),
        "environment": "shop",
        "pools": [
            {"name": WEAK, "share": 0.5, "tasks": [f"shop/question/{n}" for n in range(500, 504)]},
            {
                "name": "traffic",
                "share": 0.5,
                "replay": True,
                "tasks": [f"shop/{k}/{n}" for k in ("two_writes", "cancel") for n in range(4)],
            },
        ],
        "seed": 7,
        "sampler": {"groups": 4, "size": 4, "rollouts": 64, "max_tokens": 64, "momentum": 0.8},
        "optimizer": {"lr": 0.001},
        "limits": {"kl": None, "entropy_factor": None, "malformed_factor": None},
        "threads": 1,
        "rounds": {
            "count": 2,
            "cycle": "cycle-1",
            "alias": "agent",
            "history": 0,
            "tasks": 6,
            "explore": 0.75,
            "replay": 0.05,
        },
    }
    return JobSpec.model_validate({**known, **changes})
