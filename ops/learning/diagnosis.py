"""What the recorded traffic of a policy says about its failures, through the real path:
rollouts -> log -> fold -> round -> ranked patterns.

Read back are patterns, verdicts and task ids. The environment's label of a kind of task
(`capability`) is written into the log with everything else and never read here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from consumers.reads import rollouts as reads
from daemon.config.settings import Log, Settings
from daemon.core.app import App
from envs.environment import Environment
from envs.evaluation import Attempt
from events.envelope import derive_id
from events.messages import StrictModel
from producers.simulation import Provenance, append_rollouts, build_rollout_event


class Failure(StrictModel):
    """A failed rollout that a pattern stands for."""

    pattern: str
    task: str


class Diagnosis(StrictModel):
    """A round over recorded traffic."""

    rollouts: int
    patterns: tuple[str, ...]
    """Highest priority first."""
    failures: tuple[Failure, ...]
    """Failures that show one of these patterns."""
    unexplained: int
    """Failures that no rule explains."""
    passed: tuple[str, ...]
    """Tasks of the rollouts that passed and show no pattern."""

    @property
    def attempts(self) -> Mapping[str, int]:
        """Generator -> recorded rollouts on its tasks."""
        return Counter(map(generator, self.passed)) + self.failure_counts

    @property
    def failure_counts(self) -> Counter[str]:
        """Generator -> those that failed with a pattern."""
        return Counter(generator(failure.task) for failure in self.failures)


def generator(task: str) -> str:
    """What made a generated task: its id without the seed."""
    return task.rpartition("/")[0]


def diagnose(
    home: Path, environment: Environment, attempts: Sequence[Attempt], provenance: Provenance
) -> Diagnosis:
    """Record attempts in the log of an empty home, close a round and read what it found."""
    rollouts = [
        build_rollout_event(attempt, environment, provenance, _rollout(attempt, provenance))
        for attempt in attempts
    ]
    with App(_embedded(home)) as app:
        append_rollouts(app.spool, app.blobs, rollouts)
        closed = app.diagnose("diagnose")
        if closed is None or closed.rollouts != len(rollouts):
            raise ValueError(f"{home} is not empty: a round there counted {closed}; name another")
        with app.reading() as connection:
            patterns = tuple(line.pattern for line in reads.pattern_lines(connection))
            failed = reads.rollout_lines(connection, "diagnosed")
            rows = [reads.rollout_row(connection, line.rollout) for line in failed]
            passed = reads.rollout_lines(connection, "passed")
    failures = [
        Failure(pattern=f"{row.line.category}|{row.pivot}", task=row.line.task)
        for row in rows
        if row is not None and row.line.task is not None
    ]
    explained = [failure for failure in failures if failure.pattern in patterns]
    failing = {line.rollout for line in failed}
    return Diagnosis(
        rollouts=len(rollouts),
        patterns=patterns,
        failures=tuple(sorted(explained, key=lambda failure: failure.task)),
        unexplained=len(failures) - len(explained),
        passed=tuple(
            sorted(line.task for line in passed if line.task and line.rollout not in failing)
        ),
    )


def _embedded(home: Path) -> Settings:
    """The embedded log and database alone, whatever is configured."""
    # Nothing of a run outlives it: where the power fails, it is run again.
    log = Log(durability="process")
    return Settings(home=home, database_url=None, kafka_bootstrap_servers="", log=log)


def _rollout(attempt: Attempt, provenance: Provenance) -> str:
    return derive_id("learning", provenance.policy, attempt.task.id, str(attempt.trial))
