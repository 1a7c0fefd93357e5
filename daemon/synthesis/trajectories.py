"""Rollouts of written tasks, and whose fault their failures are, without an engine or a model.

OracleRoller()      the episode of the perfect agent that the check `solvable` has played
RuleExaminer()      the fault by rule: of the task, of the user, or of the agent
"""

from collections.abc import Sequence

from daemon.proposer.candidate import CandidateFacts
from daemon.synthesis.protocols import Examination, Trajectory
from envs.attribution.user_faults import find_user_fault
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
        """Return whose fault a failure is: of the task where the perfect agent loses, else of the
        user where it broke its instructions, else of the agent."""
        if not trajectory.is_oracle:
            fault = find_user_fault(environment, task, trajectory.messages)
            if fault is not None:
                reason = f"message {fault.place}: {fault.reason}"
                return Examination("user", fault.rule, reason)
        verdict = grade(environment, task, trajectory.messages, trajectory.termination)
        if verdict.success:
            return Examination()
        reason = verdict.irregular or next(
            iter((*verdict.missing, *verdict.violations)), "the state is not as expected"
        )
        if trajectory.is_oracle:
            return Examination("task", "solvable", reason)
        return Examination("trajectory", "verdict", reason)
