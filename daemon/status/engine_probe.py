"""The checks of `kintsugi doctor --upstream URL`: whether an engine is started as the gateway needs
it.

Each check, named after a flag of vLLM, sends a request and examines the result; an engine's own
statement is used only as a last resort, and the finding says so.

Guarantee: nothing stays loaded, and serving adapters are not touched: no engine can load the two
adapters that are asked for, since one is missing and the other has no weights. Invisible from
outside: --max-cpu-loras, and --max-lora-rank of an engine that reads other disks.
"""

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import re2

from daemon.config.settings import Gateway
from daemon.serving.replica import OLDEST_VLLM
from daemon.status.doctor.finding import Finding
from daemon.status.doctor.report import Check
from events.errors import KintsugiError
from producers.gateway.http import sse
from producers.gateway.http.connections import HttpClient
from producers.gateway.http.wire import VLLM, Json, encode_json
from producers.gateway.routing.engine_proof import SECONDS, Probes, parse_json, run_probes
from producers.gateway.routing.upstreams import Upstream, UpstreamFailure

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED_SLOTS: Final = 4
"""Adapter slots needed at once: the stable adapter, a canary, one that drains, a spare."""
NEEDED_RANK: Final = 16
"""Rank of the adapters that jobs train."""

_NO_RANK: Final = 1 << 20
"""A rank above every engine's limit."""
_CONNECTIONS: Final = 8
"""Number of fresh connections that send the same request."""

_NAME: Final = "kintsugi_doctor"
_TOOL: Final[Json] = {
    "type": "function",
    "function": {"name": _NAME, "parameters": {"type": "object", "properties": {}}},
}
_HELLO: Final[Json] = {"messages": [{"role": "user", "content": "1 + 1"}], "temperature": 0}
_HERMES: Final = f'<tool_call>\n{{"name": "{_NAME}", "arguments": {{}}}}\n</tool_call>'


class Unreachable(KintsugiError):
    """The engine does not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer to a request."""

    status: int
    raw: bytes

    @property
    def document(self) -> Json:
        """Return the answer's JSON object; empty if it is none."""
        value = parse_json(self.raw)
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """Return the error that the answer describes."""
        error = self.document.get("error")
        text = error.get("message") if isinstance(error, dict) else None
        return str(text)[:300] if text else f"status {self.status}"


@dataclass(frozen=True, slots=True)
class Patient:
    """The engine under test."""

    upstream: Upstream
    """Client for paths below `/v1`."""
    root: Upstream
    """Client for paths of the same server above `/v1`."""
    client: HttpClient

    async def ask(self, path: str, body: Json) -> Answer:
        """Send a POST below `/v1`. Raise UpstreamFailure, TimeoutError."""
        named = body if "lora_name" in body else {**self.upstream.build_model_field(), **body}
        return await self._request(self.upstream, "POST", path, encode_json(named))

    async def tokenize(self, text: str) -> Answer:
        """Ask for the tokens of a raw text. Raise UpstreamFailure, TimeoutError."""
        body = {**self.upstream.build_model_field(), "prompt": text, "add_special_tokens": False}
        return await self._request(self.root, "POST", "/tokenize", encode_json(body))

    async def look(self, path: str) -> Answer:
        """Send a GET above `/v1`. Raise UpstreamFailure, TimeoutError."""
        return await self._request(self.root, "GET", path, None)

    async def _request(
        self, server: Upstream, method: str, path: str, body: bytes | None
    ) -> Answer:
        async with server.request(self.client, method, path, body, SECONDS) as response:
            return Answer(response.status_code, await response.aread())


def examine(upstream: Upstream, gateway: Gateway) -> list[Check]:
    """Run every check for an engine of a gateway with these settings. Raise Unreachable."""
    return asyncio.run(_run_checks(upstream, gateway))


async def _run_checks(upstream: Upstream, gateway: Gateway) -> list[Check]:
    async with HttpClient() as client:
        patient = Patient(upstream, upstream.above(), client)
        try:
            await patient.upstream.look(client)
        except (UpstreamFailure, TimeoutError) as error:
            raise Unreachable(f"{error}; start the engine, or check address and key") from error
        checks = [_engine(patient), await _run_check("version", _version, patient)]
        checks += await _proof(patient)
        checks.append(
            await _run_check("control-tokens", partial(_control_tokens, gateway), patient)
        )
        for name, check in _CHECKS.items():
            checks.append(await _run_check(name, check, patient))
        if patient.upstream.dialect is not VLLM:
            return checks
        if checks[-1].ok:
            for name, check in _OF_ADAPTERS.items():
                checks.append(await _run_check(name, check, patient))
        for name, check in _OF_VLLM.items():
            checks.append(await _run_check(name, check, patient))
        return checks


EngineCheck = Callable[[Patient], Awaitable[Finding]]


async def _run_check(name: str, check: EngineCheck, patient: Patient) -> Check:
    """Run a check; an exception becomes its finding and never ends the others."""
    try:
        return Check(name, *await check(patient))
    except (UpstreamFailure, TimeoutError, OSError) as error:
        return Check(name, False, f"the engine was lost: {error}; see its log")


def _engine(patient: Patient) -> Check:
    upstream = patient.upstream
    served = ", ".join(sorted(upstream.served)) or "nothing"
    if upstream.dialect is None:
        return Check(
            "models",
            False,
            f"serves {served}, and is neither vLLM nor the embedded engine: its calls are "
            "recorded without tokens and train nothing",
        )
    return Check("models", True, f"{upstream.dialect.name} serves {served}")


async def _version(patient: Patient) -> Finding:
    text = str((await patient.look("/version")).document.get("version"))
    if patient.upstream.dialect is not VLLM:
        return True, f"{text}, as it says"
    oldest = ".".join(map(str, OLDEST_VLLM))
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    if numbers >= OLDEST_VLLM:
        return True, f"vLLM {text}, as it says ({oldest} or later)"
    return False, (
        f"vLLM {text}, as it says: requests may be answered with another adapter while one is "
        f"loaded (vLLM issue 47724); install {oldest} or later"
    )


async def _proof(patient: Patient) -> list[Check]:
    try:
        result = await run_probes(partial(patient.upstream.complete, patient.client))
    except (UpstreamFailure, TimeoutError) as error:
        result = f"the engine was lost: {error}; see its log"
    if isinstance(result, str):
        return [Check("return_token_ids", False, result)]
    return [
        await _run_check("return_token_ids", partial(_token_ids, result), patient),
        _proven("logprobs-mode", result.check_logprobs(), "those that tokens are drawn with"),
        _proven("generation-config", result.check_defaults(), "nothing is applied unasked"),
        _tool_strict_level(result),
    ]


def _proven(name: str, why_not: str | None, shown: str) -> Check:
    return Check(name, why_not is None, why_not or f"{shown}, by three probes")


def _tool_strict_level(probes: Probes) -> Check:
    name, why_not = "tool-strict-level", probes.check_tools()
    if why_not is not None:
        return Check(name, False, why_not)
    if probes.masks_tools is None:
        return Check(name, True, "cannot be seen, for a guided chat with a tool is not answered")
    return Check(name, True, "tools are no grammar unless a request says so, by a guided chat")


async def _token_ids(probes: Probes, patient: Patient) -> Finding:
    if (why_not := probes.check_token_ids() or probes.check_counts()) is not None:
        return False, why_not
    asked = {**_HELLO, "max_tokens": 4, "return_token_ids": True, "logprobs": True, "stream": True}
    answer = await patient.ask("/chat/completions", asked)
    if answer.status != 200:
        return False, f"a streamed chat is refused: {answer.message}"
    events = [parse_json(sse.data(event) or b"") for event in sse.Splitter().feed(answer.raw)]
    chunks = [event for event in events if isinstance(event, dict)]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
    ids = sum(len(choice.get("token_ids") or ()) for choice in choices)
    scores = sum(len((c.get("logprobs") or {}).get("content") or ()) for c in choices)
    if not ids or ids != scores or not any(chunk.get("prompt_token_ids") for chunk in chunks):
        return False, f"a stream has {ids} token ids and {scores} log-probabilities; update vLLM"
    return True, "told in whole answers and in streams"


async def _control_tokens(gateway: Gateway, patient: Patient) -> Finding:
    """Check whether the engine reads control tokens in message texts. The check always passes: most
    engines read them, and the gateway has a setting against it."""
    answers = {
        text: (await patient.tokenize(text)).document for text in gateway.list_control_strings()
    }
    tokens = {text: answer["tokens"][0] for text, answer in answers.items() if _is_token(answer)}
    if not any("count" in answer for answer in answers.values()):
        return True, "cannot be seen, for the engine answers no /tokenize"
    if not tokens:
        return True, "none of gateway.control_strings is a token of its model"
    if await _encodes_text(patient, tokens):
        return True, "message texts are encoded without them"
    return True, (
        f"one token each: {', '.join(tokens)}; a message that spells one can forge others, and "
        + (
            "the gateway refuses it"
            if gateway.control_tokens == "refuse"
            else 'is answered; set gateway.control_tokens = "refuse" (docs/security.md)'
        )
    )


def _is_token(answer: Json) -> bool:
    tokens = answer.get("tokens")
    return answer.get("count") == 1 and isinstance(tokens, list) and len(tokens) == 1


async def _encodes_text(patient: Patient, tokens: Mapping[str, int]) -> bool:
    """Return whether a message that spells control tokens adds none to its prompt."""
    plain, spelled = [
        await patient.ask(
            "/chat/completions",
            {
                **_HELLO,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": 1,
                "return_token_ids": True,
            },
        )
        for content in ("x", "x".join(["", *tokens, ""]))
    ]
    ids = [answer.document.get("prompt_token_ids") for answer in (plain, spelled)]
    before, after = (Counter(each) if isinstance(each, list) else None for each in ids)
    if not before or not after:
        return False
    return all(after[token] <= before[token] for token in tokens.values())


async def _tool_choice(patient: Patient) -> Finding:
    asked = {**_HELLO, "tools": [_TOOL], "tool_choice": "auto", "max_tokens": 1}
    answer = await patient.ask("/chat/completions", asked)
    if answer.status == 200:
        return True, "a request with tools is answered"
    return False, (
        f"a request with tools is refused: {answer.message}; start vLLM with "
        "--enable-auto-tool-choice --tool-call-parser hermes"
    )


async def _adapters(patient: Patient) -> Finding:
    """Check that adapters can be loaded: then the engine's refusal names the missing folder."""
    name = f"kintsugi-doctor-{uuid4().hex}"
    nowhere = f"/{name}"
    answer = await patient.ask("/load_lora_adapter", {"lora_name": name, "lora_path": nowhere})
    if nowhere in answer.message:
        return True, "adapters can be loaded while it serves; keep its port to the gateway alone"
    if answer.status == 404:
        return False, (
            "adapters cannot be loaded while it serves; start vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    return False, f"it loads no adapters: {answer.message}; start vLLM with --enable-lora"


async def _rank(patient: Patient) -> Finding:
    """Check the engine's highest rank, which its refusal of an adapter above that limit names."""
    with _adapter_of_no_weights() as folder:
        name = f"kintsugi-doctor-{uuid4().hex}"
        asked = {"lora_name": name, "lora_path": str(folder)}
        answer = await patient.ask("/load_lora_adapter", asked)
    match = re.search(r"max_lora_rank (\d+)", answer.message)
    if match is None:
        return True, (
            f"cannot be seen, for the engine does not read this machine's disk; at least "
            f"{NEEDED_RANK} is needed ({answer.message})"
        )
    rank = int(match[1])
    if rank >= NEEDED_RANK:
        return True, f"{rank}, by an adapter that was refused"
    return False, f"{rank}, by an adapter that was refused; --max-lora-rank {NEEDED_RANK} is needed"


@contextmanager
def _adapter_of_no_weights() -> "Iterator[Path]":
    with tempfile.TemporaryDirectory(prefix="kintsugi-doctor-") as path:
        folder = Path(path)
        folder.chmod(0o755)  # The engine may run as another user.
        config = {"peft_type": "LORA", "r": _NO_RANK, "lora_alpha": 1, "bias": "none"}
        text = json.dumps({**config, "target_modules": ["q_proj"]})
        (folder / "adapter_config.json").write_text(text)
        yield folder


async def _slots(patient: Patient) -> Finding:
    answer = await patient.look("/metrics")
    match = re2.search(rb'vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', answer.raw)
    if match is None:
        return True, f"cannot be seen in its metrics; at least {NEEDED_SLOTS} are needed"
    slots = int(match[1])
    if slots >= NEEDED_SLOTS:
        return True, f"{slots}, by its metrics"
    return False, (
        f"{slots}, by its metrics: more adapters than that wait for each other; "
        f"--max-loras {NEEDED_SLOTS} is needed (stable, canary, draining, one spare)"
    )


async def _cpu_slots(_: Patient) -> Finding:
    return True, (
        "cannot be seen without pushing out adapters that serve; start vLLM with "
        f"--max-cpu-loras {2 * NEEDED_SLOTS}, or it reads adapters from disk again and again"
    )


async def _parser(patient: Patient) -> Finding:
    """Check that the engine parses a tool call in Hermes's form, forced by guided decoding."""
    asked = {**_HELLO, "tools": [_TOOL], "structured_outputs": {"choice": [_HERMES]}}
    answer = await patient.ask("/chat/completions", asked)
    message = _message(answer.document)
    if answer.status != 200:
        return True, f"cannot be seen, for a guided answer is refused: {answer.message}"
    if _NAME in str(message.get("tool_calls")):
        return True, "a call in Hermes's form is read as one, by a guided answer"
    if message.get("content") != _HERMES:
        return True, f"cannot be seen, for this engine does not guide answers: {message}"[:300]
    return False, (
        "a call in Hermes's form stays text; start vLLM with --tool-call-parser hermes, unless "
        "the model writes its calls in another form"
    )


def _message(document: Mapping[str, Any]) -> Json:
    try:
        message = document["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        return {}
    return message if isinstance(message, dict) else {}


async def _commands(patient: Patient) -> Finding:
    """Check whether developers' endpoints are open, with requests that change nothing."""
    opened = [path for path in _DEVELOPERS if (await patient.look(path)).status == 200]
    if opened:
        return True, (
            f"open to whoever reaches its port: {', '.join(opened)} and what comes with them "
            "(VLLM_SERVER_DEV_MODE); the gateway passes none of it on"
        )
    return True, "those of developers are closed, and the gateway passes none on"


_DEVELOPERS: Final = ("/server_info", "/is_sleeping")


async def _processes(patient: Patient) -> Finding:
    """Check that one process is behind the address: each process knows only its own adapters."""
    known = [await _list_models(patient) for _ in range(_CONNECTIONS)]
    if all(names == known[0] for names in known):
        return True, f"{_CONNECTIONS} connections are told the same models"
    return False, (
        f"{_CONNECTIONS} connections are told different models: several processes share the "
        "address; use --api-server-count 1, and name each engine to the gateway"
    )


async def _list_models(patient: Patient) -> set[str]:
    async with HttpClient() as client:
        await patient.upstream.look(client)
    return set(patient.upstream.served)


_CHECKS: Final[Mapping[str, EngineCheck]] = {
    "processes": _processes,
    "enable-auto-tool-choice": _tool_choice,
    "enable-lora": _adapters,
}
_OF_ADAPTERS: Final[Mapping[str, EngineCheck]] = {
    "max-lora-rank": _rank,
    "max-loras": _slots,
    "max-cpu-loras": _cpu_slots,
}
_OF_VLLM: Final[Mapping[str, EngineCheck]] = {
    "tool-call-parser": _parser,
    "commands": _commands,
}
