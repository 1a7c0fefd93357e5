"""Settings that every table has and that decide its result; a folder holds one such plan. Addresses
of endpoints do not decide the result, because the model's answers are checked (endpoint.py). So a
plan may continue at other addresses, and it keeps the earlier ones.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from events.canonical import exact_json, sha256
from events.messages import StrictModel

Source = Literal["endpoint", "in_process", "vllm"]


class EnvironmentDefaults(StrictModel):
    """Evaluated tasks of an environment, and limits of its conversations."""

    split: str
    tasks: int | None = None
    """Number of generated tasks; None for all tasks of the split."""
    traffic: Mapping[str, float] = {}
    """Kind of generated task -> its share; empty for equal shares."""
    max_tokens: int
    tokens: int
    """Assumed tokens of an agent's episode, for estimates only."""


class Addresses(StrictModel):
    """Addresses of the endpoints, each up to `/v1`."""

    base_url: str
    user_base_url: str | None
    proposer_base_url: str | None = None
    """Address of the model that writes plans and tasks; also None in tables without it."""

    @property
    def user(self) -> str:
        """Return the address of the user's model."""
        return self.user_base_url or self.base_url


_ADDRESSES: Final = tuple(Addresses.model_fields)
_HISTORY: Final = ("format", "before")
"""Fields about the plan's storage and earlier addresses, which decide no result."""


class Served(StrictModel):
    """A model behind an endpoint, and its environment. Paths are absolute."""

    format: Literal[2] = 2
    before: tuple[Addresses, ...] = ()
    """Earlier addresses, oldest first."""
    base_url: str
    model: str
    """Name of the base model at the endpoint."""
    checkpoint: Path
    env: str
    split: str
    benchmarks: Path | None
    max_tokens: int
    user_model: str | None
    user_base_url: str | None
    source: Source
    device: str
    dtype: Literal["float32", "bfloat16"]
    seed: int
    concurrency: int

    @property
    def threads(self) -> int | None:
        """Return the number of threads in a job; None for torch's default."""
        return 1 if self.device == "cpu" else None

    @property
    def addresses(self) -> Addresses:
        """Return the current addresses."""
        fields = {name: getattr(self, name) for name in _ADDRESSES if hasattr(self, name)}
        return Addresses(**fields)

    @property
    def first(self) -> Addresses:
        """Return the plan's first addresses, which identify its evaluations in the log."""
        return self.before[0] if self.before else self.addresses

    @property
    def digest(self) -> str:
        """Return the sha256 of the plan without its addresses. Adapters have it in their names."""
        excluded = {*_HISTORY, *_ADDRESSES}
        return sha256(exact_json(self.model_dump(mode="json", exclude=excluded)))

    def find_difference(self, other: Self) -> list[str]:
        """Return the names of fields that differ between two plans, without addresses."""
        own, others = self._dump(), other._dump()
        return [name for name in own if name not in _ADDRESSES and own[name] != others[name]]

    def move(self, addresses: Addresses) -> Self:
        """Return the plan with other addresses."""
        if addresses == self.addresses:
            return self
        fields = {name: getattr(addresses, name) for name in _ADDRESSES if hasattr(self, name)}
        return self.model_copy(update=fields | {"before": (*self.before, self.addresses)})

    def _dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude=set(_HISTORY))
