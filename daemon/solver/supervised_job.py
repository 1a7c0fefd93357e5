"""Common parts of supervised jobs: directory, lock, tracker and outcome.

    job = SupervisedJob("router.json", RouterResult, teach)
    outcome = job.run(spec, out, report)

`teach` opens the run's tasks, trains, and returns an outcome, such as that of `save_result`. A
killed job begins anew; a finished job repeats its outcome.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
from peft import PeftModel
from pydantic import ValidationError
from torch import Tensor

from daemon.adapters.directory import WEIGHTS, Base, Provenance, verify
from daemon.engine.chat import Chat
from daemon.engine.fingerprint import probe_model
from daemon.solver.base import CannotBegin, checkpoint
from daemon.solver.job import ADAPTER, JobInterrupt, check_same_spec, lock_file, read_gap
from daemon.solver.journal import read_definitions
from daemon.solver.kinds import check_supported
from daemon.solver.lora import save, trainable_parameters
from daemon.solver.sampling.environments import JobEnvironments, drop_unplayable, open_environments
from daemon.solver.sampling.seals import Seals
from daemon.solver.telemetry.outcome import Activity, Outcome, make_failure
from daemon.solver.telemetry.progress import Progress
from daemon.solver.telemetry.tracker import join_reports, open_tracker
from events.errors import KintsugiError
from events.files import replace_file
from events.jobs import JobSpec
from events.messages import StrictModel
from events.privacy.sealing import Key
from events.registry import first_problem

_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class SupervisedRun:
    """A supervised job at work, with its directory and callbacks."""

    spec: JobSpec
    out: Path
    report: Callable[[Progress], None]
    activity: Activity = field(default_factory=Activity)
    stopping: Callable[[], bool] = lambda: False
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Key id -> key of a person whose tasks the job is trained on."""

    def open(self, phase: str) -> "OpenRun":
        """Set the number of threads, and return the tasks that can be played. Raise
        NothingPlayable, UnknownEnvironment, EnvironmentBroken, BadJournal, BadSeal, NoTemplate."""
        if self.spec.threads is not None:
            torch.set_num_threads(self.spec.threads)
        self.activity.phase = phase
        seals = Seals(read_definitions(self.out), self.keys)
        environments = open_environments(self.spec, seals.find_body)
        chat = Chat(checkpoint(self.spec))
        return OpenRun(drop_unplayable(self.spec, environments), environments, chat)

    def check_stop(self, steps: int) -> None:
        """Raise JobInterrupt if the job was asked to stop after `steps` optimizer steps."""
        if self.stopping():
            raise JobInterrupt(f"stopped after {steps} steps; run the same command to begin again")


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The spec, environments and chat of a run whose tasks are open."""

    spec: JobSpec
    """Spec without the tasks that cannot be played."""
    environments: JobEnvironments
    chat: Chat


class BestWeights:
    """Copy of an adapter's weights at the best step so far."""

    def __init__(self, model: PeftModel) -> None:
        self._parameters = trainable_parameters(model)
        self._best: dict[str, Tensor] = {}

    def remember(self) -> None:
        """Copy the model's present weights."""
        self._best = {name: weight.detach().clone() for name, weight in self._parameters.items()}

    def restore(self) -> None:
        """Put the copied weights back into the model."""
        with torch.no_grad():
            for name, weight in self._best.items():
                self._parameters[name].copy_(weight)


class JobResult(StrictModel, ABC):
    """Result of a finished job, stored beside its adapter."""

    @property
    @abstractmethod
    def taken(self) -> int:
        """Number of optimizer steps that made the adapter."""

    @property
    @abstractmethod
    def shown(self) -> int:
        """Number of examples that the job was trained on."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One sentence that describes the result."""


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """A kind of supervised job."""

    figures: str
    result: type[JobResult]
    teach: Callable[[SupervisedRun], Outcome]

    def run(
        self,
        spec: JobSpec,
        out: Path,
        report: Callable[[Progress], None] = lambda _: None,
        *,
        activity: Activity | None = None,
        stopping: Callable[[], bool] = lambda: False,
        keys: Mapping[str, Key] | None = None,
    ) -> Outcome:
        """Run the job; return also a KintsugiError or OSError as outcome. `keys`: key id -> key."""
        run = SupervisedRun(spec, out, report, activity or Activity(), stopping, keys or {})
        try:
            check_supported(spec)
            if finished := self.read_outcome(spec, out):
                return finished
            out.mkdir(parents=True, exist_ok=True)
            with ExitStack() as held:
                held.enter_context(lock_file(out / _LOCK))
                if spec.tracker is not None:
                    tracker = held.enter_context(open_tracker(spec.tracker, spec.job, out))
                    run = replace(run, report=join_reports(run.report, tracker))
                return self.teach(run)
        except (KintsugiError, OSError) as error:
            return make_failure(error, run.activity)

    def read_outcome(self, spec: JobSpec, out: Path) -> Outcome | None:
        """Return the job's outcome, or None before its end. Raise BadAdapter, CannotBegin."""
        return _read_outcome(spec, out, self.figures, self.result)


def _read_outcome(
    spec: JobSpec, out: Path, figures: str, result: type[JobResult]
) -> Outcome | None:
    folder = out / ADAPTER
    if not folder.exists():
        return read_gap(spec, out)
    provenance = verify(folder)
    check_same_spec(spec, provenance.spec, folder)
    try:
        stored = result.model_validate_json((out / figures).read_bytes())
    except ValidationError as error:
        raise CannotBegin(
            f"{out / figures} is damaged: {first_problem(error)}; remove {out} to begin again"
        ) from None
    return Outcome(
        outcome="trained",
        adapter=str(folder),
        sha256=provenance.files[WEIGHTS],
        steps=stored.taken,
        rollouts=stored.shown,
        reason=stored.summary,
    )


def save_result(
    run: SupervisedRun,
    model: PeftModel,
    base: Base,
    parent: str | None,
    figures: str,
    result: JobResult,
) -> Outcome:
    """Save result and adapter; return the outcome. `parent`: sha256 of the adapter it began
    with."""
    run.activity.phase = "saving"
    spec, out = run.spec, run.out
    provenance = Provenance(
        base=base,
        parent=parent,
        lora=spec.lora,
        seed=spec.seed,
        steps=result.taken,
        rollouts=(),
        spec=spec.model_dump(mode="json"),
        fingerprint=probe_model(model),
    )
    # The adapter is written last: once it is there, the job is finished.
    replace_file(out / figures, result.model_dump_json(indent=1).encode(), is_durable=True)
    save(model, out / ADAPTER, provenance)
    outcome = _read_outcome(spec, out, figures, type(result))
    assert outcome is not None, "the adapter was saved"
    return outcome
