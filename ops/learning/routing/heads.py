"""One seed: a head and a router of labels taught by the same tasks, and what both choose of others.

    result = run_forms(seed, HEADS, folder, development=False)
    print(tabulate_forms(results, HEADS))

A routing call is timed as an engine serves it: its prompts together, a token each, by an engine
that keeps what it has read. The forms take turns, so that both meet the same load of the machine.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Final, Literal

import torch
from pydantic import Field

from daemon.adapters.directory import WEIGHTS, verify
from daemon.config.settings import Agent, Training
from daemon.cycle.router_job import build_router_spec
from daemon.engine.chat import Chat, as_chat
from daemon.engine.generation import Engine, Request
from daemon.engine.policy import Policy
from daemon.engine.reference.recipe import WEAK
from daemon.engine.reference.weights import CHECKPOINT
from daemon.engine.routing import ask, calibrate, find_label_tokens, render_router_prompts
from daemon.solver.routing import job
from daemon.solver.sampling.opening import read_opening
from envs.shop.environment import Shop
from events.canonical import exact_json, sha256
from events.jobs import PanelRouter, RouterOption
from events.messages import StrictModel
from ops.learning.merging.settings import SETTINGS as MERGING
from ops.learning.merging.settings import TAUGHT
from ops.learning.report import format_table
from ops.learning.results import TimedRun, check_settings
from ops.learning.routing.settings import LABELS
from ops.learning.run import JobError, describe_source
from ops.learning.seeds import MERGED, PART, TUNED, Seeds

Form = Literal["labels", "head"]
FORMS: Final[tuple[Form, ...]] = ("labels", "head")
_KINDS: Final = WEAK[:4]

Conversation = Sequence[Mapping[str, object]]


class HeadSettings(StrictModel):
    """How every run is made."""

    checkpoint: Path = CHECKPOINT
    parameters: Annotated[int, Field(ge=1)] = 900_000
    """Of the base, for the learning rate of the router of labels."""
    shown: Annotated[int, Field(ge=5)] = 80
    """Tasks of each option that both are shown."""
    asked: Annotated[int, Field(ge=1)] = 80
    """Other tasks of each option that both are asked about."""
    timed: Annotated[int, Field(ge=2)] = 100
    """Of these, the tasks whose calls are timed."""

    @property
    def digest(self) -> str:
        """sha256 of all of them; where the checkpoint lies is left out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        return sha256(exact_json([own, _KINDS, TAUGHT]))


HEADS: Final = HeadSettings()


class FormRun(StrictModel):
    """What one form came to."""

    right: Mapping[str, float]
    """Skill, "" for none -> share of its tasks for which it was chosen."""
    job_seconds: float
    """Of a processor."""
    call_ms: float
    """Median milliseconds of a routing call."""
    tokens: float
    """Mean tokens that it reads for a call, all prompts together."""


class HeadRun(TimedRun):
    """A finished seed."""

    forms: Mapping[Form, FormRun]


def run_forms(seed: int, settings: HeadSettings, folder: Path, *, development: bool) -> HeadRun:
    """Make one result. Raises JobError."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    seeds = Seeds.among(TUNED if development else MERGED, seed)
    shown = _draw(seed, seeds.traffic, settings.shown)
    asked = _draw(seed, seeds.holdout, settings.asked)
    chat, base = Chat(settings.checkpoint), Policy.load(settings.checkpoint, MERGING.base)
    wanted = {task: skill for skill, tasks in asked.items() for task in tasks}
    conversations = [_read_conversation(task) for task in wanted]
    policies: dict[Form, tuple[Policy, PanelRouter]] = {}
    right: dict[Form, dict[str, float]] = {}
    seconds: dict[Form, float] = {}
    for form in FORMS:
        before = time.process_time()
        adapter, router = _train(seed, settings, form, shown, folder / f"{form}-{seed}")
        seconds[form] = time.process_time() - before
        policy = base.with_adapter(adapter, form)
        router = calibrate(policy, chat, router)
        policies[form] = policy, router
        answers = [answer.skill for answer in ask(policy, chat, router, conversations)]
        pairs = list(zip(answers, wanted.values(), strict=True))
        right[form] = {
            skill or "": mean(answer == skill for answer, own in pairs if own == skill)
            for skill in asked
        }
    times, tokens = _time_calls(policies, chat, conversations[:: len(wanted) // settings.timed])
    return HeadRun(
        seed=seed,
        development=development,
        source=describe_source(settings.checkpoint, settings.digest),
        forms={
            form: FormRun(
                right=right[form],
                job_seconds=seconds[form],
                call_ms=1000 * median(times[form]),
                tokens=mean(tokens[form]),
            )
            for form in FORMS
        },
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
    )


def tabulate_forms(results: Sequence[HeadRun], settings: HeadSettings) -> str:
    """Return a table in Markdown, a row per form. Raises NothingToReport."""
    check_settings(results, settings.digest)
    skills = list(results[0].forms["head"].right)
    rows = [["form", "right", "each seed", *(f"`{skill}`" if skill else "none" for skill in skills),
             "job, s of a processor", "tokens of a call", "call, ms"]]  # fmt: skip
    for form in FORMS:
        own = [result.forms[form] for result in results]
        each = [mean(run.right.values()) for run in own]
        rows.append(
            [
                f"`{form}`",
                f"{mean(each):.3f}",
                ", ".join(f"{share:.3f}" for share in each),
                *(f"{mean(run.right[skill] for run in own):.3f}" for skill in skills),
                f"{mean(run.job_seconds for run in own):.1f}",
                f"{mean(run.tokens for run in own):.0f}",
                f"{mean(run.call_ms for run in own):.1f}",
            ]
        )
    ratios = [run.forms["head"].call_ms / run.forms["labels"].call_ms for run in results]
    commits = ", ".join(sorted({result.source.commit[:12] for result in results}))
    return (
        f"Settings {settings.digest[:12]}, commits {commits}; "
        f"{len(skills) * settings.asked} tasks per seed, none of them shown.\n\n"
        f"{format_table(rows)}\n\nA call of the head takes {mean(ratios):.2f} of one of the labels "
        f"({min(ratios):.2f} to {max(ratios):.2f}).\n"
    )


def _draw(seed: int, first: int, count: int) -> dict[str | None, tuple[str, ...]]:
    """Skill -> ids of tasks that need it."""
    shop = Shop()
    mixtures: dict[str | None, Mapping[str, float]] = {kind: {kind: 1.0} for kind in _KINDS}
    mixtures[None] = TAUGHT
    return {
        skill: tuple(
            task.id
            for task in islice(shop.mixture(mixture, seed, first + place * PART // 16), count)
        )
        for place, (skill, mixture) in enumerate(mixtures.items())
    }


def _read_conversation(task: str) -> Conversation:
    shop = Shop()
    view = read_opening(shop, shop.task(task))
    assert view is not None, "a customer of shop says something first"
    return [as_chat(message) for message in view]


def _train(
    seed: int,
    settings: HeadSettings,
    form: Form,
    tasks: Mapping[str | None, Sequence[str]],
    folder: Path,
) -> tuple[Path, PanelRouter]:
    """Return the folder of a router's adapter, and the router. Raises JobError."""
    labels = LABELS[: len(tasks)]
    options = [
        RouterOption(
            skill=skill,
            label=label,
            token=token,
            # As a cycle names them (daemon/cycle/panel_makers.py).
            description="none of these" if skill is None else skill.replace("_", " "),
        )
        for skill, label, token in zip(
            tasks, labels, find_label_tokens(settings.checkpoint, labels), strict=True
        )
    ]
    spec = build_router_spec(
        Training(threads=1),
        Agent(alias="agent", environment=Shop.name, checkpoint=settings.checkpoint),
        job=f"{form}-{seed}",
        base=MERGING.base,
        options=options,
        tasks=tasks,
        parameters=settings.parameters,
        form=form,
    )
    outcome = job.run(spec, folder)
    if outcome.adapter is None:
        raise JobError(f"the router of seed {seed}: {outcome.outcome}, {outcome.reason}")
    assert verify(Path(outcome.adapter)).files[WEIGHTS] == outcome.sha256, "it is what was trained"
    assert spec.router is not None, "it is a job of a router"
    return Path(outcome.adapter), spec.router.model_copy(update={"adapter": form})


def _time_calls(
    policies: Mapping[Form, tuple[Policy, PanelRouter]],
    chat: Chat,
    conversations: Sequence[Conversation],
) -> tuple[dict[Form, list[float]], dict[Form, list[int]]]:
    """Return the seconds of the calls of each form, and the tokens of their prompts."""
    engines = {form: Engine(policy, slots=8) for form, (policy, _) in policies.items()}
    times: dict[Form, list[float]] = {form: [] for form in policies}
    tokens: dict[Form, list[int]] = {form: [] for form in policies}
    for number, conversation in enumerate(conversations):
        for form in FORMS if number % 2 else reversed(FORMS):
            policy, router = policies[form]
            prompts = render_router_prompts(chat, router, conversation, ())
            answer = _build_call(engines[form], policy, prompts)
            began = time.perf_counter()
            answer()
            times[form].append(time.perf_counter() - began)
            tokens[form].append(sum(map(len, prompts)))
    return times, tokens


def _build_call(
    engine: Engine, policy: Policy, prompts: Sequence[tuple[int, ...]]
) -> Callable[[], None]:
    def answer() -> None:
        for prompt in prompts:
            engine.submit(policy, Request(prompt, max_tokens=1, temperature=0))
        while engine.busy:
            engine.tick()

    return answer
