"""Telecom's files in the operator's folder: two states, and a policy of two parts.

db.toml, user_db.toml                the company's records, and the phone
tasks.json, tasks_small.json, ...    the tasks; `full` is a split only if all of its tasks exist
main_policy.md, main_policy_solo.md  the rules, for an agent with a user and for one without
tech_support_manual.md               instructions to find and repair faults of the phone
tech_support_workflow.md             the same as steps; `..._solo.md` for an agent without a user
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envs.database import Tables
from envs.tau2.benchmark import DomainFiles, InvalidBenchmark, read_text
from envs.telecom.database import canonical

TASK_FILES: Final = ("tasks.json", "tasks_small.json", "tasks_full.json")
_INTENT: Final = re.compile(r"\[([a-z_]{1,40})\]")
_SUPPORT: Final = "tech_support_manual.md"


def describe_files(domain: str, writes: frozenset[str]) -> DomainFiles:
    """Return the files of the telecom folder and their readers."""
    return DomainFiles(
        domain,
        writes,
        read_tables=_read_tables,
        read_policy=read_policy,
        state="db.toml",
        tasks=TASK_FILES,
        optional_splits=frozenset({"full"}),
        find_capability=find_intent,
        has_setup=True,
    )


def find_intent(number: str) -> str | None:
    """Return the capability that a task's id begins with (`[mms_issue]...`), or None."""
    intent = _INTENT.match(number)
    return f"benchmark_{intent.group(1)}" if intent else None


def read_policy(place: Path, *, solo: bool = False, workflow: bool = False) -> str:
    """Return the system prompt: the rules, then the manual or the workflow, with the original's
    marks. The manual is the same with and without a user."""
    support = _SUPPORT
    if workflow:
        support = "tech_support_workflow_solo.md" if solo else "tech_support_workflow.md"
    main = "main_policy_solo.md" if solo else "main_policy.md"
    rules, manual = read_text(place / main), read_text(place / support)
    return (
        f"<main_policy>\n{rules}\n</main_policy>\n"
        f"<tech_support_policy>\n{manual}\n</tech_support_policy>"
    )


def _read_tables(place: Path) -> Tables:
    return canonical(_read_toml(place / "db.toml"), _read_toml(place / "user_db.toml"))


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidBenchmark(f"{path} is no TOML: {error}") from error
