"""The table: pass^1 of every arm and domain beside the paper's, differences, and the user's gate.

A policy's figures and intervals are those of `kintsugi eval`. Differences are paired over the tasks
with all verdicts of both, with intervals over tasks (envs/statistics.py). A run has one training
seed, so no interval includes the spread between trainings.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from daemon.config.settings import Training
from daemon.methods.synthesis.users.trial import UserPlan, UserResult, read_result
from envs.statistics import Interval
from ops.reproduce.areal_sea.commands import find_gate, name_stage
from ops.reproduce.areal_sea.settings import ABLATIONS, ARMS, PUBLISHED, Arm, Reproduction
from ops.reproduce.commands import Document, Folder, StageFailure
from ops.reproduce.figures import (
    compare_tasks,
    format_change,
    format_interval,
    format_table,
)
from ops.reproduce.homes import Verdicts, build_settings, read_verdicts

_COMPARED: Final = (
    ("sft", "base"), ("rl_base_user", "sft"), ("rl_tuned_user", "sft"),
    ("rl_tuned_user", "rl_base_user"),
)  # fmt: skip


def build_table(plan: Reproduction, folder: Folder) -> Document:
    """Return the figures, and the table as Markdown under `text`. Raise StageFailure."""
    evaluations: dict[tuple[str, Arm], Document] = {
        (domain, arm): folder.read(f"evaluate-{name_stage(arm, domain)}")
        for domain in plan.domains
        for arm in ARMS
    }
    lacking = {name: why for name in evaluations if (why := evaluations[name].get("lacking"))}
    evaluations = {name: own for name, own in evaluations.items() if name not in lacking}
    gates = {domain: _read_gate(folder, domain) for domain in plan.domains}
    written = {domain: folder.read(f"write-tasks-{domain}") for domain in plan.domains}
    differences = {domain: compare(_read_domain(plan, folder, domain)) for domain in plan.domains}
    text = [tabulate_arms(evaluations), _tabulate_differences(differences)]
    text += [_describe_domain(domain, written[domain], gates[domain]) for domain in plan.domains]
    remarks = [
        f"`{arm}` in {domain} has no figure: {why}" for (domain, arm), why in lacking.items()
    ]
    notes = [
        f"The user of {domain} failed its gate and played all the same."
        for domain, gate in gates.items()
        if not gate.passed
    ]
    return {
        "pass_hat": {
            name_stage(arm, domain): found["pass_hat"]
            for (domain, arm), found in evaluations.items()
        },
        "unjudged_attempts": {
            name_stage(arm, domain): found["unjudged"]
            for (domain, arm), found in evaluations.items()
        },
        "differences": {
            domain: {name: {"tasks": n, **asdict(part)} for name, (n, part) in own.items()}
            for domain, own in differences.items()
        },
        "gates": {domain: gate.model_dump(mode="json") for domain, gate in gates.items()},
        "notes": notes,
        "remarks": remarks,
        "text": "\n\n".join([*text, *notes, *remarks, ABLATIONS]),
    }


def _read_gate(folder: Folder, domain: str) -> UserResult:
    path = find_gate(folder, domain)
    trial = UserPlan.model_validate_json(path.read_bytes())
    result = read_result(path.with_suffix(""), trial)
    if result is None:
        raise StageFailure(f"the gate of the user of {domain} is not over; run gate-{domain}")
    return result


def tabulate_arms(evaluations: Mapping[tuple[str, Arm], Document]) -> str:
    """Return the table of arms as Markdown; `evaluations` is by (domain, arm)."""
    rows = [["domain", "arm", "pass^1", "the paper, 30B"]]
    for (domain, arm), found in evaluations.items():
        first = found["pass_hat"].get("1")
        paper = PUBLISHED.get((domain, arm))
        rows.append(
            [
                domain,
                f"`{arm}`: {ARMS[arm]}",
                "" if first is None else format_interval(Interval(**first)),
                "" if paper is None else f"{paper:.3f}",
            ]
        )
    return format_table(rows)


def _tabulate_differences(differences: Mapping[str, Mapping[str, tuple[int, Interval]]]) -> str:
    rows = [["domain", "difference", "tasks", "pass^1"]]
    for domain, own in differences.items():
        rows += [
            [domain, name, str(count), format_change(part)] for name, (count, part) in own.items()
        ]
    return format_table(rows)


def _describe_domain(domain: str, written: Mapping[str, Any], gate: UserResult) -> str:
    rejected = ", ".join(f"{check} {count}" for check, count in written["rejected"].items())
    kept = sum(item["kept"] for item in written["rounds"])
    passed = "passed" if gate.passed else "failed"
    return (
        f"{domain}: {written['plans']} plans, {len(written['accepted']):,} tasks accepted, "
        f"rejected: {rejected or 'none'}; {len(written['rounds'])} rounds of reflection kept "
        f"{kept} revisions. The user's gate: {passed}, {gate.reason}."
    )


def _read_domain(plan: Reproduction, folder: Folder, domain: str) -> Mapping[str, Verdicts]:
    names = {plan.name_policy(arm, domain): arm for arm in ARMS}
    settings = build_settings(plan.select_domain(domain), folder.evaluation, Training())
    return read_verdicts(settings, names, domain, plan.counts.trials)


def compare(verdicts: Mapping[str, Verdicts]) -> dict[str, tuple[int, Interval]]:
    """Return "ARM less ARM" -> (number of common tasks, mean difference)."""
    return {
        f"{own} less {other}": compared
        for own, other in _COMPARED
        if (compared := compare_tasks(verdicts[own], verdicts[other])) is not None
    }
