"""Run a job that trains a router: a spec in, an adapter directory out.

The directory is that of any job (daemon/solver/job.py), without a journal, since nothing is played.
`router.json` has the adapter's figures. Guarantees: on a CPU with a fixed number of threads a job
always gives the same adapter. A killed job begins again, and a finished one repeats its outcome.
One process per directory. Not covered: several processes; torchrun's first one does all the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peft import PeftModel

from daemon.adapters.directory import Base
from daemon.engine.chat import Chat
from daemon.methods.skills.engine_router import render_prompts
from daemon.methods.skills.routing.examples import Example, collect_examples, split
from daemon.methods.skills.routing.figures import RouterFigures, RouterProgress
from daemon.methods.skills.routing.head import assess, compute_inputs, fit
from daemon.methods.skills.routing.training import RouterTraining
from daemon.solver.base import load_base, load_model
from daemon.solver.job import JobInterrupt, write_gap
from daemon.solver.lora import attach_head
from daemon.solver.policy import check, check_ids
from daemon.solver.supervised_job import JobResult, SupervisedJob, SupervisedRun, save_result
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.telemetry.progress import Progress
from producers.gateway.skills.label_router import build_calibration_prompts, list_label_tokens

FIGURES: Final = "router.json"


class RouterResult(JobResult):
    """The part of a finished job's result that its adapter does not hold."""

    steps: int
    prompts: int
    """Number of prompts that were shown, also after the best adapter."""
    figures: RouterFigures

    @property
    def taken(self) -> int:
        """Return the number of optimizer steps that the adapter took."""
        return self.steps

    @property
    def shown(self) -> int:
        """Return the number of prompts that were shown."""
        return self.prompts

    @property
    def summary(self) -> str:
        """Return a clause with the router's figures."""
        return self.figures.summary


def _teach(run: SupervisedRun) -> Outcome:
    spec, shown = run.spec, run.open("openings")
    examples = collect_examples(shown.spec, shown.environments, shown.chat)
    learnt, held_out = split(examples, spec.seed)
    assert spec.router is not None, "a job that teaches a router has one"
    teach = _fit_head if spec.router.form == "head" else _train_labels
    taught = teach(run, shown.chat, learnt, held_out)
    result = taught.result
    if result.figures.teaches_nothing:
        gap = Outcome(
            outcome="competence_gap",
            steps=result.steps,
            rollouts=result.prompts,
            reason=f"the router learnt nothing: {result.figures.summary}; describe the skills so "
            "that they differ, give it more tasks, or leave the router untrained",
        )
        write_gap(spec, run.out, gap)
        return gap
    return save_result(run, taught.model, taught.base, taught.parent, FIGURES, result)


@dataclass(frozen=True, slots=True)
class _Taught:
    model: PeftModel
    base: Base
    parent: str | None
    """The sha256 of the adapter that training started from."""
    result: RouterResult


def _train_labels(
    run: SupervisedRun, chat: Chat, learnt: Sequence[Example], held_out: Sequence[Example]
) -> _Taught:
    spec, activity = run.spec, run.activity
    model, base, parent = load_model(spec)
    assert spec.router is not None, "a job that teaches a router has one"
    blank = render_prompts(chat, build_calibration_prompts(spec.router))
    training = RouterTraining(model, spec, learnt, held_out, blank)

    def check_stop() -> None:
        activity.steps, activity.rollouts = training.taken, training.prompts
        run.check_stop(training.taken)

    activity.phase = "training"
    for figures in training.steps(check_stop):
        run.report(_describe(training, figures))
    assert training.best is not None, "a training has a step, and then an assessment"
    steps, figures = training.best
    training.restore_best()
    result = RouterResult(steps=steps, prompts=training.prompts, figures=figures)
    return _Taught(model, base, parent, result)


def _fit_head(
    run: SupervisedRun, chat: Chat, learnt: Sequence[Example], held_out: Sequence[Example]
) -> _Taught:
    """Fit a head to the last hidden states of the base. This takes seconds and reports once."""
    spec, activity = run.spec, run.activity
    model, base = load_base(spec)
    router = spec.router
    assert router is not None, "a job that teaches a router has one"
    examples = (*learnt, *held_out)
    check(model)
    highest = [max(example.prompts[0]) for example in examples]
    check_ids(model, max(*highest, *list_label_tokens(router)))
    activity.phase = "states"
    inputs = compute_inputs(model, router, examples, spec.micro_tokens)
    if run.stopping():
        raise JobInterrupt(
            "stopped before its head was fitted; run the same command to begin again"
        )
    activity.phase = "training"
    fitted = fit(inputs.select(range(len(learnt))), spec.seed)
    figures = assess(router, inputs.select(range(len(learnt), len(examples))), held_out, fitted)
    result = RouterResult(steps=fitted.iterations, prompts=len(examples), figures=figures)
    activity.steps, activity.rollouts = result.steps, result.prompts
    run.report(
        RouterProgress(
            batch=1,
            steps=result.steps,
            rollouts=result.prompts,
            budget=spec.sampler.rollouts,
            router=figures,
        )
    )
    return _Taught(
        attach_head(model, spec.lora, fitted.rows, list_label_tokens(router)), base, None, result
    )


def _describe(training: RouterTraining, figures: RouterFigures) -> Progress:
    return RouterProgress(
        batch=training.taken,
        steps=training.taken,
        rollouts=training.prompts,
        budget=training.spec.sampler.rollouts,
        router=figures,
    )


_JOB: Final = SupervisedJob(FIGURES, RouterResult, _teach)
run, read_outcome = _JOB.run, _JOB.read_outcome
