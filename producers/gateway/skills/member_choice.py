"""Chooses the member of a panel that answers a session.

The session's first engine that has the router is asked over /v1/chat/completions. All prompts of
label_router.py are sent at once, for one token each, with the labels' log-probabilities
(`logprob_token_ids`). These requests are not recorded and carry no client's key. In doubt, the base
answers. A router of form `head` reads the call's own prompt with tools and template variables. A
call of /v1/completions has no such prompt, and the doubt is `failed`.

Guarantee: a session's member is chosen once; its first calls share one request. No call waits
longer than its RouterBound, or fails because of a router. A late router's answer is still timed, so
on a slow engine later calls wait longer, up to the bound. A member is chosen again for another
panel; at the next call, if both router and call failed; and, with `reroutes`, once more after a
doubt, when the user speaks again. Not covered: other gateways.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from events.errors import KintsugiError
from events.jobs import PanelRouter
from events.rollouts import MemberChoice
from producers.gateway.http.connections import AnswerTooLong, HttpClient
from producers.gateway.http.wire import ModelRequest, encode_json
from producers.gateway.metrics.registry import Metrics
from producers.gateway.routing.engine_proof import parse_json
from producers.gateway.routing.routes import Adapter
from producers.gateway.routing.routing import Routing
from producers.gateway.routing.sticky_sessions import SILENT, StickyMember
from producers.gateway.routing.token_scores import read_token_scores, select_prompt_fields
from producers.gateway.routing.upstreams import Upstream, UpstreamFailure
from producers.gateway.skills.label_router import Opening, RouterAnswer, decide, read_scores

MEDIANS: Final = 2
"""Calls wait for a router this many times the engine's median time to the first token."""

_LATE_SECONDS: Final = 10.0
_MOST_LATE: Final = 16

_PATH: Final = "/chat/completions"
_MAX_ANSWER_BYTES: Final = 1 << 20

_logger = logging.getLogger(__name__)


class RouterFailure(KintsugiError):
    """An engine refuses a router's request, or its answer lacks the labels' log-probabilities."""


@dataclass(frozen=True, slots=True)
class RouterBound:
    """How long calls wait for a router, in seconds."""

    least: float
    most: float
    """Most seconds, for a slow engine; without effect if below `least`."""

    def find_seconds(self, upstream: Upstream) -> float:
        """Return `MEDIANS` times the engine's median first-token seconds, within the limits."""
        usual = MEDIANS * (upstream.first_tokens.median or 0.0)
        return max(self.least, min(usual, self.most))


@dataclass(frozen=True, slots=True)
class _Asked:
    kept: StickyMember
    ms: int | None


class MemberChooser:
    """Chooses members for the sessions of one gateway."""

    def __init__(
        self,
        routing: Routing,
        client: HttpClient,
        bound: RouterBound,
        reroutes: bool = False,
    ) -> None:
        self._routing = routing
        self._client = client
        self._bound = bound
        self._reroutes = reroutes
        self._pending: dict[tuple[str, str], asyncio.Task[_Asked]] = {}
        self._late: set[asyncio.Task[RouterAnswer]] = set()
        """Router requests for which no call waits any more; they are timed."""
        self._well = True

    async def choose(
        self,
        name: str,
        adapter: Adapter,
        session: str,
        request: ModelRequest,
        upstreams: Sequence[Upstream],
        metrics: Metrics,
    ) -> MemberChoice:
        """Choose the member of panel `name` for a call. `upstreams`: in the session's order. The
        result names the member's adapter, even if no engine has it."""
        panel, opening = adapter.composition, parse_opening(request)
        assert panel is not None, "members are those of a panel"
        at_turn = opening.ends_with_user
        kept = self._routing.read_member(session, name)
        if kept is not None and not (self._asks_again(kept) and at_turn):
            now = replace(
                kept,
                adapter=panel.find_adapter(kept.name),
                at_turn=kept.at_turn or at_turn,
                shared=True,
            )
            if now != kept:
                self._routing.keep_member(session, name, now)
            return MemberChoice(skill=now.name, adapter=now.adapter, kept=True, doubt=now.doubt)
        key = (session, name)
        pending = self._pending.get(key)
        if pending is not None:
            chosen = replace((await asyncio.shield(pending)).kept, shared=True)
            self._routing.keep_member(session, name, chosen)
            return MemberChoice(
                skill=chosen.name, adapter=chosen.adapter, kept=True, doubt=chosen.doubt
            )
        before = 0 if kept is None else kept.asked
        task = self._pending[key] = asyncio.create_task(
            self._make_choice(name, adapter, session, opening, upstreams, metrics, before)
        )
        task.add_done_callback(lambda _: self._pending.pop(key, None))
        asked = await asyncio.shield(task)
        chosen = asked.kept
        return MemberChoice(
            skill=chosen.name, adapter=chosen.adapter, doubt=chosen.doubt, router_ms=asked.ms
        )

    def reconsider(self, session: str, panel: str) -> None:
        """Let the session's next call choose again, after its call failed, if the router gave no
        answer. Do nothing if other calls use the choice."""
        kept = self._routing.read_member(session, panel)
        if kept is not None and kept.doubt in SILENT and not kept.shared:
            self._routing.drop_member(session, panel)

    async def stop(self) -> None:
        """Cancel all requests to routers."""
        tasks = (*self._pending.values(), *self._late)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _asks_again(self, kept: StickyMember) -> bool:
        """Return whether the router is asked a second time when the user speaks again."""
        once = kept.asked < 2 and kept.at_turn
        return self._reroutes and once and kept.doubt is not None

    async def _make_choice(
        self,
        name: str,
        adapter: Adapter,
        session: str,
        opening: Opening,
        upstreams: Sequence[Upstream],
        metrics: Metrics,
        before: int,
    ) -> _Asked:
        panel = adapter.composition
        assert panel is not None, "members are those of a panel"
        began = time.monotonic()
        asked = await self._ask(panel.router, adapter.base, opening, upstreams)
        seconds = time.monotonic() - began
        answer = asked or RouterAnswer(None, "failed")
        kept = StickyMember(
            answer.skill,
            panel.find_adapter(answer.skill),
            answer.doubt,
            before + 1,
            opening.ends_with_user,
            shared=before > 0,
        )
        self._routing.keep_member(session, name, kept)
        metrics.count_choice(answer.doubt or "member", None if asked is None else seconds)
        return _Asked(kept, None if asked is None else int(seconds * 1000))

    async def _ask(
        self,
        router: PanelRouter,
        base: str,
        opening: Opening,
        upstreams: Sequence[Upstream],
    ) -> RouterAnswer | None:
        """Return the router's answer within its bound; None without an engine or a prompt."""
        # The labels are tokens of this base, so only engines of this base may be asked.
        model = router.adapter or base
        having = [upstream for upstream in upstreams if upstream.well and model in upstream.served]
        requests = opening.build_requests(router, model) if having else []
        if not requests:
            return None
        task = asyncio.create_task(self._ask_engines(router, requests, having))
        try:
            await asyncio.wait({task}, timeout=self._bound.find_seconds(having[0]))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        # No call waits for it now, but its time determines how long later calls wait.
        if len(self._late) < _MOST_LATE:
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        else:
            task.cancel()
        return RouterAnswer(None, "timeout")

    async def _ask_engines(
        self,
        router: PanelRouter,
        requests: Sequence[Mapping[str, Any]],
        upstreams: Sequence[Upstream],
    ) -> RouterAnswer:
        failure: Exception | None = None
        try:
            bodies = [encode_json(request) for request in requests]
            for upstream in upstreams:
                try:
                    answer = await self._read_answer(router, bodies, upstream)
                except (UpstreamFailure, AnswerTooLong, RouterFailure, TimeoutError) as error:
                    failure = error
                else:
                    self._well = True
                    return answer
        except Exception as error:  # a bug of the gateway: the base answers the call
            _logger.exception("a router was not asked", extra={"action": "gateway_bug"})
            failure = error
        if self._well:
            _logger.warning("no router answers: %s", failure, extra={"action": "router_failed"})
        self._well = False
        return RouterAnswer(None, "failed")

    async def _read_answer(
        self, router: PanelRouter, bodies: Sequence[bytes], upstream: Upstream
    ) -> RouterAnswer:
        """Send one body per order; return the router's choice. Raises UpstreamFailure,
        AnswerTooLong, RouterFailure, TimeoutError."""
        tasks = [asyncio.create_task(self._read_logprobs(upstream, body)) for body in bodies]
        try:
            logprobs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        try:
            scores = [read_scores(router, order, row) for order, row in enumerate(logprobs)]
        except KeyError as error:
            raise RouterFailure(f"{upstream.url} scores no token {error}") from error
        return decide(router, scores)

    async def _read_logprobs(self, upstream: Upstream, body: bytes) -> Mapping[int, float]:
        began = time.monotonic()
        patience = max(_LATE_SECONDS, self._bound.find_seconds(upstream))
        async with upstream.request(self._client, "POST", _PATH, body, patience) as response:
            raw = await response.aread(_MAX_ANSWER_BYTES)
        if response.status_code != 200:
            raise RouterFailure(f"{upstream.url} answers a router {response.status_code}")
        scores = read_token_scores(parse_json(raw))
        if not scores:
            raise RouterFailure(
                f"{upstream.url} gives no log-probabilities of tokens by their ids; use vLLM 0.32 "
                "or later, or the embedded engine"
            )
        # The answer has one token, so its time counts even if clients do not stream.
        upstream.first_tokens.add(time.monotonic() - began)
        return scores


def parse_opening(request: ModelRequest) -> Opening:
    """Return the parts of a request from which a router's prompt is made."""
    messages = list_messages(request)
    match request.endpoint:
        case "chat":
            return Opening(messages, select_prompt_fields(request.document))
        case "messages":
            return Opening(messages, {"tools": list(request.tools)} if request.tools else {})
        case _:
            return Opening(messages, None)


def list_messages(request: ModelRequest) -> list[Mapping[str, Any]]:
    """Return a request's messages; text prompts count as the user's, token prompts are left out."""
    if request.endpoint == "completions":
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        return [{"role": "user", "content": text} for text in texts]
    return [message for message in request.raw_messages if isinstance(message, dict)]
