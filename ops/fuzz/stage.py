"""A gateway over the reference policy, and checks of it after hostile requests.

with stage(folder) as fuzzed:
    send_all(fuzzed.gateway.port, requests(seed, count))
    problems = fuzzed.problems()      # stops the gateway, reads its log and folds it
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import httpx2

from ops.faults.gateway_scene import Gateway
from ops.faults.gateway_upstream_kill import RealEngine
from ops.processes import build_environment, run_kintsugi

CLIENT_SECONDS: Final = 0.5

_SETTINGS: Final = {
    "KINTSUGI_GATEWAY__CLIENT_SECONDS": str(CLIENT_SECONDS),
    "KINTSUGI_GATEWAY__MAX_BODY_BYTES": "200000",
    "KINTSUGI_GATEWAY__FEEDBACK_PER_MINUTE": "1000000000",
    "KINTSUGI_REDACTION__RULES": '["email", "secret"]',
}
_LENGTH: Final = 128
"""Context length in tokens; small, so that requests of the maximum end soon."""


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A gateway that gets hostile requests."""

    gateway: Gateway

    def problems(self) -> list[str]:
        """Stop the gateway. Return the errors of the gateway and of its log."""
        complaints: list[str] = []
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        answer = httpx2.post(f"{self.gateway.url}/chat/completions", json=body, timeout=120)
        if answer.status_code != 200 or answer.headers["x-kintsugi-recorded"] != "yes":
            complaints.append(f"afterwards it answers {answer.status_code}: {answer.text[:500]}")
        if (status := self.gateway.stop()) != 0:
            complaints.append(f"it ended with {status}")
        output = self.gateway.output.read_text(errors="replace")
        for sign in ("Traceback", "ERROR", "Exception"):
            if sign in output:
                at = output.index(sign)
                complaints.append(f"it said {sign}: {output[max(0, at - 500) : at + 3000]}")
        return complaints + self._check_records()

    def _check_records(self) -> list[str]:
        complaints = []
        for arguments in (
            ("log", "verify", "--json"),
            ("work", "--once", "--json"),
            ("diagnose", "--json"),
            ("rebuild", "--json"),
        ):
            done = self._kintsugi(*arguments)
            if done.returncode != 0:
                complaints.append(f"kintsugi {' '.join(arguments)}: {done.stdout}{done.stderr}")
        letters: list[Any] = json.loads(self._kintsugi("dlq", "list", "--json").stdout)
        return complaints + [f"a dead letter: {letter}" for letter in letters]

    def _kintsugi(self, *arguments: str) -> "CompletedProcess[str]":
        home = str(self.gateway.home)
        return run_kintsugi(
            arguments, build_environment(KINTSUGI_HOME=home, KINTSUGI_SESSIONS__IDLE_SECONDS="1")
        )


@contextmanager
def stage(folder: Path) -> Iterator[FuzzTarget]:
    """Run an engine and a gateway until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = RealEngine(folder / "engine.log", "checkpoint", "--length", str(_LENGTH))
    gateway = Gateway(folder, [engine.url], _SETTINGS)
    with ExitStack() as stack:
        stack.callback(engine.kill)
        engine.launch()
        stack.callback(gateway.kill)
        gateway.start()
        yield FuzzTarget(gateway)
