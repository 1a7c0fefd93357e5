"""What the demo does to kintsugi: runs its commands, kills its fold, reads its tables."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumers import database
from consumers.digest import digest
from daemon.app import App
from daemon.settings import Settings
from ops.demo.agent import Attempt

FOLD_SECONDS: Final = 120
"""Far above the few seconds that a fold of some thousand rollouts takes."""

POLL_SECONDS: Final = 0.005


class DemoFailed(Exception):
    """The demo could not show what it is for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A folding process that is gone, and how far the tables are."""

    pid: int
    seconds: float
    folded: int


class Demo:
    """One home with its log and its tables."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.home.mkdir(parents=True)
        self.rollouts = self.home / "rollouts.jsonl"
        configuration = self.home / "kintsugi.toml"
        configuration.write_text("# The demo uses the defaults.\n")
        # What the operator configured (Kafka, a database) has no business in a demo.
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("KINTSUGI_")
        } | {"KINTSUGI_HOME": str(self.home), "KINTSUGI_CONFIG": str(configuration)}

    def write_rollouts(self, made: Iterable[Attempt]) -> None:
        """The rollouts as a file of OpenAI chat records."""
        self.rollouts.write_text("".join(f"{json.dumps(attempt.record)}\n" for attempt in made))

    def run(self, *arguments: str) -> Any:
        """What a command answers."""
        done = subprocess.run(
            [*_KINTSUGI, *arguments, "--json"],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=FOLD_SECONDS,
        )
        if done.returncode != 0:
            raise DemoFailed(f"kintsugi {' '.join(arguments)} failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def fold_and_kill(self, at_least: int, delay: float) -> Ended:
        """Fold until so many rollouts are in the tables and a moment more, then SIGKILL."""
        return self._consume(at_least, delay, signal.SIGKILL)

    def fold(self, total: int) -> Ended:
        """Fold to the end, then stop as an operator would."""
        return self._consume(total, 0, signal.SIGTERM)

    def _consume(self, at_least: int, delay: float, ending: signal.Signals) -> Ended:
        began = time.monotonic()
        with (self.home / "consume.log").open("ab") as log:
            process = subprocess.Popen(
                [*_KINTSUGI, "consume"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            while self._folded() < at_least:
                if process.poll() is not None or time.monotonic() - began > FOLD_SECONDS:
                    raise DemoFailed(
                        f"kintsugi consume folded {self._folded()} rollouts and then no more; "
                        f"see {log.name}"
                    )
                time.sleep(POLL_SECONDS)
            time.sleep(delay)
            seconds = time.monotonic() - began
            process.send_signal(ending)
            process.wait(FOLD_SECONDS)
        finally:
            process.kill()
            process.wait()
        return Ended(process.pid, seconds, self._folded())

    def _folded(self) -> int:
        """Rollouts in the tables, read from beside while the fold runs."""
        file = self.home / "kintsugi.db"
        if not file.exists():
            return 0
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            return int(connection.execute("SELECT count(*) FROM rollouts").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the process has not made its tables yet
                return 0
            raise
        finally:
            connection.close()

    def digest(self, undisturbed: bool = False) -> str:
        """The hash of the tables; `undisturbed` folds the whole log into a second database."""
        url = f"sqlite:///{self.home / 'undisturbed.db'}" if undisturbed else None
        values = {"home": self.home, "database_url": url, "kafka_bootstrap_servers": ""}
        with App(Settings.model_validate(values)) as app:
            if undisturbed:
                app.settle()
            with database.reading(app.engine) as connection:
                return digest(connection)


_KINTSUGI: Final = (sys.executable, "-m", "daemon")
