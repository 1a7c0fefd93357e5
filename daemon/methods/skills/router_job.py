"""Build the spec of the job that trains a panel's router (pure).

The router learns from the tasks of each skill, and from tasks of the traffic that need none. All
random draws follow from the job's id, so a repeated request gives the same job. A router with a
head needs no optimizer settings: its job fits the head to all tasks at once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from daemon.cycle.job_spec import NotTrainable, seed_of
from daemon.jobs.learning_rate import compute_warm_start_rate
from envs.registry import locate
from events.jobs import (
    JobSpec,
    LoraSettings,
    OptimizerSettings,
    PanelRouter,
    RouterOption,
    Sampler,
    TaskPool,
)

if TYPE_CHECKING:
    from daemon.config.settings import Agent, Training

NO_SKILL: Final = "no skill"
"""Name of the pool of tasks that need no skill."""
HEAD: Final = "lm_head"
"""Name of the output head in every causal decoder that our engines serve."""
EXAMPLES: Final = 2
"""Fewest tasks of a skill: one to learn from and one to hold out."""
_GROUPS, _SIZE = 4, 8
"""Their product is the number of prompts per step."""
_STEPS: Final = 96
"""Most steps. Training stops earlier once the held-out loss and accuracy improve no more."""
_FASTER: Final = 2.0
"""Learning rate relative to a warm start's, since an example has only one token to learn."""


def build_router_spec(
    training: "Training",
    agent: "Agent",
    *,
    job: str,
    base: str,
    options: Sequence[RouterOption],
    tasks: Mapping[str | None, Sequence[str]],
    benchmarks: Path | None = None,
    environments: Sequence[Path] = (),
    parameters: int | None = None,
    form: Literal["labels", "head"] = "labels",
) -> JobSpec:
    """Return the spec of a job that trains the router of these options.

    `tasks` is skill -> ids of tasks that need it, None -> tasks of the traffic that need none; a
    task of two skills counts for neither. `environments` are the settings' paths. `parameters` is
    the base's number of weights, for a rate that the settings leave unset. Raise NotTrainable,
    UnknownEnvironment, EnvironmentBroken.
    """
    if agent.environment is None or agent.checkpoint is None:
        lacking = "environment" if agent.environment is None else "checkpoint"
        raise NotTrainable(
            f"agent {agent.alias} has no {lacking}, so no router can be trained for it; name one "
            "in the setting agents"
        )
    pools = tuple(_build_pools(options, tasks))
    if form == "labels":
        sampler = Sampler(groups=_GROUPS, size=_SIZE, rollouts=_GROUPS * _SIZE * _STEPS)
        optimizer = OptimizerSettings(lr=_choose_rate(training, parameters))
        lora = LoraSettings(rank=training.lora_rank, alpha=training.lora_alpha)
    else:
        shown = sum(len(pool.tasks) for pool in pools)
        sampler, optimizer = Sampler(groups=1, size=2, rollouts=shown), OptimizerSettings()
        lora = LoraSettings(rank=len(options), alpha=len(options), targets=(HEAD,))
    return JobSpec(
        job=job,
        base=base,
        checkpoint=str(agent.checkpoint),
        environment=locate(agent.environment, environments),
        benchmarks=None if benchmarks is None else str(benchmarks),
        teaches="router",
        router=PanelRouter(form=form, options=tuple(options)),
        pools=pools,
        seed=seed_of(job),
        sampler=sampler,
        optimizer=optimizer,
        lora=lora,
        device=training.device,
        dtype=training.dtype,
        threads=training.threads,
    )


def _build_pools(
    options: Sequence[RouterOption], tasks: Mapping[str | None, Sequence[str]]
) -> list[TaskPool]:
    """Return a pool for each option. Raise NotTrainable if an option has too few tasks."""
    skills: dict[str, set[str | None]] = {}
    for skill, own in tasks.items():
        for task in own:
            skills.setdefault(task, set()).add(skill)
    pools = []
    for option in options:
        own = tuple(t for t in dict.fromkeys(tasks.get(option.skill, ())) if len(skills[t]) == 1)
        if option.skill is None and len(own) < EXAMPLES:
            # Nearly all traffic needs a skill: the option stays, but is never trained.
            continue
        if len(own) < EXAMPLES:
            raise NotTrainable(
                f"the router has {len(own)} tasks of {option.skill}, and needs "
                f"{EXAMPLES} at least to learn when to choose it; write more (proposer.tasks), or "
                "compose the panel with an untrained router"
            )
        pools.append(TaskPool(name=option.skill or NO_SKILL, skill=option.skill, tasks=own))
    return pools


def _choose_rate(training: "Training", parameters: int | None) -> float:
    """Return the rate, from the warm start's setting or the base's size. Raise NotTrainable."""
    if training.warm_start_lr is not None:
        return _FASTER * training.warm_start_lr
    if parameters is None:
        raise NotTrainable(
            "the learning rate of a router follows from training.warm_start_lr, which is unset, or "
            "from the size of the base, which is unknown; set training.warm_start_lr"
        )
    return _FASTER * compute_warm_start_rate(parameters)
