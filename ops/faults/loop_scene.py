"""A home for one whole loop, as small as possible, and customers who note the answers.

A few customers make a cycle due; its job and trial are short. The gate is easy to pass for an even
seed and hard for an odd one.
"""

import asyncio
import json
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Final

import httpx2

from consumers.reads import serving
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from events.lifecycle import LOADED
from ops.demo.crowd import PACE, serve, write
from ops.demo.place import SIZES, Place
from ops.demo.watch import first_cycle
from ops.faults.loop_processes import Processes
from ops.processes import find_ports
from ops.waits import until
from producers.gateway.privacy.keys import hash_key, mint_key

_AT_ONCE: Final = 4
_PER_MINUTE: Final = 150.0
LOOP: Final = Path(__file__).parent / "loop.toml"
_GATES: Final[Mapping[str, str]] = {
    "easy": "alpha = 0.49\nmin_gain = 0.0\noverall_margin = 1.0\nslice_margin = 1.0\n"
    "format_margin = 1.0\ntoken_growth = 10.0",
    "hard": "alpha = 0.05\nmin_gain = 0.5",
}


@dataclass(frozen=True, slots=True)
class Backends:
    """Addresses of Kafka and PostgreSQL; empty for the home's own files."""

    kafka: str = ""
    database: str = ""


@dataclass(slots=True)
class CustomerLedger:
    """The answers that the customers got."""

    acknowledged: list[str] = field(default_factory=list)
    unrecorded: int = 0
    by: Counter[str] = field(default_factory=Counter)

    async def note(self, answer: httpx2.Response) -> None:
        """Store an answer in the ledger. A call counts when its whole body was read."""
        call = answer.headers.get("x-kintsugi-call")
        if call is None:
            return
        await answer.aread()
        if answer.is_success:
            self.by[answer.headers["x-kintsugi-adapter"]] += 1
        if answer.headers["x-kintsugi-recorded"] == "yes":
            self.acknowledged.append(call)
        else:
            self.unrecorded += 1


class Customers(threading.Thread):
    """A thread with customers who talk to the gateway until `leave`."""

    def __init__(self, place: Place, port: int) -> None:
        super().__init__(name="customers", daemon=True)
        self.heard = CustomerLedger()
        self._place = place
        self._port = port
        self._begun = threading.Event()
        self._told: Callable[[], object] = self._begun.set

    def run(self) -> None:
        """Run until `leave`."""
        with suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        own, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert own is not None, "it runs in one"
        self._told = lambda: loop.call_soon_threadsafe(own.cancel)
        self._begun.set()
        await serve(self._place, self._port, _AT_ONCE, self.heard.note)

    def leave(self) -> None:
        """Disconnect all customers at once, even in the middle of an answer."""
        self._begun.wait()
        if self.is_alive():
            self._told()
        self.join()


@dataclass
class Scene:
    """The running processes, tables and customers of one loop."""

    place: Place
    settings: Settings
    app: App
    processes: Processes
    customers: Customers

    def is_over(self) -> bool:
        """Return whether the cycle has ended, by the tables."""
        with self.app.reading() as connection:
            cycle = first_cycle(connection)
        return cycle is not None and cycle.outcome is not None

    def wait_for_an_answer(self, seconds: float) -> None:
        """Wait until a customer was answered. Raise TimeoutError."""
        until(lambda: self.customers.heard.acknowledged, "a customer is answered", seconds)

    def read_engine_adapters(self) -> set[str] | None:
        """Return the adapters that the engine names; None if it does not answer."""
        url = f"http://127.0.0.1:{self.settings.engine.port}/v1/models"
        try:
            cards = httpx2.get(url, timeout=30, trust_env=False).json()["data"]
        except httpx2.TransportError:
            return None
        return {card["id"] for card in cards if card.get("parent")}

    def read_adapter_bounds(self) -> tuple[set[str], set[str]]:
        """Return (adapters that routes name, adapters that an engine may hold), by the tables."""
        self.app.settle()
        with self.app.reading() as connection:
            table = serving.route_table(connection)
        named = {
            name for route in table.routes for name in route.standing.adapters if name is not None
        }
        return named, {row.adapter for row in table.adapters if row.state in LOADED}

    def is_in_sync(self) -> bool:
        """Return whether the engine holds all routed adapters, and only known ones."""
        held = self.read_engine_adapters()
        routed, allowed = self.read_adapter_bounds()
        return held is not None and routed <= held <= allowed

    def log_end(self, name: str) -> str:
        """Return the end of a program's log."""
        path = self.place.home.parent / f"{name}.log"
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""


@contextmanager
def scene(
    folder: Path,
    seed: int,
    backing: Backends,
    *,
    whole: bool,
    template: Path = LOOP,
    per_minute: float = _PER_MINUTE,
    **filled: object,
) -> Iterator[Scene]:
    """Yield a scene with everything started, and stop it at the end. `filled` has more values for
    the configuration's template."""
    with ExitStack() as stack:
        place = _build_place(folder / "home", seed, backing, template, per_minute, filled)
        settings = settings_of(place)
        app = stack.enter_context(App(settings))
        app.settle()
        processes = Processes(place, settings, whole=whole)
        customers = Customers(place, settings.gateway.port)
        stack.callback(processes.kill)
        processes.start()
        customers.start()
        stack.callback(customers.leave)
        yield Scene(place, settings, app, processes, customers)


def _build_place(
    home: Path,
    seed: int,
    backing: Backends,
    template: Path,
    per_minute: float,
    filled: Mapping[str, object],
) -> Place:
    place, key = Place(home.absolute()), mint_key()
    gateway, engine = find_ports(2)
    home.mkdir(parents=True)
    (home / "customers.key").write_text(key)
    (home / "size.json").write_text(json.dumps(asdict(replace(SIZES["small"], seed=seed))))
    write(home / PACE, str(per_minute))
    text = Template(template.read_text()).substitute(
        kafka=backing.kafka, database=backing.database, checkpoint=CHECKPOINT,
        gateway_port=gateway, engine_port=engine, key=hash_key(key),
        gate=_GATES["hard" if seed % 2 else "easy"], **filled,
    )  # fmt: skip
    place.config.write_text(text)
    return place


def settings_of(place: Place) -> Settings:
    """Return the settings of its processes; this process's environment has no effect."""
    return Settings(home=place.home, **tomllib.loads(place.config.read_text()))
