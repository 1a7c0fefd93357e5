"""Results of the Berkeley Function-Calling Leaderboard: JSON Lines of {id, result, ...}.

`bfcl generate` writes `BFCL_v4_<category>_result.json` and `bfcl evaluate`
`BFCL_v4_<category>_score.json`, into equal trees `result/` and `score/` (or side by side). A score
file holds a summary and the failures. If it judged all answers of the result file, the answers that
are no failures passed. Without a score file there are no verdicts. Without a result file, only the
failures are imported, with a warning. A pass rate other than the summary's is a warning, too.

The conversation is in `inference_log`. Without it, `result` holds the answers: per turn and step,
or of a single turn. Calls are text, which is parsed and never run. Mapping: docs/formats.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from events.canonical import exact_json, sha256
from events.messages import Action, Message
from events.rollouts import RolloutContent, RolloutEnded, Task
from producers.conversation import findings
from producers.importers.bfcl_conversation import hit_step_limit, read_log, read_result
from producers.importers.call_text import parse_call, to_call
from producers.importers.documents import Damage, RawRecord, Shape, records, shape_of
from producers.importers.records import FileWarning, Record, Rejection, RolloutImport, Source
from producers.storable import Unusable, Wire, check_storable, readable

NAME: Final = "bfcl"
GRADER: Final = "bfcl evaluate"

_SUMMARY: Final = frozenset({"accuracy", "total_count"})
_FAILURE: Final = frozenset({"id", "model_name", "valid"})
_ANSWERS: Final = ("model_result_raw", "model_result", "model_result_decoded")
"""Keys of a failure record that may hold the model's answer, the best first."""
_NO_ANSWER: Final = (
    "has no answer of the model: the file holds only the failures of a result file; import that "
    "file with this beside"
)
_INFERENCE_ERROR: Final = "Error during inference"
_ROUNDED: Final = 5e-4
"""Largest accepted error of a summary's accuracy, because some versions round it."""


class WireVerdict(Wire):
    """A failure record of a score file."""

    id: str
    valid: bool
    model_name: str | None = None
    possible_answer: Any = None
    """The gold answer: calls as text per turn, calls with lists of correct values, or texts."""


class WireResult(Wire):
    """A record of a result file: a model's answer."""

    id: str
    result: Any
    inference_log: list[Any] = []
    model_name: str | None = None
    valid: bool | None = None


class WireRow(Wire):
    """The record from which the rollout's id is made: an answer and its verdict."""

    result: WireResult
    verdict: WireVerdict | None = None
    passed: bool = False


@dataclass(slots=True)
class _Score:
    verdicts: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    model_name: str | None = None

    def covers_all(self, rows: int) -> bool:
        """Return whether answers without a failure record passed: all failures are known."""
        total, correct = self.summary.get("total_count"), self.summary.get("correct_count")
        if not isinstance(total, int) or not isinstance(correct, int):
            return False
        return total >= rows and self.count_failures() == total - correct

    def count_failures(self) -> int:
        return sum(row.get("valid") is not True for row in self.verdicts.values())

    def differs_from(self, tally: "_Tally") -> bool:
        """Return whether the imported rollouts' pass rate differs from the summary's."""
        total, correct = self.summary.get("total_count"), self.summary.get("correct_count")
        accuracy = self.summary.get("accuracy")
        if (correct, total) != (tally.passed, tally.judged) or not isinstance(
            accuracy, int | float
        ):
            return True
        return abs(accuracy * tally.judged - tally.passed) > _ROUNDED * tally.judged


@dataclass(slots=True)
class _Tally:
    passed: int = 0
    judged: int = 0

    def count(self, item: RolloutImport | Rejection) -> None:
        success = item.data.success if isinstance(item, RolloutImport) else None
        self.passed += success is True
        self.judged += success is not None


def recognises(shape: Shape, keys: frozenset[str]) -> bool:
    """Return whether the first record's keys are those of a result or a score file."""
    return {"id", "result"} <= keys or keys >= _SUMMARY or keys >= _FAILURE


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and "id" in value and "result" in value


def read(source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]:
    """Yield every answer of a result file; a score file is read with its result file."""
    if _is_score(source.path):
        yield from _read_score(source)
        return
    if source.may_skip and not _begins_with_answer(source.path, shape):
        yield from source.leave("holds `id` and `result`, and they are no answer to a case of BFCL")
        return
    partner = _partner(source, "result", "score")
    score = _score(partner)
    rows = sum(isinstance(item, RawRecord) for item in records(source.path, shape, is_record))
    complete = score.covers_all(rows)
    tally = _Tally()
    for item in source.track_progress(records(source.path, shape, is_record)):
        row = _attach_verdict(item, score, complete) if isinstance(item, RawRecord) else item
        outcome = source.attempt(row, lambda record: _parse(source, record, score))
        tally.count(outcome)
        yield outcome
    if partner is None and not tally.judged:
        _warn(source, "has no score file, so its answers are not judged; import that file with it")
    elif partner is not None and not score.summary:
        _warn(source, f"is judged by {partner}, which has no summary: only failures are known")
    elif score.summary and score.differs_from(tally):
        _warn(source, _describe_difference(score, tally))


def _read_score(source: Source) -> Iterator[RolloutImport | Rejection]:
    """Yield the failures of a score file without a result file."""
    partner = _partner(source, "score", "result")
    if partner is not None:
        if partner not in source.siblings:
            yield from source.leave(f"judges the answers in {partner}; import that file")
        return
    score = _score(source.path)
    if score.summary and not score.verdicts:
        yield from source.leave("holds a summary and no answers; import the result file it is of")
        return
    for item in source.track_progress(_read_rows(source.path)):
        if isinstance(item, RawRecord) and isinstance(item.value, dict):
            if item.value.keys() >= _SUMMARY:
                continue
            if not item.value.keys() & {*_ANSWERS, "inference_log"}:
                yield source.rejection(item.position, _NO_ANSWER)
                continue
            item = RawRecord(item.position, _restore_row(_name_case(item.value)), item.end)
        yield source.attempt(item, lambda record: _parse(source, record, score))
    passed = score.summary.get("correct_count")
    count = "" if passed is None else f"{passed} "
    _warn(
        source,
        f"holds the failures alone: the {count}answers that passed are in the result file, "
        "which is not here, so the rate of these rollouts is not the model's; import that file "
        "with this one",
    )


def _restore_row(failure: dict[str, Any]) -> dict[str, Any]:
    """Return a record from a failure alone, with the answer if the failure holds it."""
    kept = ("id", "model_name", "inference_log")
    row = {key: failure[key] for key in kept if failure.get(key)}
    answer = next((failure[key] for key in _ANSWERS if key in failure), None)
    return {"result": row | {"result": answer}, "verdict": _keep_verdict(failure)}


def _warn(source: Source, text: str) -> None:
    source.notes.warnings.append(FileWarning(str(source.path), text, 1, "file"))


def _describe_difference(score: _Score, tally: _Tally) -> str:
    rate = f"{tally.passed / tally.judged:.4g}" if tally.judged else "unknown"
    accuracy, correct, total = (
        str(score.summary.get(key))[:20] for key in ("accuracy", "correct_count", "total_count")
    )
    return (
        f"the pass rate is {rate} ({tally.passed:,} of {tally.judged:,} judged), and the score "
        f"file says {accuracy} ({correct} of {total}) and names {score.count_failures():,} "
        "failures; answers that were rejected, not judged, or lost to an error of inference make "
        "the difference"
    )


def _begins_with_answer(path: Path, shape: Shape) -> bool:
    first = next((item for item in records(path, shape, is_record) if _is_object(item)), None)
    if not isinstance(first, RawRecord):
        return True
    name, answer = first.value.get("id"), first.value.get("result")
    return isinstance(name, str) and _category(name) is not None and _is_answer(answer)


def _is_object(item: Any) -> bool:
    return isinstance(item, RawRecord) and isinstance(item.value, dict)


def _is_answer(answer: Any) -> bool:
    return answer is None or isinstance(answer, str | list) or to_call(answer) is not None


def _is_score(path: Path) -> bool:
    first = next(_read_rows(path), None)
    if not isinstance(first, RawRecord) or not isinstance(first.value, dict):
        return False
    keys = first.value.keys()
    return keys >= _SUMMARY or (keys >= _FAILURE and "result" not in keys)


def _read_rows(path: Path) -> Iterator[RawRecord | Damage]:
    """Yield the records of a score file, which may have been rewritten as an array."""
    return records(path, shape_of(path), is_record)


def _name_case(failure: dict[str, Any]) -> dict[str, Any]:
    """Return a failure with its case's id as `id`; some versions have that id in `prompt`."""
    prompt = failure.get("prompt")
    case = prompt.get("id") if isinstance(prompt, dict) else None
    known = isinstance(failure.get("id"), str) or not isinstance(case, str)
    return failure if known else failure | {"id": case}


def _partner(source: Source, own: str, other: str) -> Path | None:
    """Return the score file of a result file, or the reverse: beside it, in the other tree, or the
    only file with the name. None if there is none."""
    path = source.path
    name = path.name.replace(f"_{own}.json", f"_{other}.json")
    if name == path.name:
        return None
    parts = path.parent.parts
    folders = [path.parent]
    for index in reversed(range(len(parts))):
        if parts[index].startswith(own):
            folder = parts[index].replace(own, other, 1)
            folders.append(Path(*parts[:index], folder, *parts[index + 1 :]))
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    same = [sibling for sibling in source.siblings if sibling.name == name]
    return same[0] if len(same) == 1 else None


def _score(path: Path | None) -> _Score:
    """Return the readable records of a score file. Unreadable failures then lack in its count."""
    score = _Score()
    for line in _read_rows(path) if path is not None else ():
        value = line.value if isinstance(line, RawRecord) else None
        if not isinstance(value, dict):
            continue
        if value.keys() >= _SUMMARY:
            score.summary = value
        elif isinstance((failure := _name_case(value)).get("id"), str):
            score.verdicts[failure["id"]] = failure
            if isinstance(value.get("model_name"), str):
                score.model_name = readable(value["model_name"])
    return score


def _attach_verdict(item: RawRecord, score: _Score, complete: bool) -> RawRecord:
    name = item.value.get("id") if isinstance(item.value, dict) else None
    verdict = score.verdicts.get(name) if isinstance(name, str) else None
    value: dict[str, Any] = {"result": item.value}
    if verdict is not None:
        value["verdict"] = _keep_verdict(verdict)
    elif complete:
        value["passed"] = True
    return RawRecord(item.position, value, item.end)


def _keep_verdict(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the kept fields of a verdict unchanged, because the rollout's id depends on them."""
    kept = ("id", "valid", "model_name", "possible_answer")
    return {key: verdict[key] for key in kept if key in verdict}


def _parse(source: Source, record: Record, score: _Score) -> RolloutImport:
    row = WireRow.model_validate(record.value)
    if not _is_answer(row.result.result):
        raise Unusable(
            "`result` is neither text nor a list of calls, so it is no answer of a model"
        )
    broken = isinstance(row.result.result, str) and row.result.result.startswith(_INFERENCE_ERROR)
    category = _category(row.result.id)
    messages = tuple(
        read_log(row.result.inference_log)
        or read_result(row.result.result, literal="java" not in (category or ""))
    )
    identity = source.identity(NAME, record, row.result.model_name or score.model_name)
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


def _category(name: str) -> str | None:
    """Return the category in the id of a case, such as `simple_python_3` or `live_simple_0-0-0`."""
    category, _, number = name.partition(":")[0].rpartition("_")
    return category if number[:1].isdigit() else None


def _task(row: WireRow, messages: tuple[Message, ...]) -> Task:
    asked = [message.text for message in messages if message.role == "user"]
    answer = row.verdict.possible_answer if row.verdict else None
    check_storable(answer, "values of `possible_answer`")
    return Task(
        id=row.result.id,
        capability=row.result.id.partition(":")[0].rpartition("_")[0] or None,
        instruction="\n".join(asked) or None,
        gold_actions=_gold_actions(answer),
        definition=None if answer is None else sha256(exact_json([row.result.id, asked, answer])),
    )


def _gold_actions(answer: Any) -> tuple[Action, ...] | None:
    """Return the calls of a `possible_answer`; None if it holds no calls, but texts to say."""
    items = answer if isinstance(answer, list) else []
    if items and all(isinstance(turn, list) for turn in items):
        texts = [text for turn in items for text in turn]
        return tuple(map(_gold, texts)) if all(isinstance(text, str) for text in texts) else None
    calls = [call.popitem() for call in map(dict, filter(_is_gold_call, items))]
    return tuple(_gold_choice(*call) for call in calls) if len(calls) == len(items) > 0 else None


def _is_gold_call(item: Any) -> bool:
    return isinstance(item, dict) and [type(value) for value in item.values()] == [dict]


def _gold(text: str) -> Action:
    call = parse_call(text)
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    # A positional argument has no name, so it cannot be compared.
    named = tuple(name for name in arguments if not name.isdigit())
    return Action(
        name=call.name, arguments=arguments, compare=named if len(named) < len(arguments) else None
    )


def _gold_choice(name: str, choices: dict[str, Any]) -> Action:
    """Return the call with the first correct values. "" leaves an argument out. Only arguments with
    a single correct value are compared."""
    chosen = {key: _choose(values) for key, values in choices.items()}
    return Action(
        name=name,
        arguments={key: value for key, (value, _) in chosen.items() if value != ""},
        compare=tuple(key for key, (_, is_only) in chosen.items() if is_only),
    )


def _choose(values: Any) -> tuple[Any, bool]:
    """Return the first correct value, and whether it is the only one."""
    if not isinstance(values, list) or not values:
        return values, False
    value = values[0] if values[0] != "" else values[-1]
    items = value if isinstance(value, list) else [value]
    if not any(isinstance(item, dict) for item in items):
        return value, len(values) == 1
    # A nested object has lists of correct values, too.
    return [_choose_within(item) for item in items] if isinstance(value, list) else _choose_within(
        value
    ), False


def _choose_within(item: Any) -> Any:
    return (
        {key: _choose(value)[0] for key, value in item.items()} if isinstance(item, dict) else item
    )
