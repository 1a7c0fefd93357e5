"""What a job is told: everything that its result depends on, as plain data.

A spec is written once, when the job is requested, and read back by every retry. It is free of
torch, so that whoever requests a job needs none. An unknown field is an error and not a wish that
nobody fulfils.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from daemon.solver.algorithm import Algorithm
from events.errors import KintsugiError
from events.messages import Frozen
from events.registry import first_problem
from events.rollouts import Id, Int64, Name

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BadSpec(KintsugiError):
    """The file is no spec of a job."""


class LoraSettings(Frozen):
    """Which weights an adapter adds to, and how strongly."""

    rank: Annotated[int, Field(ge=1, le=512)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Last parts of the names of linear layers; every one must name some."""


class OptimizerSettings(Frozen):
    """AdamW. Defaults: for LoRA on a model below 10 M parameters."""

    lr: Annotated[float, Field(gt=0)] = 2e-3
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.98,
    )
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0


class SftSettings(Frozen):
    """How long, how much at once, how fast."""

    optimizer: OptimizerSettings = OptimizerSettings()
    epochs: Annotated[int, Field(ge=1)] = 1
    batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Tokens per optimizer step, read and written."""
    micro_tokens: Annotated[int, Field(ge=1)] = 8192
    """Padded tokens per forward pass."""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How it falls to 0 afterwards, or does not."""
    seed: Int64 = 0


class Limits(Frozen):
    """When training stops by itself. None: never for this reason."""

    kl: Annotated[float, Field(gt=0)] | None = 0.3
    """Nats per token from the reference, for `patience` steps."""
    ratio_low: Annotated[float, Field(ge=0)] | None = 0.8
    """Smallest mean ratio, at any step."""
    ratio_high: Annotated[float, Field(gt=1)] | None = 1.25
    entropy_factor: Annotated[float, Field(gt=1)] | None = 3.0
    """Entropy above this multiple of the first step's, or below its reciprocal, for `patience`."""
    malformed_factor: Annotated[float, Field(ge=1)] | None = 2.0
    """Share of rollouts with malformed calls above this multiple of the first step's, ..."""
    malformed_margin: Annotated[float, Field(ge=0)] = 0.02
    """... plus this, for `patience` steps: one step's share is too small a sample."""
    patience: Annotated[int, Field(ge=1)] = 3


class TaskPool(Frozen):
    """Tasks that groups are drawn from."""

    name: Name
    """What the figures of its groups are reported under: a pattern, or `replay`."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Weight among the pools; the rest of the tasks may be of any kind."""
    tasks: Annotated[tuple[Id, ...], Field(min_length=1)]
    """Ids that the environment can make a task of."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.tasks)) < len(self.tasks):
            twice = next(task for task in self.tasks if self.tasks.count(task) > 1)
            raise ValueError(f"pool {self.name} names task {twice} twice")
        return self


class Sampler(Frozen):
    """How rollouts are made."""

    groups: Annotated[int, Field(ge=1)] = 8
    """Tasks per batch."""
    size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per task: one alone has nothing to be compared with."""
    rollouts: Annotated[int, Field(ge=2)] = 3072
    """Budget of the job, refills included."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Per turn; a turn that reaches it is cut off."""


class JobSpec(Frozen):
    """One training run."""

    job: Id
    base: Name
    """The base model's name, as rollouts and adapters call it."""
    checkpoint: str
    """Where its weights are: a directory that transformers reads."""
    base_sha256: Sha256 | None = None
    """Of its weights; None: whatever is found there."""
    parent: str | None = None
    """Directory of the adapter to go on from; None: a fresh one."""
    environment: Name
    pools: Annotated[tuple[TaskPool, ...], Field(min_length=1)]
    seed: Int64 = 0
    """Of everything that is drawn: tasks, tokens, the adapter's first weights."""
    sampler: Sampler = Sampler()
    algorithm: Algorithm = Algorithm()
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings = LoraSettings()
    limits: Limits = Limits()
    micro_tokens: Annotated[int, Field(ge=1)] = 8192
    """Padded tokens per forward pass of an update; bounds memory and changes no result."""
    watch_reference: bool = False
    """Whether the divergence from the reference is computed where the loss does not need it."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(set(names)) < len(names):
            raise ValueError(f"two pools have one name: {', '.join(sorted(names))}")
        batch = self.sampler.groups * self.sampler.size
        if self.sampler.rollouts < batch:
            raise ValueError(
                f"a budget of {self.sampler.rollouts} rollouts is less than one batch of {batch}"
            )
        if self.limits.kl is None and self.watch_reference and not self.algorithm.loss.kl.beta:
            raise ValueError(
                "watch_reference costs a forward pass per update, and without limits.kl and "
                "algorithm.loss.kl.beta nothing reads it"
            )
        return self


def read_spec(path: Path) -> JobSpec:
    """The spec in a JSON file. Raises BadSpec, which names the field, and OSError."""
    try:
        return JobSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadSpec(f"{path} is no spec of a job: {first_problem(error)}") from None
