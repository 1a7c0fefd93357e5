"""Results of the Berkeley Function-Calling Leaderboard: JSON Lines of {id, result, ...}.

`bfcl generate` writes `BFCL_v4_<category>_result.json`, `bfcl evaluate` writes
`BFCL_v4_<category>_score.json`, into equal trees `result/` and `score/` (or side by side). A score
file holds a summary and the failures only, so it judges its result file and is nothing by itself:
the answers named there failed, and if it judged as many as the result file holds, the others
passed. Without it there is no verdict.

The conversation is in `inference_log`; without that, `result` gives the calls alone, per turn and
step. Calls are text of the model: they are parsed, never run. Mapping: docs/formats.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from events.canonical import exact_json, sha256
from events.messages import Action, Message
from events.rollouts import RolloutContent, RolloutEnded, Task
from producers.conversation import findings
from producers.importers.bfcl_conversation import hit_step_limit, parse_call, read_log, read_result
from producers.importers.documents import RawRecord, Shape, lines, records
from producers.importers.records import Record, Rejection, RolloutImport, Source
from producers.storable import Unusable, Wire

NAME: Final = "bfcl"
GRADER: Final = "bfcl evaluate"

_SUMMARY: Final = frozenset({"accuracy", "total_count"})
_INFERENCE_ERROR: Final = "Error during inference"


class WireVerdict(Wire):
    """A failure, of a score file."""

    id: str
    valid: bool
    model_name: str | None = None
    possible_answer: list[list[str]] | None = None


class WireResult(Wire):
    """What the model answered, of a result file."""

    id: str
    result: Any
    inference_log: list[Any] = []
    model_name: str | None = None
    valid: bool | None = None


class WireRow(Wire):
    """The canonical record: an answer, and how it was judged."""

    result: WireResult
    verdict: WireVerdict | None = None
    passed: bool = False


@dataclass(slots=True)
class _Score:
    """What a score file says."""

    failures: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    model_name: str | None = None

    def covers_all(self, rows: int) -> bool:
        """Return whether every answer that is not among the failures passed: all answers were
        judged, and every counted failure is here, so the file was not cut off."""
        total, correct = self.summary.get("total_count"), self.summary.get("correct_count")
        if not isinstance(total, int) or not isinstance(correct, int):
            return False
        return total >= rows and len(self.failures) == total - correct


def recognises(shape: Shape, keys: frozenset[str]) -> bool:
    """Whether the first record's keys are those of a result or a score file."""
    return {"id", "result"} <= keys or keys >= _SUMMARY


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and "id" in value and "result" in value


def read(source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]:
    """Every answer of a result file; a score file is read with its result file."""
    if _is_score(source.path):
        if _partner(source.path, "score", "result") is None:
            reason = "holds only the failures of a result file; import that file with this beside"
            yield source.rejection("file", reason)
        return
    score = _score(_partner(source.path, "result", "score"))
    rows = sum(isinstance(item, RawRecord) for item in records(source.path, shape, is_record))
    complete = score.covers_all(rows)
    for item in source.track_progress(records(source.path, shape, is_record)):
        row = _attach_verdict(item, score, complete) if isinstance(item, RawRecord) else item
        yield source.attempt(row, lambda record: _parse(source, record, score.model_name))


def _is_score(path: Path) -> bool:
    first = next(lines(path), None)
    return (
        isinstance(first, RawRecord)
        and isinstance(first.value, dict)
        and (first.value.keys() >= _SUMMARY)
    )


def _partner(path: Path, own: str, other: str) -> Path | None:
    """The file that goes with this one: beside it, or at the same place of the other tree."""
    name = path.name.replace(f"_{own}.json", f"_{other}.json")
    if name == path.name:
        return None
    parts = list(path.parent.parts)
    folders = [path.parent]
    for index in reversed(range(len(parts))):
        if parts[index].startswith(own):
            folder = parts[index].replace(own, other, 1)
            folders.append(Path(*parts[:index], folder, *parts[index + 1 :]))
            break
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _score(path: Path | None) -> _Score:
    """What can be read of it; what cannot is missing in the count."""
    score = _Score()
    for line in lines(path) if path is not None else ():
        value = line.value if isinstance(line, RawRecord) else None
        if not isinstance(value, dict):
            continue
        if value.keys() >= _SUMMARY:
            score.summary = value
        elif isinstance(value.get("id"), str):
            score.failures[value["id"]] = value
            if isinstance(value.get("model_name"), str):
                score.model_name = value["model_name"]
    return score


def _attach_verdict(item: RawRecord, score: _Score, complete: bool) -> RawRecord:
    name = item.value.get("id") if isinstance(item.value, dict) else None
    verdict = score.failures.get(name) if isinstance(name, str) else None
    value: dict[str, Any] = {"result": item.value}
    if verdict is not None:
        kept = ("id", "valid", "model_name", "possible_answer")
        value["verdict"] = {key: verdict[key] for key in kept if key in verdict}
    elif complete:
        value["passed"] = True
    return RawRecord(item.position, value, item.end)


def _parse(source: Source, record: Record, model_name: str | None) -> RolloutImport:
    row = WireRow.model_validate(record.value)
    broken = isinstance(row.result.result, str) and row.result.result.startswith(_INFERENCE_ERROR)
    messages = tuple(read_log(row.result.inference_log) or read_result(row.result.result))
    if not messages and not broken:
        raise Unusable("`result` holds no turn; nothing was recorded")
    identity = source.identity(NAME, record, row.result.model_name or model_name)
    success = None if broken else _success(row)
    data = RolloutEnded(
        rollout=identity.id,
        alias=identity.alias,
        base=identity.base,
        policy=identity.base,
        source=NAME,
        purpose="import",
        task=_task(row, messages),
        success=success,
        reward=None if success is None else float(success),
        grader=None if success is None else GRADER,
        termination=_termination(row, broken),
        content=RolloutContent(messages=messages),
    )
    return source.rollout(record, data, None, findings(messages))


def _success(row: WireRow) -> bool | None:
    if row.verdict is not None:
        return row.verdict.valid
    return True if row.passed else row.result.valid


def _termination(row: WireRow, broken: bool) -> str | None:
    if broken:
        return "error"
    return "max_steps" if hit_step_limit(row.result.inference_log) else None


def _task(row: WireRow, messages: tuple[Message, ...]) -> Task:
    asked = [message.text for message in messages if message.role == "user"]
    answer = row.verdict.possible_answer if row.verdict else None
    return Task(
        id=row.result.id,
        capability=row.result.id.rpartition("_")[0] or None,
        instruction="\n".join(asked) or None,
        gold_actions=None
        if answer is None
        else tuple(_gold(text) for turn in answer for text in turn),
        definition=None if answer is None else sha256(exact_json([row.result.id, asked, answer])),
    )


def _gold(text: str) -> Action:
    call = parse_call(text)
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    # Without the function's documentation an argument by position has no name to compare.
    named = tuple(name for name in arguments if not name.isdigit())
    return Action(
        name=call.name, arguments=arguments, compare=named if len(named) < len(arguments) else None
    )
