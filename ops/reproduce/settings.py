"""What every table's result depends on, as plain data; a folder holds one such plan."""

from pathlib import Path
from typing import Literal

from events.canonical import exact_json, sha256
from events.messages import StrictModel

Source = Literal["endpoint", "in_process", "vllm"]


class Served(StrictModel):
    """A model behind an endpoint, and the environment that it is evaluated in. Paths are
    absolute."""

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
    def digest(self) -> str:
        """sha256 of all of it; adapters are named after it."""
        return sha256(exact_json(self.model_dump(mode="json")))
