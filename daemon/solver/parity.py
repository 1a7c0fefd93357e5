"""Compare the loss with a file of cases that an independent implementation computed.

The file holds `inputs` (logp, old, roll, ref, mask as B x T, adv as B) and `cases`: name ->
{config, loss, grad}; `grad` is the gradient with respect to logp. Everything is float64.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from daemon.solver.loss import LossInputs, policy_loss
from events.algorithm import Aggregation, KlConfig, Level, LossConfig, TisConfig
from events.errors import KintsugiError
from events.messages import StrictModel
from events.registry import first_problem

TOLERANCE: Final = 1e-6
"""Largest allowed error of a loss or of an element of a gradient."""

Matrix = tuple[tuple[float, ...], ...]


class BadFixture(KintsugiError):
    """The file is no fixture of the loss."""


class CaseConfig(StrictModel):
    """Configuration under the fixture's names, with the fixture's defaults."""

    level: Level = "token"
    lo: float = 0.2
    hi: float = 0.28
    dual: float | None = None
    tis: Literal["none", "truncate", "mask"] = "none"
    tis_level: Literal["token", "sequence", "geometric"] = "token"
    tis_lo: float = 0.0
    tis_hi: float = 2.0
    kl: Literal["k1", "k2", "k3"] = "k3"
    beta: float = 0.0
    agg: Aggregation = "seq-mean-token-mean"
    t_max: int | None = None

    def loss(self) -> LossConfig:
        """Return the same configuration as this project's LossConfig."""
        return LossConfig(
            level=self.level,
            lo=self.lo,
            hi=self.hi,
            dual=self.dual,
            tis=TisConfig(mode=self.tis, level=self.tis_level, lo=self.tis_lo, hi=self.tis_hi),
            kl=KlConfig(estimator=self.kl, beta=self.beta),
            aggregation=self.agg,
            t_max=self.t_max,
        )


class Case(BaseModel):
    """One configuration and its expected results."""

    config: CaseConfig
    loss: float
    grad: Matrix


class Inputs(StrictModel):
    """Inputs of every case."""

    logp: Matrix
    old: Matrix
    roll: Matrix
    ref: Matrix
    mask: Matrix
    adv: tuple[float, ...]


class Fixture(BaseModel):
    """The part of the fixture file that `compare` needs."""

    inputs: Inputs
    cases: Annotated[dict[str, Case], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        rows, inputs = len(self.inputs.adv), self.inputs
        matrices = {name: getattr(inputs, name) for name in ("logp", "old", "roll", "ref", "mask")}
        matrices |= {f"grad of {name}": case.grad for name, case in self.cases.items()}
        width = len(inputs.logp[0]) if inputs.logp else 0
        for name, matrix in matrices.items():
            if len(matrix) != rows or any(len(row) != width for row in matrix):
                raise ValueError(f"{name} is not {rows} x {width} as adv and logp say")
        return self


@dataclass(frozen=True, slots=True)
class Parity:
    """Largest errors of the project's loss against the fixture's results."""

    cases: int
    max_loss_error: float
    max_grad_error: float
    worst: str
    """Name of the case with the largest error of loss or gradient."""

    @property
    def is_within_tolerance(self) -> bool:
        """Whether both errors are within the tolerance; False if one is NaN."""
        return self.max_loss_error <= TOLERANCE and self.max_grad_error <= TOLERANCE


def read(path: Path) -> Fixture:
    """Read a fixture from its file. Raise BadFixture, OSError."""
    try:
        return Fixture.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadFixture(f"{path} is no fixture of the loss: {first_problem(error)}") from None


def compare(fixture: Fixture) -> Parity:
    """Compute the project's loss for every case; return the largest errors."""
    errors = {name: _errors(fixture.inputs, case) for name, case in fixture.cases.items()}
    return Parity(
        cases=len(errors),
        max_loss_error=_largest(loss for loss, _ in errors.values()),
        max_grad_error=_largest(grad for _, grad in errors.values()),
        worst=max(errors, key=lambda name: _largest(errors[name])),
    )


def _errors(inputs: Inputs, case: Case) -> tuple[float, float]:
    logp = _tensor(inputs.logp).requires_grad_()
    batch = LossInputs(
        logp=logp,
        old_logp=_tensor(inputs.old),
        mask=_tensor(inputs.mask),
        advantage=torch.tensor(inputs.adv, dtype=torch.float64),
        sampler_logp=_tensor(inputs.roll),
        ref_logp=_tensor(inputs.ref),
    )
    loss = policy_loss(batch, case.config.loss())
    (gradient,) = torch.autograd.grad(loss, logp)
    return abs(loss.item() - case.loss), float((gradient - _tensor(case.grad)).abs().max())


def _largest(errors: Iterable[float]) -> float:
    # max() would miss a NaN that is not the first value.
    values = list(errors)
    return math.inf if any(math.isnan(error) for error in values) else max(values)


def _tensor(rows: Matrix) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
