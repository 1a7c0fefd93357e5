"""A trial whose verdicts are recorded and not played: `RATES` says how often each player passes.

Plan, file and last line are those of daemon.evaluation.trial; nothing of torch is imported, so that
many looks take a moment. With `FAULTS`, a verdict follows from the place of its task in
the plan, and not from its name, which follows from ports and folders of the test run.

    COMMAND                  the program, for a runner that starts processes
    RecordedRunner(root)     a runner that records in the process of the test
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
from daemon.jobs.attempts import JobFolder
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import OUT, SPEC, Job
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
    look = plan.name.rpartition(" ")[2]
    places = {task: place for place, task in enumerate(plan.tasks)}
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
            drawn = f"{look} {places[task]}" if FAULTS in os.environ else task
            seed = f"{side} {drawn} {trial}"
            erred = Random(f"user {seed}").random() < faults[player]
            passed = Random(seed).random() < rate
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


def record(spec: Path, out: Path) -> str:
    """Write the journal of a plan; return the last line of the program."""
    plan = Plan.model_validate_json(spec.read_bytes())
    # One line holds everything.
    journal = ChunkJournal(out, plan.digest, _CHUNK)
    journal.fill([None], lambda: lambda _: played(plan, out))
    return json.dumps({"outcome": "played"})


class RecordedRunner(LocalRunner):
    """A runner whose trials are over once they were started."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, command=COMMAND)

    def start(self, job: Job) -> bool:
        """Record a trial."""
        folder = JobFolder(self.folder(job.id))
        folder.prepare(job)
        attempt = folder.begin(len(folder.attempts()) + 1)
        last = record(folder.path / SPEC, folder.path / OUT)
        attempt.with_suffix(".out").write_text(f"{last}\n")
        attempt.with_suffix(".code").write_text("0\n")
        return True


def main() -> None:
    print(record(Path(sys.argv[1]), Path(sys.argv[3])), flush=True)


if __name__ == "__main__":
    main()
