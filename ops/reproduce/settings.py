"""What every table's result depends on, as plain data; a folder holds one such plan.

Where endpoints are reached decides no result: a model is named, and its answers are checked
(endpoint.py). So a plan that was begun goes on at other addresses, and says where it was before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from events.canonical import exact_json, sha256
from events.messages import StrictModel

Source = Literal["endpoint", "in_process", "vllm"]


class EnvironmentDefaults(StrictModel):
    """The tasks on which an environment is evaluated, and the limits of its conversations."""

    split: str
    tasks: int | None = None
    """Tasks where there is no end of them; None: all of the split."""
    traffic: Mapping[str, float] = {}
    """Kind of generated task -> its share; empty: all kinds in equal shares."""
    max_tokens: int
    """Most tokens of one answer."""
    tokens: int
    """Tokens that an agent writes in one episode: an assumption, for estimates alone."""


class Addresses(StrictModel):
    """Where endpoints are reached, each up to `/v1`."""

    base_url: str
    user_base_url: str | None
    proposer_base_url: str | None = None
    """None as well in tables without a proposer."""

    @property
    def user(self) -> str:
        """Where the user's model is reached."""
        return self.user_base_url or self.base_url


_ADDRESSES: Final = tuple(Addresses.model_fields)
_HISTORY: Final = ("format", "before")
"""Fields that say how a plan was stored and where its endpoints were, not what is run."""


class Served(StrictModel):
    """A model behind an endpoint, and the environment that it is evaluated in. Paths are
    absolute."""

    format: Literal[2] = 2
    """Of the file that holds the plan."""
    before: tuple[Addresses, ...] = ()
    """Where the endpoints were before, oldest first; empty: where they are now."""
    base_url: str
    model: str
    """Name of the base at the endpoint."""
    checkpoint: Path
    env: str
    split: str
    benchmarks: Path | None
    max_tokens: int
    user_model: str | None
    user_base_url: str | None
    source: Source
    """Where a job's rollouts come from."""
    device: str
    dtype: Literal["float32", "bfloat16"]
    seed: int
    concurrency: int
    """Episodes at once."""

    @property
    def threads(self) -> int | None:
        """Threads of a job; None: those that torch takes."""
        return 1 if self.device == "cpu" else None

    @property
    def addresses(self) -> Addresses:
        """Where the endpoints are now."""
        fields = {name: getattr(self, name) for name in _ADDRESSES if hasattr(self, name)}
        return Addresses(**fields)

    @property
    def first(self) -> Addresses:
        """Where the endpoints were when the plan was begun: its evaluations go by it."""
        return self.before[0] if self.before else self.addresses

    @property
    def digest(self) -> str:
        """sha256 of all of it but the addresses; adapters are named after it."""
        excluded = {*_HISTORY, *_ADDRESSES}
        return sha256(exact_json(self.model_dump(mode="json", exclude=excluded)))

    def find_difference(self, other: Self) -> list[str]:
        """Return the fields in which another plan is of another run."""
        own, others = self._dump(), other._dump()
        return [name for name in own if name not in _ADDRESSES and own[name] != others[name]]

    def move(self, addresses: Addresses) -> Self:
        """Return the plan with its endpoints at these addresses."""
        if addresses == self.addresses:
            return self
        fields = {name: getattr(addresses, name) for name in _ADDRESSES if hasattr(self, name)}
        return self.model_copy(update=fields | {"before": (*self.before, self.addresses)})

    def _dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude=set(_HISTORY))
