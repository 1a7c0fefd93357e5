"""Client of one engine that loads adapters and reports its models: vLLM or the embedded engine.

    with Replica("http://10.0.0.7:8000/v1", paths=PathMap({home / "adapters": "/mnt"})) as replica:
        replica.examine()
        tolerance = replica.measure_tolerance(expected)        once, while no adapter answers
        replica.load("agent-120-1f2e3d4c", folder)
        replica.prove("agent-120-1f2e3d4c", expected, tolerance, rivals)
        replica.prove_base("agent-120-1f2e3d4c", expected, tolerance)       beside it
        replica.unload("agent-120-1f2e3d4c")

It holds no state but the connection. Guarantees: an adapter is never replaced. It is an error if
the name was loaded from a folder with another name. A folder with the same name counts as the same,
since folder names end with a hash of the content. After a load, several fresh connections all list
the adapter. Every error tells whether the engine refused or does not answer. Not covered: the state
after a timeout (ask `list_models`), load balancers that pin a client to one engine, and the order
of unloads and deleted files.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn, Self

import httpx2
import re2

from daemon.adapters.fingerprint import (
    Expectation,
    Fingerprint,
    Prompts,
    Proof,
    parse_answer,
    prove,
    prove_base,
    question,
    tolerance,
)
from events.errors import KintsugiError
from producers.gateway.routing.token_scores import build_score_request, read_token_scores

OLDEST_VLLM: Final = (0, 32, 0)
"""Oldest version known to answer with the right adapter while others are being loaded; 0.22.1 and
0.24.0 do not (https://github.com/vllm-project/vllm/issues/47724)."""

CONNECTIONS: Final = 8
"""Number of fresh simultaneous connections that must get the same answer."""
PATIENCE: Final = 120.0
"""Timeout in seconds of a load or the probes: an engine may compile for its first adapter."""

_LOOK_SECONDS: Final = 10.0
"""Timeout in seconds of requests that an engine answers from memory."""
_MAX_ANSWER_BYTES: Final = 16 << 20
"""Largest accepted answer of an engine, in bytes; its metrics are the largest."""
_CONNECT_SECONDS: Final = 5.0
_WRITTEN: Final = 64
"""Tokens that a model writes in the background while a base is probed; fits every context."""

_SCORES: Final = 5
"""Maximum probes of a base while an adapter answers in the background."""

_EMBEDDED: Final = "kintsugi"
_VLLM: Final = "vllm"
_STARTED: Final = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
_SLOTS: Final = re2.compile(r'vllm:lora_requests_info\{[^}]*max_lora="(\d+)"')


class ReplicaError(KintsugiError):
    """An error of an engine, or of a request to it."""


class ReplicaDown(ReplicaError):
    """The engine is unreachable, too slow or broken. The request may have taken effect."""


class LoadRefusal(ReplicaError):
    """The engine refused to load the adapter; nothing is loaded."""


class NameConflict(ReplicaError):
    """The engine uses the name for another adapter or for its base."""


class NoSuchModel(ReplicaError):
    """The engine has no model of this name."""


class NoAnswer(ReplicaError):
    """The engine has the model and refuses to answer the probes, as with NaN weights. Seen on vLLM
    0.32.0: after one request to such an adapter, requests to its base and to other adapters fail
    too, until its cache entries are overwritten. Check with `compatibility.fit` first."""


class SeveralProcesses(ReplicaError):
    """Several processes share the address, and each knows only the adapters loaded into it."""


class NotUsable(ReplicaError):
    """The engine is of the wrong kind or of too old a version."""


class NoPath(ReplicaError):
    """No setting tells where the engine sees a folder of this machine."""


@dataclass(frozen=True, slots=True)
class PathMap:
    """Folders of this machine -> paths of the same folders where the engine runs."""

    prefixes: Mapping[Path, str] = field(default_factory=dict)
    """Folder here -> folder there; the longest matching prefix counts. Empty: paths are equal."""

    def there(self, folder: Path) -> str:
        """Return where the engine sees an absolute folder of this machine. Raises NoPath."""
        if not folder.is_absolute():
            raise NoPath(f"{folder} is not absolute; name adapters by absolute paths")
        if not self.prefixes:
            return str(folder)
        fitting = [prefix for prefix in self.prefixes if folder.is_relative_to(prefix)]
        if not fitting:
            known = ", ".join(sorted(str(prefix) for prefix in self.prefixes))
            raise NoPath(
                f"{folder} is below none of the folders that path_map knows ({known}); add one"
            )
        prefix = max(fitting, key=lambda path: len(path.parts))
        return str(PurePosixPath(self.prefixes[prefix]) / folder.relative_to(prefix).as_posix())


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models that an engine lists."""

    base: str
    """Name of the base; the first if it has several."""
    bases: frozenset[str]
    adapters: Mapping[str, str]
    """Adapter name -> folder that it was loaded from, as a path on the engine's machine."""
    kind: str
    """Owner of its models: `vllm`, `kintsugi` (the embedded engine) or another."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    document: Any
    """JSON of the answer, or None if it is no JSON."""
    text: str

    @property
    def refusal(self) -> str | None:
        """Return the engine's reason for an error; None if the engine did not write the answer."""
        error = self.document.get("error") if isinstance(self.document, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return None if message is None else str(message)

    @property
    def complaint(self) -> str:
        return " ".join((self.refusal or self.text).split())[:400]


class _Writing:
    """Answers that a model writes in a background thread, numbered from 1."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._count = 0
        self._open = False
        """Whether the newest answer is still being written."""
        self.is_over = False
        """Whether to stop: no more answers are needed, or the model gives none."""

    @contextmanager
    def open_answer(self) -> Iterator[Callable[[], None]]:
        """Count a new answer; yield a function to call when a part of it arrives."""
        self._count += 1
        try:
            yield partial(self._set, is_open=True)
        finally:
            self._set(is_open=False)

    def _set(self, *, is_open: bool) -> None:
        with self._change:
            self._open = is_open
            self._change.notify_all()

    def wait(self) -> int:
        """Wait for an answer in progress and return its number; 0 if none will come."""
        with self._change:
            self._change.wait_for(lambda: self._open or self.is_over)
            return self._count if self._open else 0

    def is_open(self, number: int) -> bool:
        """Return whether this answer is still being written."""
        with self._change:
            return self._open and self._count == number

    def end(self) -> None:
        """Request no more answers."""
        with self._change:
            self.is_over = True
            self._change.notify_all()


class Replica:
    """Client of an engine behind one URL; usable from any thread."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        paths: PathMap | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """`url` ends in `/v1`. No request is sent yet."""
        self.url = url.rstrip("/")
        self.paths = paths or PathMap()
        self._patience = patience
        headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        headers["accept-encoding"] = "identity"
        # Each request uses a new connection: otherwise several processes would look like one.
        fresh = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx2.Client(headers=headers, limits=fresh, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def examine(self) -> None:
        """Check the engine's kind, its version, and that one process answers. Raises NotUsable,
        SeveralProcesses, ReplicaDown."""
        models = self._list_consistent_models()
        if models.kind == _EMBEDDED:
            return
        if models.kind != _VLLM:
            raise NotUsable(
                f"{self.url} is an engine of {models.kind!r}; adapters are loaded into vLLM and "
                "into the embedded engine only"
            )
        self._check_version()
        self._check_metrics()

    def list_models(self) -> ModelList:
        """Return the engine's models. Raises ReplicaDown, and NotUsable if it sends no list."""
        reply = self._ask("GET", "/models", None, _LOOK_SECONDS)
        if reply.status != 200:
            raise ReplicaDown(f"{self.url}/models answers {reply.status}: {reply.complaint}")
        return _parse_models(self.url, reply.document)

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter under `name` if it is not loaded; return when every connection lists it.
        Raises LoadRefusal, NameConflict, NoPath, SeveralProcesses, ReplicaDown."""
        there = self.paths.there(folder)
        if not self._is_there(name, there, self.list_models()):
            reply = self._tell("load_lora_adapter", {"lora_name": name, "lora_path": there})
            # Another process may have loaded it meanwhile; the engine then refuses a second load.
            if reply.status != 200 and not self._is_there(name, there, self.list_models()):
                self._check_alive()
                raise LoadRefusal(self._why_not(name, there, reply))
        answers = self._list_models_in_parallel()
        if not all(self._is_there(name, there, models) for models in answers):
            raise SeveralProcesses(
                f"{self.url} loaded {name}, and not every connection names it: {_ONE_PROCESS}"
            )

    def unload(self, name: str) -> None:
        """Stop serving an adapter, if it is served; its running requests end. Raises ReplicaDown,
        and NoSuchModel for a base."""
        reply = self._tell("unload_lora_adapter", {"lora_name": name})
        if reply.status == 200:
            return
        models = self.list_models()
        if name in models.bases:
            raise NoSuchModel(
                f"{name} is the base of {self.url}, which stays as long as the engine"
            )
        if name in models.adapters:
            raise ReplicaDown(
                f"{self.url} does not unload {name}: {reply.status}: {reply.complaint}"
            )

    def score(self, model: str, prompts: Prompts) -> Fingerprint:
        """Return a model's answers to the probes; they wait behind other requests of the engine.
        Raises NoSuchModel, NoAnswer, ReplicaDown, Unreadable."""
        reply = self._ask("POST", "/completions", question(model, prompts), self._patience)
        if reply.status != 200:
            self._raise_refusal(model, reply)
        return parse_answer(reply.document, prompts)

    def tokenize(self, model: str, text: str) -> tuple[int, ...]:
        """Return token ids without special tokens. Raises NoSuchModel, NoAnswer, ReplicaDown."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        url = self.url.removesuffix("/v1") + "/tokenize"
        reply = self._request("POST", url, body, _LOOK_SECONDS)
        if reply.status != 200:
            self._raise_refusal(model, reply)
        try:
            return tuple(int(token) for token in reply.document["tokens"])
        except (TypeError, KeyError, ValueError) as error:
            raise NoAnswer(f"{url} gives no token ids: {reply.complaint}") from error

    def score_labels(
        self, model: str, prompt: Sequence[Mapping[str, str]], tokens: Sequence[int]
    ) -> dict[int, float]:
        """Return each token's log-probability, in nats, as the first token of an answer to a chat
        prompt. Raises NoSuchModel, NoAnswer, ReplicaDown."""
        body = build_score_request(model, prompt, tokens)
        reply = self._ask("POST", "/chat/completions", body, self._patience)
        if reply.status != 200:
            self._raise_refusal(model, reply)
        scores = read_token_scores(reply.document)
        if missing := sorted(set(tokens) - scores.keys()):
            raise NoAnswer(
                f"{self.url} does not report the log-probability of token {missing[0]}, which was "
                "asked for by logprob_token_ids; start an engine that has this field (vLLM "
                f"{'.'.join(map(str, OLDEST_VLLM))}, the embedded engine)"
            )
        return {token: scores[token] for token in tokens}

    def measure_tolerance(self, expected: Expectation) -> float:
        """Prove the engine's base, and return how far its answers may be from the expected ones.
        Call while no adapter answers. Raises OtherBase and the errors of `list_models` and
        `score`."""
        return tolerance(self.score(self.list_models().base, expected.prompts), expected)

    def prove(
        self,
        name: str,
        expected: Expectation,
        tolerance: float,
        rivals: Mapping[str, Expectation] | None = None,
    ) -> Proof:
        """Prove that the engine answers with the adapter `name` and not with one of `rivals`.
        Raises NotProven and the errors of `score`."""
        return prove(self.score(name, expected.prompts), expected, tolerance, rivals)

    def prove_base(self, beside: str, expected: Expectation, tolerance: float) -> float:
        """Prove that the base is unchanged while the adapter `beside` answers; return its largest
        distance in nats.

        One score suffices if an answer of the adapter spans it. The engine may mix nothing between
        two answers, so any other score is repeated, up to `_SCORES` in all. Raises BaseMixup and
        the errors of `score`.
        """
        base, gaps = self.list_models().base, []
        with self._write_in_background(beside, expected.prompts) as writing:
            for _ in range(_SCORES):
                answer = writing.wait()
                if not answer:
                    break
                gaps.append(prove_base(self.score(base, expected.prompts), expected, tolerance))
                if writing.is_open(answer):
                    break
        return max(gaps)

    def slots(self) -> int | None:
        """Return how many adapters run at once (--max-loras); None if the engine does not tell, as
        before its first request. Raises ReplicaDown."""
        match = _SLOTS.search(self._metrics().text)
        return int(match[1]) if match else None

    def _is_there(self, name: str, there: str, models: ModelList) -> bool:
        """Return whether the adapter is loaded from the folder `there`, or from one with that
        folder's name, in case the home moved since. Raises NameConflict."""
        if name in models.bases:
            raise NameConflict(f"{self.url} calls its base {name}; give the adapter another name")
        known = models.adapters.get(name)
        if known is not None and PurePosixPath(known).name != PurePosixPath(there).name:
            raise NameConflict(
                f"{self.url} serves {name} from {known}, and it was to be {there}: an adapter is "
                "never replaced; give each version a name of its own, or unload that one"
            )
        return known is not None

    @contextmanager
    def _write_in_background(self, model: str, prompts: Prompts) -> Iterator["_Writing"]:
        """Inside the block, let a model write answers in the background. Raises their errors."""
        writing = _Writing()

        def write() -> None:
            try:
                while not writing.is_over:
                    self._write(model, prompts, writing)
            finally:
                writing.end()

        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(write)
            try:
                yield writing
            finally:
                writing.end()
            result.result()

    def _write(self, model: str, prompts: Prompts, writing: "_Writing") -> None:
        """Request one answer, and read it until no more answers are needed. Raises NoSuchModel,
        NoAnswer, ReplicaDown."""
        body = {
            "model": model, "prompt": list(prompts[0]), "max_tokens": _WRITTEN,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        with (
            self._guard_request(self.url, self._patience) as limits,
            self._client.stream(
                "POST", f"{self.url}/completions", json=body, timeout=limits
            ) as answer,
        ):
            if answer.status_code != 200:
                self._raise_refusal(model, _reply(self.url, answer))
            with writing.open_answer() as announce:
                for _ in answer.iter_raw():
                    announce()
                    if writing.is_over:
                        return

    def _raise_refusal(self, model: str, reply: _Reply) -> NoReturn:
        """Raise NoSuchModel, NoAnswer or ReplicaDown for a model that gives no answer."""
        if reply.status == 404:
            raise NoSuchModel(f"{self.url} serves no {model}: {reply.complaint}")
        self._check_alive()
        raise NoAnswer(
            f"{self.url} refuses to answer as {model}: {reply.status}: {reply.complaint}; its "
            "weights are damaged, or those of an adapter before it were (what is no number "
            "stays in vLLM's cache and is met by others): unload it, and start the engine again"
        )

    def _why_not(self, name: str, there: str, reply: _Reply) -> str:
        """Return why a load was refused, with the remedy."""
        from daemon.config.settings import NO_HEAD_REMEDY

        remedy = "see its log"
        if reply.status == 404 and reply.refusal:
            remedy = "it does not see that folder: share it with the engine, or set path_map"
        elif reply.status == 404:
            remedy = (
                "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and keep "
                "its port to the gateway"
            )
        elif "max_lora_rank" in reply.text:
            remedy = (
                "start it with --max-lora-rank of the adapter's rank or more, vLLM's default is "
                "16, and say so in upstreams[].max_lora_rank"
            )
        elif "target modules" in reply.text and "lm_head" in reply.text:
            remedy = f"it serves no adapters of the head of such a model; {NO_HEAD_REMEDY}"
        return f"{self.url} does not load {name} from {there}: {reply.complaint} ({remedy})"

    def _list_consistent_models(self) -> ModelList:
        """Return the models if several connections agree on them. Raises SeveralProcesses."""
        # Asked twice: another process may load an adapter in between.
        for _ in range(2):
            answers = self._list_models_in_parallel()
            if all(models == answers[0] for models in answers):
                return answers[0]
        raise SeveralProcesses(
            f"{CONNECTIONS} connections to {self.url} are told different models: {_ONE_PROCESS}"
        )

    def _list_models_in_parallel(self) -> list[ModelList]:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return list(pool.map(lambda _: self.list_models(), range(CONNECTIONS)))

    def _check_version(self) -> None:
        """Raise NotUsable for an old version."""
        text = str((self._above("/version").document or {}).get("version"))
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
        if version < OLDEST_VLLM:
            oldest = ".".join(map(str, OLDEST_VLLM))
            raise NotUsable(
                f"{self.url} is vLLM {text}, which may answer requests with another adapter while "
                f"one is loaded (vLLM issue 47724); install {oldest} or later"
            )

    def _check_metrics(self) -> None:
        """Check by start times in the metrics that one process answers. Raises SeveralProcesses."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            pages = list(pool.map(lambda _: self._metrics().text, range(CONNECTIONS)))
        starts = {match[1] for page in pages if (match := _STARTED.search(page))}
        if len(starts) > 1:
            raise SeveralProcesses(
                f"the metrics of {self.url} are those of {len(starts)} processes: {_ONE_PROCESS}"
            )

    def _check_alive(self) -> None:
        """Raise ReplicaDown unless the engine answers."""
        reply = self._above("/health")
        if reply.status != 200:
            raise ReplicaDown(
                f"{self.url} cannot go on: its health is {reply.status}; see its log, and start it "
                "again"
            )

    def _metrics(self) -> _Reply:
        return self._above("/metrics")

    def _above(self, path: str) -> _Reply:
        return self._request("GET", self.url.removesuffix("/v1") + path, None, _LOOK_SECONDS)

    def _tell(self, what: str, body: Mapping[str, Any]) -> _Reply:
        return self._ask("POST", f"/{what}", body, self._patience)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> _Reply:
        return self._request(method, self.url + path, body, seconds)

    def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float
    ) -> _Reply:
        """Send a request. Raises ReplicaDown."""
        with (
            self._guard_request(url, seconds) as limits,
            self._client.stream(method, url, json=body, timeout=limits) as answer,
        ):
            return _reply(url, answer)

    @contextmanager
    def _guard_request(self, url: str, seconds: float) -> Iterator[httpx2.Timeout]:
        """Yield the timeout of one request. Raises ReplicaDown for any network error."""
        try:
            yield httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        except httpx2.TimeoutException as error:
            raise ReplicaDown(
                f"{url} gave no answer in {seconds:g} s; see to the engine"
            ) from error
        except httpx2.TransportError as error:
            raise ReplicaDown(
                f"{url} cannot be reached: {error or type(error).__name__}; see to the engine"
            ) from error


_ONE_PROCESS: Final = (
    "several engines share the address, and each knows adapters of its own; name each by an "
    "address of its own"
)


def _reply(url: str, answer: httpx2.Response) -> _Reply:
    """Return the answer, read up to a limit. Raises ReplicaDown."""
    coding = answer.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise ReplicaDown(f"{url} encodes its answer as {coding[:40]!r}; have it sent as it is")
    read = bytearray()
    for piece in answer.iter_raw():
        read += piece
        if len(read) > _MAX_ANSWER_BYTES:
            raise ReplicaDown(
                f"{url} answers more than {_MAX_ANSWER_BYTES:,} bytes; see what listens there"
            )
    return _Reply(answer.status_code, _json(read), read.decode(errors="replace"))


def _json(body: bytearray) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _parse_models(url: str, document: Any) -> ModelList:
    try:
        cards = document["data"]
        bases = [str(card["id"]) for card in cards if not card.get("parent")]
        adapters = {str(card["id"]): str(card["root"]) for card in cards if card.get("parent")}
        return ModelList(bases[0], frozenset(bases), adapters, str(cards[0].get("owned_by")))
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise NotUsable(
            f"{url}/models gives no list of models with their parents ({type(error).__name__}: "
            f"{error}); is it an engine?"
        ) from error
