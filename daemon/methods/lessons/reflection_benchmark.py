"""Tool-Reflection-Bench for any endpoint: reads items, asks for answers, stores and scores them.

    read_items     {"messages", "ground_truth"} each line, as released; `operator` if known
    Answers        the file of a run's answers, one per item and sample
    ask_all        asks for missing answers, and appends each at once
    report         Repair@k by the official rule and by the mended one (envs/reflection)

An answer is appended before it counts, so after a crash the run goes on with the next one. A sample
without an answer (time out, conversation too long, empty message) is wrong. If a machine failed,
the sample is unjudged, and the next run asks again. The items' prompts contain the tools, so none
are sent. Calls that an endpoint takes out of the text are put back.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from envs import statistics
from envs.episode import Termination
from envs.reflection.mended import is_repaired
from envs.reflection.official import ARGUMENTS, Dialect, score_officially
from events import private
from events.canonical import exact_json, sha256
from events.errors import KintsugiError, WrongUsage
from events.messages import Message, ToolCall

if TYPE_CHECKING:
    from envs.endpoint import Endpoint

DEPTHS: Final = (1, 3, 5)
"""The values of k for which Repair@k is reported."""

FAILURES_IN_A_ROW: Final = 10
"""Number of failed requests in a row after which the run stops."""

_ROLES: Final = ("system", "user", "assistant")

Slot = tuple[int, int]
"""(Line of the item, number of the sample)."""


class BadAnswers(KintsugiError):
    """The file of answers was not written by this program."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the benchmark."""

    line: int
    messages: tuple[Message, ...]
    gold: str
    operator: str | None
    """The kind of wrong call that the item begins with, if known."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A line of the file that is no valid item."""

    line: int
    reason: str


def read_items(path: Path) -> tuple[list[Item], list[Damage]]:
    """Return the file's items and damaged lines. Raise OSError, WrongUsage without items."""
    items: list[Item] = []
    damaged: list[Damage] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                read = _read_item(number, line)
                items += [read] if isinstance(read, Item) else []
                damaged += [read] if isinstance(read, Damage) else []
    if not items:
        first = f": line {damaged[0].line} {damaged[0].reason}" if damaged else ""
        raise WrongUsage(
            f"{path} has no item of Tool-Reflection-Bench{first}; each line is "
            '{"messages": [...], "ground_truth": "..."}'
        )
    return items, damaged


def _read_item(number: int, line: bytes) -> Item | Damage:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        return Damage(number, f"is no JSON ({error})")
    if not isinstance(record, dict):
        return Damage(number, "is no JSON object")
    gold = record.get("ground_truth", record.get("groundtruth"))
    if isinstance(gold, dict):
        gold = gold.get("content")
    if not isinstance(gold, str):
        return Damage(number, "has no text as ground_truth")
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        return Damage(number, "has no messages")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return Damage(number, f"has a message whose role is none of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str):
            return Damage(number, "has a message whose content is no text")
    operator = record.get("operator")
    return Item(
        line=number,
        messages=tuple(Message(role=m["role"], content=m["content"]) for m in messages),
        gold=gold,
        operator=operator if isinstance(operator, str) else None,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings on which an answer depends."""

    base_url: str
    model: str
    dialect: Dialect
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    moved_from: str | None = None
    """URL of the endpoint when the run began; None if it is still the same."""


def digest_of(settings: Settings, items: Sequence[Item]) -> str:
    """Return the run's identity, a digest. It does not depend on the number of samples."""
    asked = [[item.line, *([m.role, m.text] for m in item.messages)] for item in items]
    answered = {
        name: getattr(settings, name)
        for name in ("base_url", "model", "temperature", "top_p", "max_tokens", "seed", "extra")
    }
    if settings.moved_from is not None:
        answered["base_url"] = settings.moved_from
    return sha256(exact_json(["reflection", answered, asked]))


@dataclass(frozen=True, slots=True)
class Answer:
    """An endpoint's answer, or the kind of its failure."""

    text: str | None
    failure: str | None = None


class Answers:
    """The stored answers of a run: a context manager that one process at a time may use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Slot, Answer] = {}

    def __enter__(self) -> Self:
        private.make_folder(self.path.parent)
        private.create_file(self.path)
        self._file: IO[bytes] = open(self.path, "r+b")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, slot: Slot, answer: Answer) -> None:
        """Append an answer. Once this returns, the answer survives a kill of the process."""
        record = {"line": slot[0], "sample": slot[1], "text": answer.text}
        record |= {} if answer.failure is None else {"failure": answer.failure}
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        self.known[slot] = answer

    def _read(self) -> None:
        """Read the stored answers. Drop a last line without a line end: a kill interrupted it."""
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                slot = int(record["line"]), int(record["sample"])
                self.known[slot] = Answer(record["text"], record.get("failure"))
            except (ValueError, KeyError, TypeError) as error:
                raise BadAnswers(
                    f"{self.path}, line {number} is no answer ({error!r}); remove the file to ask "
                    "for all answers again"
                ) from None
            end += len(line)
        self._file.seek(end)
        self._file.truncate()


async def ask_all(
    endpoint: "Endpoint",
    settings: Settings,
    items: Sequence[Item],
    missing: Sequence[Slot],
    answers: Answers,
    concurrency: int,
    progress: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """Ask for the missing answers and store them; return the reasons of machines' failures. Raise
    EndpointRefusal; EndpointUnavailable if it is away or FAILURES_IN_A_ROW requests failed."""
    spoilt: list[str] = []
    in_a_row = 0
    coming = iter(missing)
    by_line = {item.line: item for item in items}

    async def work() -> None:
        nonlocal in_a_row
        for line, sample in coming:
            answer, reason = await _ask(endpoint, settings, by_line[line], sample)
            if answer is None:
                spoilt.append(f"line {line}, sample {sample}: {reason}")
                in_a_row += 1
                await _check(endpoint, in_a_row, reason)
            else:
                in_a_row = 0
                answers.add((line, sample), answer)
            progress(1)

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(missing)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return spoilt


async def _check(endpoint: "Endpoint", in_a_row: int, reason: str) -> None:
    """Raise EndpointUnavailable if more requests would fail too."""
    from envs.endpoint import EndpointUnavailable

    await endpoint.check()
    if in_a_row >= FAILURES_IN_A_ROW:
        raise EndpointUnavailable(
            f"{in_a_row} requests in a row failed, the last one because of {reason}; see to the "
            "endpoint, then run the same command to go on"
        )


async def _ask(
    endpoint: "Endpoint", settings: Settings, item: Item, sample: int
) -> tuple[Answer | None, str]:
    """Return the answer; or None and the reason if a machine failed."""
    from envs.endpoint import AnswerFailure, Sampling, request_seed

    sampling = Sampling(
        settings.temperature, settings.max_tokens, {"top_p": settings.top_p, **settings.extra}
    )
    try:
        completion = await endpoint.complete(
            item.messages,
            sampling=sampling,
            seed=request_seed(settings.seed, item.line, sample),
        )
    except AnswerFailure as failure:
        if failure.termination is Termination.INFRASTRUCTURE_ERROR:
            return None, failure.reason
        return Answer(None, str(failure.termination)), failure.reason
    text = completion.content or completion.message.text
    return Answer(render(text, completion.message.tool_calls, settings.dialect)), ""


def render(text: str, tool_calls: Sequence[ToolCall], dialect: Dialect) -> str:
    """Return the answer's text with the calls that the endpoint had taken out of it."""
    calls = [
        f'{{"name": {json.dumps(call.name)}, "{ARGUMENTS[dialect]}": {_render_arguments(call)}}}'
        for call in tool_calls
    ]
    if not calls:
        return text
    if dialect == "llama":
        written = f"[{', '.join(calls)}]"
    else:
        written = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    return f"{text}\n{written}" if text else written


def _render_arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The verdicts on an item's samples; None for an unjudged sample."""

    item: Item
    official: tuple[bool | None, ...]
    mended: tuple[bool | None, ...]
    overlaps: tuple[float, ...]
    """For each judged sample, the share of gold's calls that it makes by the official rule."""


def score_all(
    items: Sequence[Item], answers: Mapping[Slot, Answer], samples: int, dialect: Dialect
) -> Iterator[ItemScores]:
    """Yield the verdicts on each item."""
    for item in items:
        asked = [answers.get((item.line, sample)) for sample in range(samples)]
        scores = [_score(answer, item.gold, dialect) for answer in asked]
        yield ItemScores(
            item,
            official=tuple(official for official, _, _ in scores),
            mended=tuple(mended for _, mended, _ in scores),
            overlaps=tuple(overlap for _, _, overlap in scores if overlap is not None),
        )


def _score(
    answer: Answer | None, gold: str, dialect: Dialect
) -> tuple[bool | None, bool | None, float | None]:
    """Return the official verdict, the mended one and the overlap; None if unjudged."""
    if answer is None:
        return None, None, None
    if answer.text is None:
        return False, False, 0.0
    score = score_officially(answer.text, gold, dialect)
    return score.correct, is_repaired(answer.text, gold, dialect), score.overlap


def report(
    items: Sequence[Item], answers: Mapping[Slot, Answer], samples: int, settings: Settings
) -> dict[str, Any]:
    """Return the document that `kintsugi bench reflection --json` prints."""
    scores = list(score_all(items, answers, samples, settings.dialect))
    operators = sorted({item.operator for item in items if item.operator is not None})
    asked = [(item.line, sample) for item in items for sample in range(samples)]
    known = [answers[slot] for slot in asked if slot in answers]
    return {
        "samples": samples,
        "model": settings.model,
        "dialect": settings.dialect,
        **_describe(scores),
        "per_operator": {
            operator: _describe([score for score in scores if score.item.operator == operator])
            for operator in operators
        },
        "gold": {
            "official": _share(
                score_officially(item.gold, item.gold, settings.dialect).correct for item in items
            ),
            "mended": _share(is_repaired(item.gold, item.gold, settings.dialect) for item in items),
        },
        "unjudged": len(asked) - len(known),
        "failures": dict(sorted(Counter(a.failure for a in known if a.failure).items())),
    }


def _describe(scores: Sequence[ItemScores]) -> dict[str, Any]:
    overlaps = [overlap for score in scores for overlap in score.overlaps]
    official = {score.item.line: score.official for score in scores}
    return {
        "n": len(scores),
        "official": {
            **_estimate({str(line): verdicts for line, verdicts in official.items()}),
            "average": sum(overlaps) / len(overlaps) if overlaps else None,
        },
        "mended": _estimate({str(score.item.line): score.mended for score in scores}),
    }


def _estimate(outcomes: statistics.Outcomes) -> dict[str, Any]:
    """Return unbiased Repair@k, and the benchmark's own figure: any of the first k is right."""
    most = statistics.most_trials(outcomes)
    depths = [k for k in DEPTHS if k <= most]
    return {
        "repair_at": {str(k): asdict(statistics.repair_at(outcomes, k)) for k in depths},
        "any_of": {
            str(k): asdict(statistics.mean([_any_of(own, k) for own in outcomes.values()]))
            for k in depths
        },
    }


def _any_of(verdicts: Sequence[bool | None], k: int) -> float:
    return float(any([verdict for verdict in verdicts if verdict is not None][:k]))


def _share(verdicts: Iterator[bool]) -> float:
    values = list(verdicts)
    return sum(values) / len(values)
