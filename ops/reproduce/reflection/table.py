"""The table of every policy: repairs, episodes, Tool-Reflection-Bench, BFCL, and differences.

A policy's figures and intervals are those of the commands that measured it. Differences are paired
over the tasks with all verdicts of both, with intervals over tasks (envs/statistics.py), so a few
tasks without a difference do not show that there is none. A run has one training seed, so no
interval includes the spread between trainings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from daemon.config.settings import Training
from daemon.core.app import App
from daemon.evaluation.bfcl_benchmark import is_right_officially
from daemon.methods.lessons.injection import inject
from daemon.sessions import transcript
from envs.bfcl.cases import SPLITS
from envs.bfcl.environment import Bfcl
from envs.lessons.observation import observe
from envs.statistics import Interval
from envs.task import PERTURBATIONS, Lesson
from ops.reproduce.commands import Document, Folder
from ops.reproduce.figures import (
    compare_tasks,
    format_change,
    format_interval,
    format_table,
)
from ops.reproduce.homes import (
    Trial,
    build_settings,
    keep_whole,
    list_trials,
    open_plan_environment,
)
from ops.reproduce.reflection.jobs import select_evaluated
from ops.reproduce.reflection.settings import RATE, SUPERVISED, Reproduction

CLEAN: Final = "clean pass^1"
INJECTED: Final = "pass^1 behind a mistake"
BFCL: Final = "BFCL, official"
_DEPTHS: Final = ("1", "3", "5")

Trials = dict[str, dict[str, dict[str, dict[int, bool]]]]
"""Figure of the table -> policy -> task -> trial -> whether it passed."""


def build_table(plan: Reproduction, folder: Folder) -> Document:
    """Return the figures, and the tables as Markdown under `text`. Raise StageFailure."""
    evaluations = {name: folder.read(f"evaluate-{name}") for name in plan.policies}
    jobs = folder.read("write-specs")
    notes = list(_list_notes(plan, folder, jobs))
    parts = {"repairs": _repairs(evaluations), "episodes": _episodes(evaluations)}
    document: Document = {
        "evaluations": {
            name: {key: found[key] for key in ("repair", "clean", "injected", "redundant_calls")}
            for name, found in evaluations.items()
        },
        "lessons": jobs,
    }
    remarks: list[str] = []
    unjudged = {name: int(found["unjudged"]) for name, found in evaluations.items()}
    if plan.file is not None:
        items = {name: folder.read(f"items-{name}") for name in plan.policies}
        parts["items"] = _items(items)
        document["items"] = items
        unjudged |= {f"items-{name}": int(found["unjudged"]) for name, found in items.items()}
    if plan.bfcl:
        bfcl = {name: folder.read(f"bfcl-{name}") for name in plan.policies}
        parts["bfcl"] = _bfcl(bfcl)
        document["bfcl"] = bfcl
        unjudged |= {f"bfcl-{name}": int(found["unjudged"]) for name, found in bfcl.items()}
        missing = next(iter(bfcl.values()))["missing"]
        remarks += [f"BFCL has no category {name} here: {why}" for name, why in missing.items()]
    differences = compare(plan, read_trials(plan, folder))
    parts["differences"] = _differences(differences)
    return document | {
        "differences": {
            name: {
                figure: {"tasks": count, **asdict(part)} for figure, (count, part) in own.items()
            }
            for name, own in differences.items()
        },
        "notes": notes,
        "remarks": remarks,
        "unjudged_attempts": unjudged,
        "text": "\n\n".join([*parts.values(), *notes]),
    }


def _list_notes(plan: Reproduction, folder: Folder, jobs: Mapping[str, Any]) -> Iterator[str]:
    made = folder.read("lessons")
    counts = ", ".join(f"{operator} {count:,}" for operator, count in made["made"].items())
    yield (
        f"Lessons: {counts}; {jobs['shown']:,} were shown, {jobs['practised']:,} were there to "
        f"practise, {jobs['excluded']:,} ask for the calls of an evaluated task and were left out."
    )
    if made["empty"]:
        yield f"No lesson was made by {', '.join(made['empty'])}."
    if not jobs["spelled"]:
        yield (
            f"The tokenizer of {plan.checkpoint.name} does not give reflections back as they were "
            "written, so the supervised training showed repairs without them, and rewards lack "
            "the reflection's part."
        )
    if plan.file is None:
        yield "Tool-Reflection-Bench was left out: no --items."
    if not plan.bfcl:
        yield "BFCL was left out: its cases are in no folder that KINTSUGI_BENCHMARKS names."


def _repairs(evaluations: Mapping[str, Document]) -> str:
    depths = [
        depth
        for depth in _DEPTHS
        if any(depth in row for found in evaluations.values() for row in found["repair"].values())
    ]
    head = ["policy", "mistake", "tasks", *(f"Repair@{depth}" for depth in depths)]
    rows = [
        [policy, operator, str(row["n"]), *(_format_repair(row, depth) for depth in depths)]
        for policy, found in evaluations.items()
        for operator, row in found["repair"].items()
    ]
    return format_table([head, *rows])


def _format_repair(row: Mapping[str, Any], depth: str) -> str:
    if depth not in row:
        return ""
    return format_interval(Interval(row[depth], *row["interval"][depth]))


def _episodes(evaluations: Mapping[str, Document]) -> str:
    head = ["policy", "tasks", CLEAN, "tasks", INJECTED, "redundant calls", "behind a mistake"]
    rows = []
    for policy, found in evaluations.items():
        row = [policy]
        for part in ("clean", "injected"):
            row += [str(found[part]["tasks"]), _format_first(found[part]["pass_hat"])]
        repeated = found["redundant_calls"]
        row += [
            "" if repeated[part] is None else f"{repeated[part]:.2f}"
            for part in ("clean", "injected")
        ]
        rows.append(row)
    return format_table([head, *rows])


def _items(found: Mapping[str, Document]) -> str:
    depths = list(next(iter(found.values()))["official"]["repair_at"])
    head = ["policy", "rule", "items", *(f"Repair@{depth}" for depth in depths)]
    rows = [
        [
            policy, rule, str(own["n"]),
            *(format_interval(Interval(**own[rule]["repair_at"][depth])) for depth in depths),
        ]
        for policy, own in found.items()
        for rule in ("official", "mended")
    ]  # fmt: skip
    return format_table([head, *rows])


def _bfcl(found: Mapping[str, Document]) -> str:
    played = [name for name in SPLITS if name in next(iter(found.values()))["per_category"]]
    head = ["policy", "cases", *played, "overall", "overall, strict"]
    rows = [
        [
            policy, str(own["tasks"]),
            *(_format_first(own["per_category"][name]["official"]) for name in played),
            _format_first(own["official"]), _format_first(own["strict"]),
        ]
        for policy, own in found.items()
    ]  # fmt: skip
    return format_table([head, *rows])


def _format_first(pass_hat: Mapping[str, Mapping[str, float]]) -> str:
    return format_interval(Interval(**pass_hat["1"])) if "1" in pass_hat else ""


def read_trials(plan: Reproduction, folder: Folder) -> Trials:
    """Return the verdicts of all policies by figure, from the evaluations' log."""
    environment = open_plan_environment(plan)
    rates = dict.fromkeys(PERTURBATIONS, RATE)
    tasks = select_evaluated(plan).tasks(environment, plan.seed)
    lessons = {task.id: task.lesson for task in inject(environment, tasks, rates, plan.seed)}
    names = {plan.name_policy(policy): policy for policy in plan.policies}
    trials: Trials = {}

    def note(figure: str, trial: Trial, verdict: bool) -> None:
        own = trials.setdefault(figure, {}).setdefault(trial.policy, {}).setdefault(trial.task, {})
        own.setdefault(trial.number, verdict)

    settings = build_settings(plan, folder.evaluation, Training())
    with App(settings) as app, app.reading() as connection:
        for trial in list_trials(app, names):
            is_case = trial.task.startswith(f"{Bfcl.name}/")
            if not is_case and trial.task not in lessons:
                continue
            lesson: Lesson | None = lessons.get(trial.task)
            if not is_case and lesson is None:
                note(CLEAN, trial, trial.success)
                continue
            row = transcript.find(connection, trial.rollout)
            recorded = transcript.read(row, app.log, app.bodies)
            if is_case:
                note(BFCL, trial, is_right_officially(recorded.data))
                continue
            assert lesson is not None, "a task that is no case and not clean"
            seen = observe(environment, lesson, recorded.messages, trial.success)
            note(INJECTED, trial, trial.success)
            note(f"Repair@1, {lesson.operator}", trial, bool(seen.repaired))
            note("Repair@1, all", trial, bool(seen.repaired))
    return trials


def compare(plan: Reproduction, trials: Trials) -> dict[str, dict[str, tuple[int, Interval]]]:
    """Return "POLICY less POLICY" -> figure -> (number of tasks, mean difference)."""
    pairs = [(arm, "base") for arm in plan.arms]
    pairs += [(name, SUPERVISED) for name in plan.presets]
    return {
        f"{own} less {other}": {
            figure: compared
            for figure in sorted(trials)
            if (compared := _compare(plan, figure, trials[figure], own, other)) is not None
        }
        for own, other in pairs
    }


def _compare(
    plan: Reproduction,
    figure: str,
    trials: Mapping[str, Mapping[str, Mapping[int, bool]]],
    own: str,
    other: str,
) -> tuple[int, Interval] | None:
    count = 1 if figure == BFCL else plan.counts.trials
    first, second = (keep_whole(trials.get(name, {}), count) for name in (own, other))
    return compare_tasks(first, second)


def _differences(found: Mapping[str, Mapping[str, tuple[int, Interval]]]) -> str:
    rows = [
        [name, figure, str(count), format_change(part)]
        for name, own in found.items()
        for figure, (count, part) in own.items()
    ]
    return format_table([["difference", "figure", "tasks", "mean"], *rows])
