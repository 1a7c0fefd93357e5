"""A policy gives, during a whole job, answers that no event, JSON or reader can hold unchanged.

    python -m ops.faults.job_answers --count 11

Each job, in a process of its own, trains a checkpoint that answers everything with one text:
arguments with half a surrogate pair, 600 levels, numbers that no double holds, or an opening tag
and blanks. Passes when no job ends with a failure, because an answer must never end a job.
"""

import json
from pathlib import Path
from typing import Any, Final

from daemon.jobs.attempts import last_lines
from daemon.jobs.runner import result_of
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop
from ops.command_line import run_command
from ops.faults.job_scene import PLAIN, run_job
from ops.reciting_model import HOSTILE_ANSWERS, reciting, with_token

ANSWERS: Final = (*HOSTILE_ANSWERS, *(f"<tool_call>{blank * 20_000}" for blank in " \n"))


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Run `count` jobs, each on the next of the answers."""
    # Load once: each job is a fork of this process.
    import daemon.solver.job  # noqa: F401

    tokens, wrong, outcomes = vocabulary(Shop()), list[str](), list[str]()
    for number in range(seed, seed + count):
        answer, place = ANSWERS[number % len(ANSWERS)], folder / str(number)
        base = reciting(place / "base", with_token(tokens, answer), answer)
        (place / "job.json").write_text(json.dumps(PLAIN | {"checkpoint": str(base)}))
        code, result = run_job(place), result_of(last_lines(place / "stdout"))
        outcomes.append("none" if result is None else result.outcome)
        if result is None or result.outcome == "failed":
            wrong.append(f"{answer[:80]!r}: exit code {code}, {result}")
    return {
        "fault": "answers that no reader holds", "jobs": count, "seeds": [seed],
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "wrong": wrong, "passed": not wrong,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
