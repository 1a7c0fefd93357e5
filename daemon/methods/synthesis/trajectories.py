"""Rollouts of written tasks, and whose fault their failures are, without an engine or a model.

OracleRoller()      the episode of the perfect agent that the check `solvable` has played
RuleExaminer()      the fault by rule (envs/attribution/examination.py)
"""

from collections.abc import Sequence

from daemon.methods.synthesis.protocols import Examination, Trajectory
from daemon.proposer.candidate import CandidateFacts
from envs.attribution.examination import NoVerdict, examine
from envs.environment import Environment
from envs.grading import grade
from envs.task import TaskDefinition
from events.envelope import derive_id
from events.synthesis.plans import Plan


class OracleRoller:
    """The roller that needs no engine (protocols.Roller)."""

    def roll(self, examined: CandidateFacts, place: str) -> Sequence[Trajectory]:
        """Return the episode of the perfect agent with the scripted user."""
        episode = examined.oracle
        rollout = derive_id("synthesis", "oracle", place)
        return (Trajectory(rollout, episode.messages, episode.termination, is_oracle=True),)


class RuleExaminer:
    """The examiner that needs no model (protocols.Examiner)."""

    def examine(
        self, environment: Environment, task: TaskDefinition, trajectory: Trajectory, plan: Plan
    ) -> Examination:
        """Return whose fault a failure is, by rule; a rollout that only a judge can tell is of no
        fault, and `trouble` says so."""
        messages, termination = trajectory.messages, trajectory.termination
        verdict = grade(environment, task, messages, termination)
        try:
            fault = examine(
                environment, task, messages, termination, verdict, exact_user=trajectory.is_oracle
            )
        except NoVerdict as error:
            return Examination(trouble=str(error))
        if fault is None:
            return Examination()
        return Examination(fault.fault, fault.rule, fault.reason)
