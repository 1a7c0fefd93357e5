"""Engines, a gateway, a home with adapters and callers, for the drivers of serving.

    with scene(folder, embedded(folder, 2)) as stage:
        name = stage.push(stage.version())
        with stage.run_callers() as calls: ...

Engines, gateway, `kintsugi work` and commands are processes of their own. An engine sees the home's
adapters through a link, which can be pointed at others.
"""

import json
import shutil
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import httpx2
from pydantic import SecretStr

from consumers.reads import serving
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from events.codec import Event, decode
from events.serving import RouteChanged
from events.streams import LEARNING
from ops.faults.gateway_scene import Gateway
from ops.faults.gateway_upstream_kill import RealEngine
from ops.processes import Program, build_environment, run_kintsugi
from ops.random_adapters import SPREAD, Maker
from ops.waits import PATIENCE_SECONDS, run_threads, until

ALIAS: Final = "agent"
BASE: Final = "reference"
TOKENS: Final = 24

_SHOWN: Final = 5
_CLIENTS: Final = 2


class Engine(Protocol):
    """An engine that can be killed and started again at its address."""

    @property
    def url(self) -> str:
        """Return its URL, which ends in `/v1`."""

    def start(self) -> object:
        """Start it and wait until it answers."""

    def kill(self) -> None:
        """Kill it at once."""


@dataclass(slots=True)
class Calls:
    """Results of the calling clients. Each call is a stream of known length in its own session."""

    by: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Answers that were too short but looked complete."""
    unended: int = 0
    """Sessions whose end was refused after a complete answer."""

    @property
    def count(self) -> int:
        """Return the number of finished calls."""
        return self.by.total() + len(self.failed) + len(self.silent)

    def report(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "calls": self.count,
            "failed_calls": len(self.failed),
            "silent": len(self.silent),
            "unended": self.unended,
            "said": self.failed[:_SHOWN] + self.silent[:_SHOWN],
        }


class Caller(threading.Thread):
    """A client thread that calls the gateway again and again until it is stopped."""

    def __init__(self, url: str, calls: Calls, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._calls = calls
        self._over = stop
        self._client = httpx2.Client(base_url=url, timeout=60, trust_env=False)

    def run(self) -> None:
        """Call until the stop."""
        while not self._over.is_set():
            try:
                self._call()
            except (httpx2.HTTPError, ValueError, KeyError) as error:
                self._calls.failed.append(f"{type(error).__name__}: {error}"[:300])
                self._over.wait(0.05)
        self._client.close()

    def _call(self) -> None:
        session = uuid4().hex
        body = {
            "model": ALIAS, "messages": [{"role": "user", "content": "Hello"}], "stream": True,
            "max_tokens": TOKENS, "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        headers = {"x-kintsugi-session": session}
        asked = self._client.stream("POST", "/chat/completions", json=body, headers=headers)
        with asked as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
            answer.raise_for_status()
            who = answer.headers["x-kintsugi-adapter"]
        self._judge(who, lines)
        ended = self._client.post(f"/sessions/{session}/end")
        self._calls.unended += not ended.is_success

    def _judge(self, who: str, lines: Sequence[str]) -> None:
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if "[DONE]" not in line]
        if errors := [chunk["error"] for chunk in chunks if "error" in chunk]:
            self._calls.failed.append(str(errors[0])[:300])
        elif not lines or "[DONE]" not in lines[-1]:
            self._calls.failed.append("the stream ended without [DONE]")
        elif [c["usage"]["completion_tokens"] for c in chunks if c.get("usage")] != [TOKENS]:
            self._calls.silent.append(f"{who} wrote fewer tokens than {TOKENS}: {lines[-2][:200]}")
        else:
            self._calls.by[who] += 1


@dataclass
class Scene:
    """The running engines, gateway and home of a driver."""

    folder: Path
    engines: Sequence[Engine]
    views: Sequence[Path]
    """For each engine, the link through which it sees the home's adapters."""
    gateway: Gateway
    app: App
    variables: Mapping[str, str]
    maker: Maker
    made: int = 0

    @property
    def store(self) -> Path:
        """Return the folder of the home's adapters."""
        return self.app.settings.adapters

    def list_folders(self) -> set[str]:
        """Return the names of the adapters' folders in the home."""
        return {folder.name for folder in self.store.iterdir() if folder.is_dir()}

    def version(self) -> Path:
        """Make an adapter with new weights; return its folder."""
        self.made += 1
        return self.maker.write(self.folder / f"version-{self.made}", SPREAD, seed=self.made)

    def worker(self) -> Program:
        """Return the program `kintsugi work`, which is not started."""
        return Program(self.folder / "work.log", "daemon", "work", **self.variables)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `kintsugi ARGUMENTS` to its end."""
        environment = build_environment(**self.variables)
        return run_kintsugi(("--json", *arguments), environment, PATIENCE_SECONDS)

    def launch_command(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start `kintsugi ARGUMENTS` without waiting, so that it can be killed."""
        with (self.folder / "commands.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "daemon", "--json", *arguments], cwd=self.folder,
                env=build_environment(**self.variables), stdout=output, stderr=output,
            )  # fmt: skip

    def run_json(self, *arguments: str) -> Any:
        """Return the JSON that a command prints. Raise RuntimeError if it fails."""
        ended = self.command(*arguments)
        if ended.returncode != 0:
            raise RuntimeError(f"kintsugi {' '.join(arguments)}: {ended.stderr.strip()}")
        return json.loads(ended.stdout)

    def push(self, directory: Path) -> str:
        """Push an adapter into the home; return its name."""
        return str(self.run_json("adapters", "push", str(directory))["adapter"])

    def promote(self, name: str) -> None:
        """Make an adapter answer the alias alone."""
        self.run_json(*promotion(name))

    def read_incumbent(self) -> str | None:
        """Return the adapter that answers the alias alone, by the tables; None for the base."""
        self.app.settle()
        with self.app.reading() as connection:
            row = serving.route_row(connection, ALIAS)
        return None if row is None else row.standing.incumbent

    def state(self, name: str) -> str:
        """Return the state of an adapter by the tables; `absent` if they lack it."""
        self.app.settle()
        with self.app.reading() as connection:
            row = serving.adapter_row(connection, name)
        return "absent" if row is None else row.state.value

    def read_decisions(self) -> list[Event]:
        """Return every event of `learning`."""
        return [decode(record) for record in self.app.spool.read(LEARNING.name, 0, 0)]

    def flips_to(self, name: str) -> int:
        """Return how many route changes in the log made an adapter answer alone."""
        changes = [
            change.data for change in self.read_decisions() if isinstance(change.data, RouteChanged)
        ]
        return sum([part.adapter for part in change.shares] == [name] for change in changes)

    def read_engine_adapters(self, engine: Engine) -> set[str]:
        """Return the adapters that an engine lists; an empty set if it does not answer."""
        try:
            cards = httpx2.get(f"{engine.url}/models", timeout=30).json()["data"]
        except httpx2.TransportError:
            return set()
        return {card["id"] for card in cards if card.get("parent")}

    def answerer(self) -> str:
        """Make a call; return the adapter that answered it, or `nobody` if it failed."""
        body = {"model": ALIAS, "prompt": "Hello", "max_tokens": 1}
        answer = httpx2.post(f"{self.gateway.url}/completions", json=body, timeout=60)
        return answer.headers.get("x-kintsugi-adapter", "nobody") if answer.is_success else "nobody"

    def serve_new_version(self) -> str:
        """Push and promote an adapter; return its name once it answers."""
        name = self.push(self.version())
        self.promote(name)
        self.wait_for(name)
        return name

    def wait_for(self, name: str) -> None:
        """Wait until the adapter answers. Raise TimeoutError."""
        until(lambda: self.answerer() == name, f"{name} answers")

    @contextmanager
    def run_callers(self) -> Iterator[Calls]:
        """Run calling clients until the block ends."""
        calls, stop = Calls(), threading.Event()
        callers = [Caller(self.gateway.url, calls, stop) for _ in range(_CLIENTS)]
        with run_threads(callers):
            try:
                yield calls
            finally:
                stop.set()


def promotion(name: str) -> tuple[str, ...]:
    """Return the command that makes an adapter answer alone."""
    return "adapters", "promote", name, "--override", "--reason", "a fault is tried"


def point_view(view: Path, folder: Path) -> None:
    """Point an engine's view at another folder of adapters."""
    other = view.with_name(f"{view.name}.new")
    other.symlink_to(folder)
    other.replace(view)


def copy_store_with_other_files(store: Path, folder: Path, name: str, other: Path) -> Path:
    """Copy the adapters' folder, but with the files of another version for the adapter `name`."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(store, folder)
    shutil.rmtree(folder / name)
    shutil.copytree(other, folder / name)
    return folder


@contextmanager
def scene(
    folder: Path,
    engines: Sequence[Engine] | None = None,
    home: Path | None = None,
    **variables: str,
) -> Iterator[Scene]:
    """Yield a scene with everything started, and stop it at the end. By default it has one embedded
    engine and a home below `folder`. `variables` are KINTSUGI_* settings."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, warnings.catch_warnings():
        # PEFT warns about future changes of transformers.
        warnings.simplefilter("ignore")
        engines = embedded(folder, 1) if engines is None else engines
        for engine in engines:
            stack.callback(engine.kill)
            engine.start()
        place = home or folder / "home"
        views = [folder / f"view-{number}" for number in range(len(engines))]
        for view in views:
            view.symlink_to(place / "adapters")
        settings = {**_settings(place, engines, views), **variables}
        gateway = Gateway(folder, [], settings)
        stack.callback(gateway.kill)
        gateway.start()
        app = App(_load_settings(settings))
        stack.callback(app.close)
        yield Scene(folder, engines, views, gateway, app, settings, Maker(CHECKPOINT))


def embedded(folder: Path, count: int) -> list[RealEngine]:
    """Return `count` embedded engines over the reference policy that are not started."""
    folder.mkdir(parents=True, exist_ok=True)
    return [RealEngine(folder / f"engine-{number}.log", name=BASE) for number in range(count)]


def _settings(home: Path, engines: Sequence[Engine], views: Sequence[Path]) -> dict[str, str]:
    upstreams = [
        {
            "url": engine.url,
            "checkpoint": str(CHECKPOINT),
            "path_map": {str(home / "adapters"): str(view)},
        }
        for engine, view in zip(engines, views, strict=True)
    ]
    return {"KINTSUGI_HOME": str(home), "KINTSUGI_UPSTREAMS": json.dumps(upstreams)}


def _load_settings(variables: Mapping[str, str]) -> Settings:
    """Load settings without this process's environment."""
    url = variables.get("KINTSUGI_DATABASE_URL")
    return Settings(
        home=Path(variables["KINTSUGI_HOME"]),
        upstreams=json.loads(variables["KINTSUGI_UPSTREAMS"]),
        database_url=None if url is None else SecretStr(url),
    )
