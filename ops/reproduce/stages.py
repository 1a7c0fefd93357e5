"""The stages of the table, in order: what each does, its command, its cost, its result.

A stage leaves `stages/NAME.json` in the folder, whole or absent, and is not run again; those that
only look (`check`) or are forgotten by an endpoint that starts again (`load`) are run every time.
Within a stage, evaluations go on from their log and jobs from their journal.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ops.reproduce import work
from ops.reproduce.commands import Document, Folder, Policy, build_evaluation
from ops.reproduce.settings import Reproduction


@dataclass(frozen=True, slots=True)
class Stage:
    """One step from the base to the table."""

    name: str
    action: str
    """What it does, in words."""
    command: tuple[str, ...]
    """What does it, to be run by hand as well."""
    run: Callable[[], Document]
    episodes: int = 0
    """Episodes that a policy plays in it."""
    trains: bool = False
    """Whether these are trained on, which takes about as long again."""
    repeated: bool = False
    """Whether it is run every time."""


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones."""
    counts = plan.counts
    own = ("python", "-m", "ops.reproduce", "sentinel", "--out", str(folder.path), "--only")
    return [
        Stage(
            "check", "compare the checkpoint's answers to probes with the endpoint's",
            (*own, "check"), partial(work.check, plan, folder), repeated=True,
        ),
        _evaluate(plan, folder, "base", tasks),
        Stage(
            "record", "the base serves generated traffic, which counts in the targeted budget",
            (*own, "record"), partial(work.record, plan, folder), episodes=counts.recorded,
        ),
        Stage(
            "diagnose", "close a round over what was recorded",
            ("kintsugi", "diagnose", "--home", str(folder.training), "--json"),
            partial(work.diagnose, plan, folder),
        ),
        Stage(
            "write-tasks", "directive, written tasks, and the specs of both jobs",
            (*own, "write-tasks"), partial(work.write_tasks, plan, folder),
        ),
        _train(plan, folder, "general", counts.rollouts),
        _train(plan, folder, "targeted", counts.rollouts - counts.recorded),
        Stage(
            "load", "load both adapters at the endpoint, and prove that they answer",
            (*own, "load"), partial(work.load, plan, folder), repeated=True,
        ),
        _evaluate(plan, folder, "general", tasks),
        _evaluate(plan, folder, "targeted", tasks),
        Stage("report", "the table", (*own, "report"), partial(work.report, plan, folder),
              repeated=True),
    ]  # fmt: skip


def _evaluate(plan: Reproduction, folder: Folder, policy: Policy, tasks: int) -> Stage:
    return Stage(
        f"evaluate-{policy}",
        f"pass^1 to pass^{plan.counts.trials} of the {policy} policy",
        tuple(build_evaluation(plan, folder, policy)),
        partial(work.evaluate, plan, folder, policy),
        episodes=tasks * plan.counts.trials,
    )


def _train(plan: Reproduction, folder: Folder, policy: Policy, rollouts: int) -> Stage:
    command = (
        "python", "-m", "daemon.solver", str(folder.spec(policy)), "--out", str(folder.job(policy)),
    )  # fmt: skip
    return Stage(
        f"train-{policy}", f"the {policy} job, preset sentinel", command,
        partial(work.train, folder, policy, command), episodes=rollouts, trains=True,
    )  # fmt: skip


def describe(plan: Reproduction, folder: Folder, tasks: int, tokens: int, rate: float) -> str:
    """Return every stage's command and estimated cost, of which `tokens` per episode and the `rate`
    of tokens per second are assumptions."""
    assumed = (
        f"# {tasks} evaluated tasks of {plan.env}; an episode is taken to write {tokens:,} tokens "
        f"and the endpoint {rate:,.0f} tokens per second; training on a rollout is taken to take "
        "as long as sampling it. All three are assumptions, not measurements."
    )
    lines = [
        assumed,
        f"export KINTSUGI_CONFIG={shlex.quote(str(folder.configuration))}",
    ]
    hours = 0.0
    for stage in build_stages(plan, folder, tasks):
        own = stage.episodes * tokens / rate / 3600 * (2 if stage.trains else 1)
        hours += own
        cost = f"; {stage.episodes:,} episodes, {own:.2f} h" if stage.episodes else ""
        lines += ["", f"# {stage.name}: {stage.action}{cost}", shlex.join(stage.command)]
    return "\n".join([*lines, "", f"# all: {hours:.2f} h"])
