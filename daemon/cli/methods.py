"""The additions of methods to commands: groups of commands, and sections in answers. Importing this
module must stay fast, like root.py."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from daemon.methods.lessons import benchmark_command
from daemon.methods.lessons import commands as lessons
from daemon.methods.skills import panel_commands, skill_commands
from daemon.methods.synthesis import commands as plans

if TYPE_CHECKING:
    import typer
    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow
    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Serving
    from daemon.core.app import App
    from daemon.evaluation.run import Spec
    from daemon.maintenance.erasure import PersonData
    from daemon.methods.lessons.injection import MistakeObserver
    from daemon.metrics.loop import MethodMetrics
    from envs.environment import Environment
    from envs.task import Operator
    from events.jobs import TaskPool
    from events.learning import TaskProposed
    from producers.gateway.call import MakeChooser

    AttemptObserver = MistakeObserver

GROUPS: "Final[Mapping[str | None, Sequence[typer.Typer]]]" = {
    "patterns": (skill_commands.group,),
    "tasks": (plans.group, lessons.group),
    "adapters": (panel_commands.group,),
}
"""Group of the core -> the methods' groups that follow it in the help."""

BENCHMARKS: Final = (benchmark_command,)
"""Modules that add a command to the group `bench`."""

_SHORT = 13
"""Characters of an id in a line; `cycle show` needs no more."""


@dataclass(frozen=True, slots=True)
class Section:
    """A method's addition to a command's answer."""

    document: Any
    """The addition to the JSON document."""
    text: str
    """The addition to the text on a terminal; may be empty."""


def build_loop_metrics() -> "list[MethodMetrics]":
    """Return the metrics of the improvement loop that the methods add."""
    from daemon.methods.lessons.metrics import build_metrics as of_lessons
    from daemon.methods.skills.metrics import build_metrics as of_skills
    from daemon.methods.synthesis.metrics import build_metrics as of_synthesis

    return [of_lessons(), of_synthesis(), of_skills()]


def bind_chooser(serving: "Serving") -> "MakeChooser":
    """Return a function that makes the chooser of a panel's members for the gateway's sessions."""
    from producers.gateway.skills.member_choice import MemberChooser, RouterBound

    bound = RouterBound(serving.router_ms / 1000, serving.router_most_ms / 1000)
    return partial(MemberChooser, bound=bound, reroutes=serving.reroute)


def read_version_files(app: "App", connection: "Connection", row: "AdapterRow") -> dict[str, bytes]:
    """Return path -> content of a panel. Raise BundleRefusal, BadAdapter, NoFingerprint."""
    from daemon.methods.skills.panel_bundle import read_panel_files

    return read_panel_files(app, connection, row)


def read_cycle_sections(connection: "Connection", cycle: "CycleRow") -> dict[str, Section]:
    """Return name -> section that a method adds to the answer about a cycle."""
    from consumers.methods.synthesis.plans import read_cycle_tries
    from daemon.methods.lessons.practice import read_cycle_practice

    practice = read_cycle_practice(connection, cycle)
    tries = read_cycle_tries(connection, cycle.cycle)
    words = (
        f"{item.accepted:,} of {item.tries:,} tries by {item.plans[:_SHORT]} "
        f"({item.writer or 'rules'}) accepted"
        for item in tries
    )
    return {
        "lessons": Section(None, "")
        if practice is None
        else Section(practice.build_document(), practice.describe()),
        "plans": Section([asdict(item) for item in tries], "; ".join(words)),
    }


def count_modes(tasks: "Sequence[TaskProposed]") -> dict[str, int]:
    """Return name of a kind of task -> how many of these tasks a method wrote."""
    return {
        "lessons": sum(data.mode == "repair" for data in tasks),
        "by plans": sum(data.plan is not None for data in tasks),
    }


def describe_pool(pool: "TaskPool") -> dict[str, int]:
    """Return the fields that methods add to the JSON of a job's pool."""
    return {"lessons": pool.repair_count}


def name_reasons(reasons: "Sequence[str]") -> list[str]:
    """Return the reasons as words for people. All tasks made of a person's sessions are lessons."""
    return ["lesson" if reason == "drawn" else reason for reason in reasons]


def describe_erasure(held: "PersonData") -> dict[str, Section]:
    """Return name -> section on what an erasure removes; its text ends a sentence."""
    count = len(held.live_tasks)
    text = f", {count:,} lessons made of these (retired)" if count else ""
    return {"lessons": Section(count, text)}


def read_task_sections(connection: "Connection", task: str, alias: str) -> dict[str, Section]:
    """Return name -> section that a method adds to the answer about a task."""
    from consumers.methods.synthesis.verdicts import read_task_verdicts

    verdicts = read_task_verdicts(connection, task, alias)
    words = (f"rollout {verdict.rollout}: {verdict.describe()}" for verdict in verdicts)
    return {"verdicts": Section([asdict(verdict) for verdict in verdicts], "\n".join(words))}


def inject_mistakes(spec: "Spec", rates: "Mapping[Operator, float]") -> "Spec":
    """Return the evaluation with mistakes at these rates; unchanged without rates."""
    from daemon.methods.lessons.injection import InjectedSpec

    return InjectedSpec.of(spec, rates) if rates else spec


def open_observer(spec: "Spec", environment: "Environment") -> "AttemptObserver | None":
    """Return an observer of an evaluation's attempts; None if it has no mistakes."""
    from daemon.methods.lessons.injection import InjectedSpec, MistakeObserver

    return MistakeObserver(spec, environment) if isinstance(spec, InjectedSpec) else None
