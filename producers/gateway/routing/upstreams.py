"""The engines behind a gateway: health, models, and the engine of each session.

A loop asks each engine for its models repeatedly. When an engine comes back, probes must prove that
its tokens can be trained on (engine_proof.py). Until then, and if a probe fails, its calls are
recorded as untrainable, with the reason.

Guarantee: a session stays with one engine as long as that engine is healthy; clients' keys are
never sent to engines. Not covered: load, because only session names spread the sessions.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from statistics import median
from typing import Final

from events.errors import KintsugiError
from events.rollouts import NOBODY
from producers.gateway.http.connections import BadAnswer, ExchangeFailure, HttpClient, Reply
from producers.gateway.http.stream_usage import StreamUsage
from producers.gateway.http.wire import DIALECTS, PATHS, Dialect, Json, Refused, encode_json
from producers.gateway.routing.engine_proof import SECONDS, parse_json, run_probes

_POLL_SECONDS: Final = 2.0
_CHECK_SECONDS: Final = 5.0
"""Seconds to wait for an engine's list of models."""
_MAX_CARDS_BYTES: Final = 4 << 20
"""Largest list of models in bytes; enough for thousands of models."""
_CONNECT_SECONDS: Final = 5.0
MOST_TIMES: Final = 64

_NOT_YET: Final = "the engine was not asked for proof yet"

_logger = logging.getLogger(__name__)


class UpstreamFailure(KintsugiError):
    """An unreachable engine or a broken connection. The text names the URL, for operators."""

    @property
    def refusal(self) -> Refused:
        """Return the client's error, without any address of this deployment."""
        return Refused(503, "no engine gave a whole answer; try again", retry_after=1)


class UpstreamBadAnswer(UpstreamFailure):
    """An engine's answer is not valid HTTP, or too long."""

    @property
    def refusal(self) -> Refused:
        return Refused(
            502, "the engine's answer is no proper answer of HTTP; the gateway's log says why"
        )


class FirstTokenTimes:
    """Recent times to the first token of one engine, in seconds."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=MOST_TIMES)

    def add(self, seconds: float) -> None:
        """Remember the seconds to an answer's first token."""
        self._seconds.append(seconds)

    @property
    def median(self) -> float | None:
        """Return the median in seconds; None before the first answer."""
        return median(self._seconds) if self._seconds else None


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model of an engine, as policy and base."""

    policy: str
    base: str


class Upstream:
    """One engine."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        """URL of the engine's API, which ends in `/v1`."""
        self._headers = {"accept-encoding": "identity"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self.well = False
        self.served: Mapping[str, EngineModel] = {}
        self.dialect: Dialect | None = None
        self._usage: StreamUsage | None = None
        """How its streams change with usage; None if not known."""
        self.unproven: str | None = _NOT_YET
        """Why its calls cannot be trained on; None if they can."""
        self.first_tokens = FirstTokenTimes()
        self._default = EngineModel(NOBODY, NOBODY)
        self._looking = asyncio.Lock()
        self._looked_for: int | None = None
        """Position of the routes for which `look_for` last asked for the engine's models."""

    def model(self, name: str | None) -> EngineModel:
        """Return the model that answers a request for `name`."""
        if name is None:
            return self._default
        return self.served.get(name) or EngineModel(name[:128], NOBODY)

    @property
    def base(self) -> str | None:
        """Return the name of its base model; None if it is not known."""
        return None if self._default.policy == NOBODY else self._default.policy

    def build_model_field(self) -> Json:
        """Return the request's field for the base model."""
        return {} if self._default.policy == NOBODY else {"model": self._default.policy}

    def above(self) -> "Upstream":
        """Return the same server with a URL without `/v1`, for paths outside OpenAI's API."""
        server = Upstream(self.url.removesuffix("/v1"))
        server._headers = self._headers
        return server

    @asynccontextmanager
    async def request(
        self, client: HttpClient, method: str, path: str, body: bytes | None, timeout: float
    ) -> AsyncIterator[Reply]:
        """Yield the reply to a request. Raises UpstreamFailure and TimeoutError."""
        headers = self._headers | ({"content-type": "application/json"} if body else {})
        try:
            async with (
                asyncio.timeout(timeout),
                client.request(method, self.url, path, headers, body, _CONNECT_SECONDS) as reply,
            ):
                yield reply
        except TimeoutError as error:
            raise TimeoutError(f"{self.url} gave no whole answer in {timeout:g} s") from error
        except ExchangeFailure as error:
            self.well = False
            kind = UpstreamBadAnswer if isinstance(error, BadAnswer) else UpstreamFailure
            raise kind(f"{self.url}: {error}") from error

    async def complete(self, client: HttpClient, body: Json) -> tuple[int, bytes]:
        """POST `body` to its base; return status and body. Raises UpstreamFailure, TimeoutError."""
        path = PATHS["chat" if "messages" in body else "completions"]
        sent = encode_json(self.build_model_field() | body)
        async with self.request(client, "POST", path, sent, SECONDS) as response:
            return response.status_code, await response.aread()

    async def check(self, client: HttpClient) -> None:
        """Ask for its models, and run probes if due. Raises UpstreamFailure, TimeoutError."""
        await self.look(client)
        if not self.well or self.unproven == _NOT_YET:
            self.well = True
            await self._decide(client)

    async def look(self, client: HttpClient) -> None:
        """Ask for its models. Raises UpstreamFailure, TimeoutError."""
        path = "/models"
        async with self.request(client, "GET", path, None, _CHECK_SECONDS) as response:
            answer = await response.aread(_MAX_CARDS_BYTES)
        if response.status_code != 200:
            self.well = False
            raise UpstreamFailure(f"{self.url}{path} answers {response.status_code}")
        self._take(_cards(answer))

    async def learn(self, client: HttpClient) -> None:
        """Ask for its models if they are unknown, as after a late start; aliases need them."""
        if self.served:
            return
        async with self._looking:
            if not self.served:
                # After a failure the call is still sent, and reports the engine's error.
                with suppress(UpstreamFailure, TimeoutError):
                    await self.look(client)

    async def look_for(self, adapter: str, position: int, client: HttpClient) -> None:
        """Ask for its models if `adapter` is not among them, as it may be newly loaded: once per
        `position` of the routes, for all waiting calls. After a failure the known models stay."""
        if adapter in self.served or not self.well:
            return
        async with self._looking:
            if self._looked_for == position:
                return
            try:
                await self.look(client)
            except (UpstreamFailure, TimeoutError) as error:
                _logger.warning("%s", error, extra={"action": "upstream_not_seen"})
            self._looked_for = position

    def _take(self, cards: Sequence[Json]) -> None:
        names = [card for card in cards if isinstance(card.get("id"), str)]
        self.served = {
            card["id"]: EngineModel(card["id"][:128], str(card.get("parent") or card["id"])[:128])
            for card in names
        }
        bases = [served for served in self.served.values() if served.policy == served.base]
        self._default = bases[0] if bases else EngineModel(NOBODY, NOBODY)
        owners = {card.get("owned_by") for card in names}
        self.dialect = DIALECTS.get(str(owners.pop())) if len(owners) == 1 else None
        self._refine_dialect()

    def _refine_dialect(self) -> None:
        """Set in the dialect how this engine's streams change with usage."""
        if self.dialect is not None and self._usage is not None:
            self.dialect = replace(self.dialect, usage=self._usage)

    async def _decide(self, client: HttpClient) -> None:
        if self.dialect is None:
            self.unproven = "the engine is neither vLLM nor the embedded one, so it is not asked"
            return
        try:
            probes = await run_probes(partial(self.complete, client))
        except (UpstreamFailure, TimeoutError) as error:
            self.unproven = _NOT_YET
            _logger.warning("%s", error, extra={"action": "upstream_not_proven"})
            return
        if isinstance(probes, str):
            self.unproven = probes
        else:
            self.unproven, self._usage = probes.unproven(), probes.usage
            self._refine_dialect()
        if self.unproven is not None:
            extra = {"action": "upstream_unproven"}
            _logger.warning("calls of %s train nothing: %s", self.url, self.unproven, extra=extra)


class Upstreams:
    """All engines of a gateway."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.all = tuple(upstreams)

    @property
    def well(self) -> bool:
        """Return whether any engine is healthy."""
        return any(upstream.well for upstream in self.all)

    def for_session(self, session: str) -> list[Upstream]:
        """Return the engines in the session's order, healthy ones first."""
        return sorted(
            self.all, key=lambda upstream: (not upstream.well, _weight(upstream.url, session))
        )

    async def first_look(self, client: HttpClient) -> None:
        """Ask all engines for their models, before the first request; log failures."""
        looks = (upstream.look(client) for upstream in self.all)
        for result in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(result, Exception):
                _logger.warning("%s", result, extra={"action": "upstream_not_seen"})

    async def watch(self, client: HttpClient) -> None:
        """Check all engines repeatedly until cancelled."""
        while True:
            await asyncio.gather(*(_check(upstream, client) for upstream in self.all))
            await asyncio.sleep(_POLL_SECONDS)


def find_missing(upstreams: Sequence[Upstream], names: Sequence[str]) -> list[str]:
    """Return the names that no healthy engine serves, in the given order."""
    served = {name for upstream in upstreams if upstream.well for name in upstream.served}
    return [name for name in names if name not in served]


async def _check(upstream: Upstream, client: HttpClient) -> None:
    was = upstream.well
    try:
        await upstream.check(client)
    except (UpstreamFailure, TimeoutError) as error:
        upstream.well = False
        if was:
            _logger.warning("%s", error, extra={"action": "upstream_lost"})
        return
    except Exception:
        # An invalid answer must not stop the checks of other engines.
        upstream.well = False
        _logger.exception("%s answers nonsense", upstream.url, extra={"action": "upstream_odd"})
        return
    if not was:
        _logger.info("%s answers", upstream.url, extra={"action": "upstream_well"})


def _weight(url: str, session: str) -> bytes:
    """Return a rendezvous hash, by which a new or removed engine only moves its own sessions."""
    return blake2b(f"{url}\x1f{session}".encode(), digest_size=8).digest()


def _cards(answer: bytes) -> list[Json]:
    document = parse_json(answer)
    cards = document.get("data") if isinstance(document, dict) else None
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
