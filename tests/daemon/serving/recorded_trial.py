"""A trial whose verdicts are recorded and not played: `RATES` says how often whom passes what.

Plan, file and last line are those of daemon.evaluation.trial; nothing of torch is imported, so that
many looks take a moment.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from daemon.evaluation.plan_program import ChunkJournal
from daemon.evaluation.players import PlayerWithMembers
from daemon.evaluation.trial import _CHUNK, Plan, TrialAttempt, _chunks
from daemon.solver.journal import read_definitions
from envs.registry import open_place
from events.gate import AFTER_ERROR
from events.rollouts import MemberChoice, RolloutEnded

COMMAND: Final = (sys.executable, "-m", "tests.daemon.serving.recorded_trial")
RATES: Final = "RECORDED_RATES"
"""Environment variable: kind, or slice of lessons -> pass rates of incumbent and candidate, and of
the best policy of the kind where that plays as well, JSON."""
FAULTS: Final = "RECORDED_FAULTS"
"""Environment variable: how often the users of incumbent and candidate err, JSON."""
EVIDENCE: Final = "RECORDED_EVIDENCE"
"""Environment variable: what the answers of incumbent and candidate rest on, JSON; unset for a
trial of an earlier version."""
_BEST: Final = 2


def played(plan: Plan, out: Path) -> Iterator[TrialAttempt]:
    """Everything that a plan wants."""
    environment, rates = open_place(plan.environment), json.loads(os.environ[RATES])
    environment.use_definitions(read_definitions(out).get)
    for chunk in _chunks(plan):
        for player, task, trial in chunk:
            definition = environment.task(task)
            side = _BEST if " best " in plan.name else player
            kind = AFTER_ERROR if definition.lesson else definition.capability
            rate = rates[kind][side]
            panel, member = plan.players[player], None
            if isinstance(panel, PlayerWithMembers):
                adapter = panel.members.get(kind)
                member = MemberChoice(
                    skill=kind if adapter else None,
                    adapter=adapter and adapter.name,
                    doubt=None if adapter else "none",
                )
            faults = json.loads(os.environ.get(FAULTS, "[0, 0]"))
            erred = Random(f"user {side} {task} {trial}").random() < faults[player]
            passed = Random(f"{side} {task} {trial}").random() < rate
            head = RolloutEnded(
                rollout=plan.rollout(player, task, trial), alias=plan.alias, base=plan.base,
                policy=plan.name_policy(player), source="simulation", purpose="evaluate",
                task=definition.record(), trial=trial, success=None if erred else passed,
                reward=None if erred else float(passed), grader="letters/1",
                termination="user_error" if erred else "user_stop", write_tools=(), known_tools=(),
                member=member, simulator="scripted" if plan.user is None else plan.user.simulator,
            )  # fmt: skip
            evidence = json.loads(os.environ.get(EVIDENCE, "[null, null]"))[player]
            yield TrialAttempt(
                player=player, trial=trial, tokens=4, head=head, messages=(), evidence=evidence
            )


def main() -> None:
    plan = Plan.model_validate_json(Path(sys.argv[1]).read_bytes())
    out = Path(sys.argv[3])
    # One line holds everything.
    journal = ChunkJournal(out, plan.digest, _CHUNK)
    journal.fill([None], lambda: lambda _: played(plan, out))
    print(json.dumps({"outcome": "played"}), flush=True)


if __name__ == "__main__":
    main()
