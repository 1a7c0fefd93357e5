"""Clients of the gateway during a soak, beside the customers with the shop's tasks.

Talkers use OpenAI's client: streams and whole answers, tools, several choices, retries under an
idempotency key, feedback. A stray hangs up in the middle of a stream or sends bad requests.
"""

import json
import random
import threading
from collections import Counter
from typing import Any, Final

import httpx2

from ops.demo.place import ALIAS
from ops.faults.gateway_load import CallAttempt, Ledger, Talker
from ops.waits import Worker

TALKERS: Final = 2
_PER_SECOND: Final = 0.5
_STRAY_SECONDS: Final = 2.0
_AWAY: Final = frozenset({502, 503, 504})
"""Statuses that any call may get while an engine is away."""
_TIMEOUT_SECONDS: Final = 60.0
_HUNG_UP: Final = 0.5

BAD: Final[dict[str, tuple[int, str, bytes]]] = {
    "no JSON": (400, "chat/completions", b"{"),
    "no messages": (400, "chat/completions", json.dumps({"model": ALIAS}).encode()),
    "unknown model": (
        404,
        "chat/completions",
        json.dumps({"model": "nobody", "messages": [{"role": "user", "content": "?"}]}).encode(),
    ),
    "wrong key": (401, "chat/completions", b"{}"),
    "feedback on nothing": (404, "feedback", json.dumps({"call": "no", "score": 1.0}).encode()),
}
"""Name of a bad request -> (required status, path, body)."""


class Stray(Worker):
    """A client that hangs up and sends bad requests."""

    def __init__(self, url: str, key: str, ledger: Ledger, seed: int) -> None:
        super().__init__("stray")
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._ledger = ledger
        self._key = key
        self._random = random.Random(seed)
        self._name = f"stray-{seed}"
        self._asked = 0
        self._client = httpx2.Client(base_url=url, trust_env=False, timeout=_TIMEOUT_SECONDS)

    def work(self) -> None:
        """Send requests until the stop."""
        try:
            while not self.stop_asked.wait(self._random.expovariate(1 / _STRAY_SECONDS)):
                try:
                    self._stray()
                except httpx2.TransportError:
                    self.statuses["away"] += 1
        finally:
            self._client.close()

    def _stray(self) -> None:
        if self._random.random() < _HUNG_UP:
            self._hang_up()
        else:
            self._ask_wrongly(self._random.choice(list(BAD)))

    def _hang_up(self) -> None:
        self._asked += 1
        content = f"Question {self._name}.{self._asked}"
        seen = CallAttempt([{"role": "user", "content": content}], content, stream=True)
        self._ledger.seen.append(seen)
        body: dict[str, Any] = {"model": ALIAS, "messages": seen.messages, "stream": True}
        body |= {"max_tokens": 64, "ignore_eos": True}
        pieces = self._random.randint(0, 5)
        headers = {"authorization": f"Bearer {self._key}"}
        with self._client.stream("POST", "chat/completions", json=body, headers=headers) as answer:
            seen.status = answer.status_code
            seen.call = answer.headers.get("x-kintsugi-call")
            seen.recorded = answer.headers.get("x-kintsugi-recorded")
            for number, _ in enumerate(answer.iter_raw()):
                if number >= pieces:
                    break
        self.statuses["hung up"] += 1

    def _ask_wrongly(self, what: str) -> None:
        deserved, path, body = BAD[what]
        key = self._key[::-1] if what == "wrong key" else self._key
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        answer = self._client.post(path, content=body, headers=headers)
        self.statuses[f"{what}: {answer.status_code}"] += 1
        if answer.status_code not in {deserved, *_AWAY}:
            self.wrong.append(f"{what} was answered with {answer.status_code}: {answer.text[:200]}")


class Traffic:
    """All clients of a soak, in addition to the customers."""

    def __init__(self, url: str, key: str, seed: int) -> None:
        self.ledger = Ledger()
        self._stop = threading.Event()
        self._talkers = [
            Talker(
                url, self.ledger, 1_000 * seed + number, self._stop, per_second=_PER_SECOND,
                extra_body={"max_tokens": 16}, key=key, model=ALIAS,
            )
            for number in range(TALKERS)
        ]  # fmt: skip
        self.stray = Stray(url, key, self.ledger, seed)

    def start(self) -> None:
        """Start the clients."""
        for client in (*self._talkers, self.stray):
            client.start()

    def leave(self) -> None:
        """Stop the clients. Raise the error of a client that ended earlier."""
        self._stop.set()
        for client in (self.stray, *self._talkers):
            client.finish()

    def wrong(self) -> list[str]:
        """Return a sentence for each wrong answer that clients got, at most 20."""
        problems = [
            f"{seen.mark} was answered with {seen.status}: {seen.error}"
            for seen in self.ledger.seen
            if seen.status == 500
        ]
        return [*self.stray.wrong, *problems][:20]
