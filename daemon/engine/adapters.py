"""The models that the engine serves by name: a base, and LoRA adapters merged over it.

An adapter is checked first (lora.py): PEFT and vLLM load one full of NaN, or whose targets name
nothing. Guarantees: a name means one model while it is served, and calls keep their policy after an
unload; a failed load leaves nothing behind; files and base of an adapter with a provenance
(daemon/solver/lora.py) are those it names. Adapters that are more than A and B of linear layers
(DoRA, whole modules, the embedding, changed initial weights) are refused by name.
"""

import os
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedModel

from daemon.adapters.directory import BadAdapter, WrongBase, has_provenance, verify
from daemon.engine.identity import weights_sha256
from daemon.engine.lora import count_most_bytes
from daemon.engine.policy import Policy
from events.errors import KintsugiError


class UnknownModel(KintsugiError):
    """No model of this name is served."""


class NameConflict(KintsugiError):
    """A model of this name is served already."""


class NoSuchAdapter(BadAdapter):
    """The adapter's directory does not exist."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """An adapter that the engine serves, with its folder."""

    policy: Policy
    folder: Path


class Adapters:
    """Served policies by name. Any thread may ask; one adapter is loaded at a time."""

    def __init__(self, base: Policy, root: str) -> None:
        """`root` tells where the base came from. A base without a checkpoint is refused."""
        if base.checkpoint is None:
            raise ValueError(f"{base.name} was not loaded from a checkpoint")
        self.base = base
        self.root = root
        self._model: PreTrainedModel = base.checkpoint
        self._loaded: dict[str, AdapterEntry] = {}
        self._loading = threading.Lock()

    @property
    def entries(self) -> dict[str, AdapterEntry]:
        """Name -> adapter, in the order in which they were loaded."""
        return dict(self._loaded)

    def policy(self, name: str | None) -> Policy:
        """Return the policy of this name; None means the base. Raise UnknownModel."""
        if name is None or name == self.base.name:
            return self.base
        entry = self._loaded.get(name)
        if entry is None:
            raise UnknownModel(f"The model `{name}` does not exist.")
        return entry.policy

    def load(self, name: str, folder: Path) -> None:
        """Serve an adapter under a new name. Raise NameConflict, NoSuchAdapter, BadAdapter."""
        with self._loading:
            if name in self._loaded or name == self.base.name:
                raise NameConflict(
                    f"The lora adapter '{name}' has already been loaded; an adapter is never "
                    "replaced: give each version a name of its own."
                )
            self._check(folder)
            self._loaded[name] = AdapterEntry(self._merge(folder, name), folder)

    def unload(self, name: str) -> None:
        """Refuse new requests for the adapter. Raise UnknownModel."""
        if self._loaded.pop(name, None) is None:
            raise UnknownModel(f"The lora adapter '{name}' cannot be found.")

    def _check(self, folder: Path) -> None:
        if not os.path.isdir(folder):
            raise NoSuchAdapter(f"{folder} is no directory of this machine")
        if has_provenance(folder):
            named = verify(folder, count_most_bytes(self._model)).base
            if named.sha256 != self._sha256:
                raise WrongBase(
                    f"{folder} is an adapter of {named.name} with weights {named.sha256[:12]}; "
                    f"{self.base.name} has {self._sha256[:12]}: serve the base it was trained on"
                )

    def _merge(self, folder: Path, name: str) -> Policy:
        try:
            return self.base.with_adapter(folder, name)
        except BadAdapter:
            raise
        # Any error of PEFT is blamed on the adapter; the engine continues.
        except Exception as error:
            raise BadAdapter(
                f"{folder} cannot be merged: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def _sha256(self) -> str:
        return weights_sha256(self._model)
