"""Run a job that trains a user's model: a spec in, an adapter directory out.

    references of the pools -> oracle with exact user -\\
    dialogues of the spec -> recorded transcripts ------+-> the user's turns -> training -> adapter
    tasks of the pools -> oracle with exact user -> held out, for early stopping

The directory is that of any job (daemon/solver/job.py), without a journal: nothing is sampled.
`user.json` has the adapter's figures. Guarantees: on a CPU with a fixed number of threads a job
always gives the same adapter; a killed job begins again, and a finished one repeats its outcome.
One process per directory. Not covered: several processes; torchrun's first one does all the work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from daemon.engine.chat import Chat
from daemon.methods.synthesis.manners import vary_manner
from daemon.methods.synthesis.user_training.dialogue_file import DialogueRecord, read_dialogues
from daemon.methods.synthesis.user_training.examples import NoExample, build_example, play_gold
from daemon.methods.synthesis.user_training.training import UserFigures, UserProgress, UserTraining
from daemon.solver.base import load_model
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.spec import NothingPlayable
from daemon.solver.supervised_job import (
    JobResult,
    OpenRun,
    SupervisedJob,
    SupervisedRun,
    save_result,
)
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.trajectory import TokenSequence, sequences
from envs.environment import Environment, UnknownTask
from envs.task import TaskDefinition

FIGURES: Final = "user.json"


class UserJobResult(JobResult):
    """The part of a finished job's result that its adapter does not hold."""

    gold: int
    """Number of the oracle's dialogues in training."""
    recorded: int
    """Number of recorded dialogues in training."""
    held_out: int
    """Number of dialogues for early stopping."""
    left_out: tuple[str, ...]
    """Sentences that say why dialogues are no examples."""
    figures: UserFigures

    @property
    def taken(self) -> int:
        """Return the number of optimizer steps that the adapter took."""
        return self.figures.steps

    @property
    def shown(self) -> int:
        """Return the number of dialogues in training."""
        return self.gold + self.recorded

    @property
    def summary(self) -> str:
        """Return a clause with the result."""
        figures = self.figures
        return (
            f"learnt from {self.gold} dialogues of the oracle and {self.recorded} recorded ones "
            f"({len(self.left_out)} left out); {figures.held_out_loss:.3f} nats per token on "
            f"{self.held_out} that were held out, after {figures.steps} steps"
        )


@dataclass(slots=True)
class _Examples:
    shown: list[TokenSequence] = field(default_factory=list)
    held_out: list[TokenSequence] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("gold", "recorded", "held_out"), 0)
    )
    left_out: list[str] = field(default_factory=list)


def _teach(run: SupervisedRun) -> Outcome:
    spec, activity = run.spec, run.activity
    shown = run.open("dialogues")
    examples = _collect(shown, read_dialogues(run.out, spec))
    count = examples.counts["gold"] + examples.counts["recorded"]
    model, base, parent = load_model(spec)
    training = UserTraining(model, spec, examples.shown, examples.held_out)

    def check_stop() -> None:
        activity.steps = training.taken
        run.check_stop(training.taken)

    activity.phase, activity.rollouts = "training", count
    for number, figures in enumerate(training.steps(check_stop), start=1):
        run.report(
            UserProgress(
                batch=number,
                steps=training.taken,
                rollouts=count,
                budget=spec.sampler.rollouts,
                user=figures,
            )
        )
    assert training.best is not None, "a training ends with an assessment"
    training.restore_best()
    result = UserJobResult(
        **examples.counts, left_out=tuple(examples.left_out), figures=training.best
    )
    return save_result(run, model, base, parent, FIGURES, result)


def _collect(run: OpenRun, recorded: Iterable[DialogueRecord]) -> _Examples:
    """Return a job's examples. Raise NoTemplate, EnvironmentFailure, UnknownTask. Raise
    NothingPlayable if there is none to learn from or none to hold out."""
    spec, environments, chat = run.spec, run.environments, run.chat
    examples = _Examples()
    shown, held_out = examples.shown, examples.held_out
    for pool in spec.pools:
        for kind, parts, tasks in (
            ("gold", shown, pool.references),
            ("held_out", held_out, pool.tasks),
        ):
            for place, task in enumerate(tasks):
                definition = vary_manner(environments.task(task), place, spec.manners)
                _add(examples, parts, kind, environments.find(task), chat, definition)
    for dialogue in recorded:
        _add_recorded(examples, environments, chat, dialogue)
    for what, parts in (("to learn from", shown), ("to hold out", held_out)):
        if not parts:
            why = f"; the first is left out because {examples.left_out[0]}" * bool(
                examples.left_out
            )
            raise NothingPlayable(
                f"job {spec.job} has no dialogue {what}{why}; name other tasks in its pools"
            )
    return examples


def _add(
    examples: _Examples,
    parts: list[TokenSequence],
    kind: str,
    environment: Environment,
    chat: Chat,
    task: TaskDefinition,
) -> None:
    try:
        messages = play_gold(environment, task)
        trajectory = build_example(environment, chat, task, messages, task.id)
    except NoExample as error:
        examples.left_out.append(str(error))
        return
    parts += sequences(trajectory)
    examples.counts[kind] += 1


def _add_recorded(
    examples: _Examples, environments: JobEnvironments, chat: Chat, dialogue: DialogueRecord
) -> None:
    name, policy = dialogue.rollout, dialogue.policy
    try:
        environment, task = environments.find(dialogue.task), environments.task(dialogue.task)
        trajectory = build_example(environment, chat, task, dialogue.messages, name, policy)
    except NoExample as error:
        examples.left_out.append(str(error))
        return
    except UnknownTask as error:
        examples.left_out.append(f"rollout {name}: {error}")
        return
    examples.shown += sequences(trajectory)
    examples.counts["recorded"] += 1


_JOB: Final = SupervisedJob(FIGURES, UserJobResult, _teach)
run, read_outcome = _JOB.run, _JOB.read_outcome
