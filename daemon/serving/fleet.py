"""The fleet: all engines of a home, for code that loads adapters on them.

The engines hold the only state. An engine's tolerance says how far its answers may be from exact
ones. It is measured on the base while no adapter answers, and kept in a file for later commands.
Guarantee: an adapter that gateways know gets its own name on an engine only after a proof under
another name, so no call reaches it before. Not covered: when adapters may be loaded and unloaded
(desired_state.py, staging.py).
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from consumers.reads.serving import AdapterRow, RouteRow
from daemon.adapters.adoption import NoFingerprint, read_expectation
from daemon.adapters.directory import BadAdapter
from daemon.adapters.fingerprint import BaseMixup, Expectation, Proof
from daemon.serving.desired_state import PROBATION, ReplicaContents
from daemon.serving.replica import NotUsable, PathMap, Replica, ReplicaError
from daemon.serving.residency import Role, Room, plan_together
from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from events.files import replace_file
from events.lifecycle import LOADED

if TYPE_CHECKING:
    from daemon.config.settings import Settings, Upstream

_EMBEDDED: Final = "kintsugi"
_ENOUGH: Final = Room(1 << 20, 1 << 20)
"""Room of the embedded engine, without a limit: each adapter is a copy of the weights."""
_UNNAMED: Final = "no engine is named, neither by --upstream nor in the setting upstreams"
_UNSAID: Final = 1
"""Number of adapter slots if neither engine nor settings tell: vLLM's default of --max-loras."""

_logger = logging.getLogger(__name__)


class NoReplica(KintsugiError):
    """No engine is known, or none of the right base."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options that an engine was started with, according to the settings."""

    checkpoint: Path | None = None
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    max_lora_rank: int | None = None


@dataclass(slots=True)
class Engine:
    """One replica: an inference server behind one address."""

    replica: Replica
    started: EngineOptions = EngineOptions()
    kind: str | None = None
    """Kind of the engine; None before it was examined, and after it stopped answering."""
    tolerances: dict[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.replica.url

    def read_contents(self) -> ReplicaContents:
        """Return the base and the adapters that the engine holds. The first call examines the
        engine too. Raises ReplicaError."""
        try:
            if self.kind is None:
                self.replica.examine()
            models = self.replica.list_models()
        except ReplicaError:
            self.kind = None
            raise
        self.kind = models.kind
        return ReplicaContents(self.url, models.base, frozenset(models.adapters))

    def room(self) -> Room:
        """Return its slots and largest rank. Raises NotUsable if settings and engine disagree."""
        limit = self.started.max_loras
        if self.kind == _EMBEDDED:
            return _ENOUGH if limit is None else self._room(limit)
        slots = self.replica.slots()
        if None not in (limit, slots) and limit != slots:
            raise NotUsable(
                f"upstreams[].max_loras of {self.url} is {limit}, and it was started with {slots}; "
                "correct the setting"
            )
        return self._room(limit or slots or _UNSAID)

    def _room(self, slots: int) -> Room:
        return Room(slots, max(slots, self.started.max_cpu_loras or slots))


@dataclass(frozen=True, slots=True)
class Look:
    """Contents of all replicas, as they reported them at one moment."""

    holding: Mapping[str, ReplicaContents]
    """URL -> contents of the replicas that answered."""
    lost: Mapping[str, ReplicaError]
    unnamed: str = _UNNAMED
    """Reason why the fleet is empty, for error texts."""

    def of_base(self, base: str) -> list[str]:
        """Return the URLs of answering replicas with this base."""
        return [url for url, contents in self.holding.items() if contents.base == base]

    @property
    def error_text(self) -> str:
        """Describe the errors of the lost replicas."""
        named = "; ".join(str(error) for error in self.lost.values())
        return named or self.unnamed


class Fleet:
    """All replicas of a home. Only one thread may use it at a time."""

    def __init__(
        self,
        engines: Sequence[Engine],
        calibrations: Path,
        locate: Callable[[str], Path] = Path,
        unnamed: str = _UNNAMED,
    ) -> None:
        """`locate` maps a stored path to a folder; `unnamed` tells why there are no engines."""
        self._unnamed = unnamed
        self.engines = {engine.url: engine for engine in engines}
        self.locate = locate
        self._calibrations = calibrations
        self._expected: dict[str, Expectation] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.engines.values():
            engine.replica.close()

    def look(self) -> Look:
        """Ask each replica for its contents."""
        holding: dict[str, ReplicaContents] = {}
        lost: dict[str, ReplicaError] = {}
        for url, engine in self.engines.items():
            try:
                holding[url] = engine.read_contents()
            except ReplicaError as error:
                lost[url] = error
        return Look(holding, lost, self._unnamed)

    def read_expectation(self, row: AdapterRow) -> Expectation:
        """Return an adapter's expected answers to the probes. Raises NoFingerprint, BadAdapter."""
        if row.path not in self._expected:
            self._expected[row.path] = read_expectation(self.locate(row.path))
        return self._expected[row.path]

    def rivals(self, row: AdapterRow, others: Sequence[AdapterRow]) -> dict[str, Expectation]:
        """Return the expected answers of the base's other adapters with files: each could answer
        instead of `row`. `others` are the RouteTable's rows. The cache for any other adapter is
        dropped."""
        having = {item.path for item in (row, *others)}
        self._expected = {path: item for path, item in self._expected.items() if path in having}
        expectations: dict[str, Expectation] = {}
        for other in others:
            is_other = other.adapter != row.adapter and other.has_files
            if is_other and other.base == row.base:
                try:
                    expectations[other.adapter] = self.read_expectation(other)
                except (BadAdapter, NoFingerprint) as error:
                    _logger.debug("%s is told apart from nobody: %s", other.adapter, error)
        return expectations

    def admit(
        self,
        engine: Engine,
        row: AdapterRow,
        rivals: Mapping[str, Expectation],
        *,
        beside_base: bool = False,
        routed: bool = False,
    ) -> Proof:
        """Load an adapter if needed, and prove that the engine answers with it; `beside_base` also
        proves that the base is unchanged. If gateways may send it sessions at once (a restarted or
        new engine; with `routed` always), it is proven under another name first. On failure it is
        unloaded. Raises ReplicaError, NotProven, BadAdapter, NoFingerprint."""
        tried = row.adapter + PROBATION
        known = routed or row.state in LOADED
        if not known or row.adapter in engine.read_contents().adapters:
            return self._proven(engine, row, row.adapter, rivals, beside_base)
        try:
            self._proven(engine, row, tried, rivals, beside_base)
            return self._proven(engine, row, row.adapter, rivals, beside_base)
        finally:
            _leave(engine, tried)

    def check_base(self, engine: Engine, row: AdapterRow) -> float:
        """Prove that an engine's base is unchanged while a loaded adapter answers; return its
        distance in nats. Raises BaseMixup, ReplicaError, NotProven, NoFingerprint, BadAdapter."""
        return self._base_proven(engine, row.adapter, self.read_expectation(row))

    def _base_proven(self, engine: Engine, beside: str, expected: Expectation) -> float:
        tolerance = self._tolerance(engine, expected)
        try:
            return engine.replica.prove_base(beside, expected, tolerance)
        except BaseMixup as error:
            raise BaseMixup(f"{engine.url}: {error}") from error

    def _proven(
        self,
        engine: Engine,
        row: AdapterRow,
        name: str,
        rivals: Mapping[str, Expectation],
        beside_base: bool,
    ) -> Proof:
        expected = self.read_expectation(row)
        tolerance = self._tolerance(engine, expected)
        engine.replica.load(name, self.locate(row.path))
        try:
            proof = engine.replica.prove(name, expected, tolerance, rivals)
            if beside_base:
                self._base_proven(engine, name, expected)
        except KintsugiError:
            _leave(engine, name)
            raise
        else:
            return proof

    def _tolerance(self, engine: Engine, expected: Expectation) -> float:
        """Return an engine's tolerance, measured once per process while no adapter is loaded (it
        may restart in another precision), else read from the file."""
        asked = sha256(exact_json([engine.url, expected.base.model_dump(), expected.prompts]))
        if asked not in engine.tolerances:
            engine.tolerances[asked] = self._measure_tolerance(engine, expected, asked)
        return engine.tolerances[asked]

    def _measure_tolerance(self, engine: Engine, expected: Expectation, asked: str) -> float:
        known = self._read_tolerances()
        if asked in known and engine.replica.list_models().adapters:
            return known[asked]  # an adapter may answer now, and reach the base
        tolerance = engine.replica.measure_tolerance(expected)
        if known.get(asked) != tolerance:
            self._calibrations.parent.mkdir(parents=True, exist_ok=True)
            content = exact_json({**known, asked: tolerance}).encode()
            replace_file(self._calibrations, content)
        return tolerance

    def _read_tolerances(self) -> dict[str, float]:
        try:
            tolerances: dict[str, float] = json.loads(self._calibrations.read_bytes())
        except (FileNotFoundError, ValueError):
            # The file holds only measurements, and they can be repeated.
            return {}
        return tolerances


def _leave(engine: Engine, name: str) -> None:
    """Unload an adapter that must not stay; if the engine is lost, the reconciler does it later."""
    try:
        engine.replica.unload(name)
    except ReplicaError as error:
        _logger.warning("%s", error, extra={"action": "adapter_left"})


def collect_route_adapters(
    routes: Iterable[RouteRow], base: str, rows: Iterable[AdapterRow]
) -> set[str | None]:
    """Return the adapters in a base's routes, with shadows. None stands for the base, because it
    answers held-out sessions. `rows` are the route table's, to expand versions with members."""
    ours = [route.standing for route in routes if route.standing.base == base]
    shadows = {standing.shadow for standing in ours} - {None}
    held_out = {None} if any(standing.holdout for standing in ours) else set()
    names = shadows.union(held_out, *(standing.adapters for standing in ours))
    return expand_versions(names, rows)


def expand_versions(names: Iterable[str | None], rows: Iterable[AdapterRow]) -> set[str | None]:
    """Return the adapters that answer for these policies. A version becomes its parts and None, the
    base that answers if the chooser is in doubt."""
    wholes = {row.adapter: row.parts for row in rows if not row.has_files}
    policies = set(names)
    parts = (wholes[name] for name in policies if name in wholes)
    expanded = policies.difference(wholes).union(*parts)
    return expanded | ({None} if policies & wholes.keys() else set())


def check_room(
    engine: Engine, holding: ReplicaContents, roles: Mapping[str, Role], wanted: Mapping[str, Role]
) -> tuple[str, ...]:
    """Return the adapters to unload before all of `wanted` (name -> role) can be loaded or change
    roles together. Raises NoRoom with the numbers, NotUsable."""
    others: dict[str, Role] = dict.fromkeys(sorted(holding.adapters - roles.keys()), "pinned")
    ours = {adapter: use for adapter, use in roles.items() if adapter in holding.adapters}
    return plan_together({**others, **ours}, wanted, engine.room(), engine.url).give_up


def open_fleet(settings: "Settings", urls: Sequence[str] = (), unnamed: str = _UNNAMED) -> Fleet:
    """Return the replicas of the settings, or those at `urls`; `unnamed` explains an empty fleet.
    Raises ConfigurationError."""
    from daemon.config.upstreams import key_of, upstreams

    known = {upstream.url.rstrip("/"): upstream for upstream in settings.upstreams}
    engines = [
        _engine(upstream.url, key_of(settings, upstream.url), known.get(upstream.url))
        for upstream in (upstreams(settings, urls) if urls or known else ())
    ]
    calibrations = settings.adapters / "calibrations.json"
    return Fleet(engines, calibrations, settings.adapter_paths.locate, unnamed)


def _engine(url: str, key: str | None, upstream: "Upstream | None") -> Engine:
    if upstream is None:
        return Engine(Replica(url, api_key=key))
    started = EngineOptions(
        upstream.checkpoint, upstream.max_loras, upstream.max_cpu_loras, upstream.max_lora_rank
    )
    return Engine(Replica(url, api_key=key, paths=PathMap(upstream.path_map)), started)
