"""Prove which policies answer a home's customers: by the gateway's headers, checked at the engine.

The engine is asked the probes of each adapter that the route names. Its answers must equal those
computed from the adapter's files (daemon/adapters/fingerprint.py).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import httpx2

from consumers.reads import serving
from daemon.adapters.fingerprint import EXACT, Proof
from daemon.core.app import App
from daemon.serving.fleet import open_fleet
from events.errors import KintsugiError
from ops.demo.place import ALIAS, Place
from ops.processes import answers
from ops.waits import until

CALLS: Final = 16
"""Number of calls, each in a session of its own, so that each policy with a share gets some."""


class NoGatewayAnswer(KintsugiError):
    """The gateway gave no answer."""


@dataclass(frozen=True, slots=True)
class RouteProof:
    """The policies that answered through the gateway, and the proofs at the engine."""

    calls: Mapping[str, int]
    """Policy in the header `x-kintsugi-adapter` -> calls; the base has its own name."""
    recorded: int
    proofs: Mapping[str, Proof]


def proof(app: App, place: Place) -> RouteProof:
    """Prove it. Raise NoGatewayAnswer, NotProven, ReplicaError, NoFingerprint or BadAdapter."""
    # If the cycle had ended in an earlier run, the gateway has only just been started.
    url = f"http://127.0.0.1:{app.settings.gateway.port}/readyz"
    try:
        until(lambda: answers(url), f"{url} is ready; see gateway.log")
    except TimeoutError as error:
        raise NoGatewayAnswer(str(error)) from None
    replies = [_ask(app, place) for _ in range(CALLS)]
    return RouteProof(
        calls=Counter(answer.headers["x-kintsugi-adapter"] for answer in replies),
        recorded=sum(answer.headers["x-kintsugi-recorded"] == "yes" for answer in replies),
        proofs=_proofs(app),
    )


def _ask(app: App, place: Place) -> httpx2.Response:
    body = {
        "model": ALIAS, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8,
    }  # fmt: skip
    headers = {
        "authorization": f"Bearer {place.key}",
        "x-kintsugi-session": f"proof-{uuid4().hex}",
    }
    url = f"http://127.0.0.1:{app.settings.gateway.port}/v1/chat/completions"
    try:
        answer = httpx2.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    except httpx2.HTTPError as error:
        raise NoGatewayAnswer(f"{url}: {error or type(error).__name__}; see gateway.log") from error
    if not answer.is_success:
        raise NoGatewayAnswer(f"{url} answered {answer.status_code}: {answer.text[:300]}")
    return answer


def _proofs(app: App) -> dict[str, Proof]:
    with app.reading() as connection:
        table = serving.route_table(connection)
    route = table.route(ALIAS)
    names = set() if route is None else route.standing.adapters - {None}
    rows = [row for row in table.adapters if row.adapter in names]
    with open_fleet(app.settings) as fleet:
        (engine,) = fleet.engines.values()
        return {
            row.adapter: engine.replica.prove(
                row.adapter, fleet.read_expectation(row), EXACT, fleet.rivals(row, table.adapters)
            )
            for row in rows
        }
