"""The shell of a supervised job: its directory, its lock, its tracker, its outcome.

    job = SupervisedJob("router.json", RouterResult, teach)
    outcome = job.run(spec, out, report)

`teach` opens the run's tasks, trains and returns `save_result`'s outcome or another. A killed job
begins anew, and a finished one repeats its outcome.
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
    """A job with its directory and callbacks."""

    spec: JobSpec
    out: Path
    report: Callable[[Progress], None]
    activity: Activity = field(default_factory=Activity)
    stopping: Callable[[], bool] = lambda: False
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Id -> key of a person whose tasks it shows."""

    def open(self, phase: str) -> "OpenRun":
        """Set the number of threads, and open the tasks. Raise NothingPlayable, UnknownEnvironment,
        EnvironmentBroken, BadJournal, BadSeal, NoTemplate."""
        if self.spec.threads is not None:
            torch.set_num_threads(self.spec.threads)
        self.activity.phase = phase
        seals = Seals(read_definitions(self.out), self.keys)
        environments = open_environments(self.spec, seals.find_body)
        chat = Chat(checkpoint(self.spec))
        return OpenRun(drop_unplayable(self.spec, environments), environments, chat)

    def check_stop(self, steps: int) -> None:
        """Raise JobInterrupt if the job shall stop; `steps` were taken."""
        if self.stopping():
            raise JobInterrupt(f"stopped after {steps} steps; run the same command to begin again")


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Opened tasks of a run."""

    spec: JobSpec
    """Spec without the tasks that cannot be played."""
    environments: JobEnvironments
    chat: Chat


class BestWeights:
    """The weights of an adapter at its best."""

    def __init__(self, model: PeftModel) -> None:
        self._parameters = trainable_parameters(model)
        self._best: dict[str, Tensor] = {}

    def remember(self) -> None:
        """Remember the weights as they are now."""
        self._best = {name: weight.detach().clone() for name, weight in self._parameters.items()}

    def restore(self) -> None:
        """Put the remembered weights into the model."""
        with torch.no_grad():
            for name, weight in self._best.items():
                self._parameters[name].copy_(weight)


class JobResult(StrictModel, ABC):
    """Result of a finished job, beside its adapter."""

    @property
    @abstractmethod
    def taken(self) -> int:
        """Optimizer steps of the adapter."""

    @property
    @abstractmethod
    def shown(self) -> int:
        """Examples that training was shown."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The result in a sentence."""


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
        """Run the job; KintsugiError and OSError become outcomes. `keys`: a person's id -> key."""
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
    """Save result and adapter, and return the outcome. `parent`: sha256 of the adapter before."""
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
    # The adapter is last: with it the job is over.
    replace_file(out / figures, result.model_dump_json(indent=1).encode(), is_durable=True)
    save(model, out / ADAPTER, provenance)
    outcome = _read_outcome(spec, out, figures, type(result))
    assert outcome is not None, "the adapter was saved"
    return outcome
