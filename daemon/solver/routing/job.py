"""Run a job that teaches a router: a spec in, an adapter directory out.

    outcome = run(spec, out, report)

    openings of the pools' tasks -> prompts -> training with early stopping -> adapter
                                            -> states -> regression -> adapter of the head

The directory holds what that of any job does (daemon/solver/job.py), without a journal: nothing is
played. `router.json` has the figures of the adapter. Guarantees: on a CPU with a fixed number of
threads a job has the same adapter whenever it is run; one that was killed begins anew, and a
finished one repeats its outcome. One process per directory. Not covered: several processes; the
first of those that torchrun starts does all the work.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from peft import PeftModel
from pydantic import ValidationError

from daemon.adapters.directory import WEIGHTS, Base, Provenance, verify
from daemon.engine.chat import Chat
from daemon.engine.fingerprint import probe_model
from daemon.engine.routing import render_prompts
from daemon.solver.base import CannotBegin, checkpoint, load_base, load_model
from daemon.solver.job import (
    ADAPTER,
    Activity,
    JobInterrupt,
    check_same_spec,
    lock_file,
    make_failure,
    read_gap,
    write_gap,
)
from daemon.solver.journal import read_definitions, write_file
from daemon.solver.lora import attach_head, save
from daemon.solver.policy import check, check_ids
from daemon.solver.routing.examples import Example, collect_examples, split
from daemon.solver.routing.head import assess, compute_inputs, fit
from daemon.solver.routing.training import RouterTraining
from daemon.solver.sampling.environments import drop_unplayable, open_environments
from daemon.solver.sampling.seals import Seals
from daemon.solver.spec import check_supported
from daemon.solver.telemetry.progress import Outcome, Progress, RouterFigures
from daemon.solver.telemetry.tracker import join_reports, open_tracker
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.messages import StrictModel
from events.privacy.sealing import Key
from events.registry import first_problem
from producers.gateway.routing.label_router import build_calibration_prompts, list_label_tokens

FIGURES: Final = "router.json"
_LOCK: Final = "lock"


class RouterResult(StrictModel):
    """What a job came to, beside its adapter."""

    steps: int
    """Optimizer steps of the adapter."""
    prompts: int
    """Prompts that were shown, also after the adapter was at its best."""
    figures: RouterFigures


def run(
    spec: JobSpec,
    out: Path,
    report: Callable[[Progress], None] = lambda _: None,
    *,
    activity: Activity | None = None,
    stopping: Callable[[], bool] = lambda: False,
    keys: Mapping[str, Key] | None = None,
) -> Outcome:
    """Run the whole job; every failure that can be said in a sentence is an outcome. `keys`: those
    of persons whose tasks it shows, by id."""
    activity = activity or Activity()
    try:
        check_supported(spec)
        if finished := read_outcome(spec, out):
            return finished
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            held.enter_context(lock_file(out / _LOCK))
            if spec.tracker is not None:
                tracker = held.enter_context(open_tracker(spec.tracker, spec.job, out))
                report = join_reports(report, tracker)
            return _teach(spec, out, report, activity, stopping, keys or {})
    except (KintsugiError, OSError) as error:
        return make_failure(error, activity)


def read_outcome(spec: JobSpec, out: Path) -> Outcome | None:
    """Return how the job of this spec in this directory ended; None if it has not.

    Raises BadAdapter for a damaged adapter, CannotBegin for the results of another spec.
    """
    folder = out / ADAPTER
    if not folder.exists():
        return read_gap(spec, out)
    provenance = verify(folder)
    check_same_spec(spec, provenance.spec, folder)
    try:
        result = RouterResult.model_validate_json((out / FIGURES).read_bytes())
    except ValidationError as error:
        raise CannotBegin(
            f"{out / FIGURES} is damaged: {first_problem(error)}; remove {out} to begin again"
        ) from None
    return Outcome(
        outcome="trained",
        adapter=str(folder),
        sha256=provenance.files[WEIGHTS],
        steps=result.steps,
        rollouts=result.prompts,
        reason=result.figures.summary,
    )


def _teach(
    spec: JobSpec,
    out: Path,
    report: Callable[[Progress], None],
    activity: Activity,
    stopping: Callable[[], bool],
    keys: Mapping[str, Key],
) -> Outcome:
    """Train, and save what came of it."""
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    activity.phase = "openings"
    seals = Seals(read_definitions(out), keys)
    environments = open_environments(spec, seals.find_body)
    chat = Chat(checkpoint(spec))
    examples = collect_examples(drop_unplayable(spec, environments), environments, chat)
    learnt, held_out = split(examples, spec.seed)
    assert spec.router is not None, "a job that teaches a router has one"
    teach = _fit_head if spec.router.form == "head" else _train_labels
    taught = teach(spec, chat, learnt, held_out, report, activity, stopping)
    result = taught.result
    if result.figures.teaches_nothing:
        gap = Outcome(
            outcome="competence_gap",
            steps=result.steps,
            rollouts=result.prompts,
            reason=f"the router learnt nothing: {result.figures.summary}; describe the skills so "
            "that they differ, give it more tasks, or leave the router untrained",
        )
        write_gap(spec, out, gap)
        return gap
    activity.phase = "saving"
    provenance = Provenance(
        base=taught.base,
        parent=taught.parent,
        lora=spec.lora,
        seed=spec.seed,
        steps=result.steps,
        rollouts=(),
        spec=spec.model_dump(mode="json"),
        fingerprint=probe_model(taught.model),
    )
    # The adapter is last: with it the job is over.
    write_file(out / FIGURES, result.model_dump_json(indent=1).encode())
    save(taught.model, out / ADAPTER, provenance)
    outcome = read_outcome(spec, out)
    assert outcome is not None, "the adapter was saved"
    return outcome


@dataclass(frozen=True, slots=True)
class _Taught:
    """A model with the adapter of a router."""

    model: PeftModel
    base: Base
    parent: str | None
    """The sha256 of the adapter that training went on from."""
    result: RouterResult


def _train_labels(
    spec: JobSpec,
    chat: Chat,
    learnt: Sequence[Example],
    held_out: Sequence[Example],
    report: Callable[[Progress], None],
    activity: Activity,
    stopping: Callable[[], bool],
) -> _Taught:
    """Train an adapter on the prompt that lists the labels."""
    model, base, parent = load_model(spec)
    assert spec.router is not None, "a job that teaches a router has one"
    blank = render_prompts(chat, build_calibration_prompts(spec.router))
    training = RouterTraining(model, spec, learnt, held_out, blank)

    def check_stop() -> None:
        activity.steps, activity.rollouts = training.taken, training.prompts
        if stopping():
            raise JobInterrupt(
                f"stopped after {training.taken} steps; run the same command to begin again"
            )

    activity.phase = "training"
    for figures in training.steps(check_stop):
        report(_describe(training, figures))
    assert training.best is not None, "a training has a step, and then an assessment"
    steps, figures = training.best
    training.restore_best()
    result = RouterResult(steps=steps, prompts=training.prompts, figures=figures)
    return _Taught(model, base, parent, result)


def _fit_head(
    spec: JobSpec,
    chat: Chat,
    learnt: Sequence[Example],
    held_out: Sequence[Example],
    report: Callable[[Progress], None],
    activity: Activity,
    stopping: Callable[[], bool],
) -> _Taught:
    """Fit a head to the last hidden states of the base. It takes seconds, and reports once."""
    model, base = load_base(spec)
    router = spec.router
    assert router is not None, "a job that teaches a router has one"
    examples = (*learnt, *held_out)
    check(model)
    check_ids(model, max(max(example.prompts[0]) for example in examples))
    activity.phase = "states"
    inputs = compute_inputs(model, router, examples, spec.micro_tokens)
    if stopping():
        raise JobInterrupt(
            "stopped before its head was fitted; run the same command to begin again"
        )
    activity.phase = "training"
    fitted = fit(inputs.select(range(len(learnt))), spec.seed)
    figures = assess(router, inputs.select(range(len(learnt), len(examples))), held_out, fitted)
    result = RouterResult(steps=fitted.iterations, prompts=len(examples), figures=figures)
    activity.steps, activity.rollouts = result.steps, result.prompts
    report(
        Progress(
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
    return Progress(
        batch=training.taken,
        steps=training.taken,
        rollouts=training.prompts,
        budget=training.spec.sampler.rollouts,
        router=figures,
    )
