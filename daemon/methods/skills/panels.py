"""Compose adapters of the home to a panel, and record it as PanelComposed with a proven router.

    row = compose(app, fleet, Composition("agent", {"refunds": "refunds-40-0f3c9a1e"}, ...), act)

A panel is a policy of several adapters (docs/adr/0075-panels-are-policies.md). Before it is
recorded, an engine proves that each label is one token of the base. If the base chooses, the engine
also scores the labels after a conversation without content (the calibration). The event holds both,
so every gateway decides alike. Guarantee: composing the same panel again, also after a crash, gives
the same panel. Not covered: whether the router chooses well.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from consumers.methods.skills import reads
from consumers.reads import learning, serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.directory import BadAdapter, verify
from daemon.core.decision_log import Act, Decisions
from daemon.methods.skills.router_examples import write_examples
from daemon.serving.desired_state import describe_user_adapter
from daemon.serving.fleet import Engine, Fleet, NoReplica
from daemon.serving.replica import NoAnswer
from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from events.jobs import PanelRouter, RouterOption
from events.lifecycle import State
from events.registry import first_problem
from events.serving import Panel, PanelComposed, PanelMember
from producers.gateway.skills import label_router

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

log = logging.getLogger(__name__)

KIND: Final = "panel"
"""Prefix of the names of panels."""
LABELS: Final = tuple(ascii_uppercase)
"""Labels of the options, in their order."""
NO_SKILL: Final = "None of the above, or everything else."
"""Description of the option for no skill."""
_DIGITS: Final = 8


class CompositionRefusal(KintsugiError):
    """The panel cannot be composed; the text says why."""


@dataclass(frozen=True, slots=True)
class Composition:
    """The members and the router of a panel that is to be composed."""

    members: Mapping[str, str | None]
    """Skill -> an adapter's name, or the beginning of one; None for the base."""
    alias: str | None = None
    """Agent of the panel; None: the agent of its members."""
    router: str | None = None
    """An adapter that was trained to choose; None: the base chooses."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Skill -> its text for the router; by default its description in the table of skills."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Skill -> a successful conversation, as the router reads it."""
    shows_examples: bool = False
    """Whether an untrained router also reads generated examples (router_examples.py)."""
    cycle: str | None = None
    """The cycle that composes the panel; None for an operator."""


def compose(app: "App", fleet: Fleet, composition: Composition, by: Act | str) -> AdapterRow:
    """Record a new panel and return its row; return the known row if it was composed before. `by`
    is an operator's act, or the id of the event that caused it. Raise CompositionRefusal,
    UnknownAdapter, NoReplica, ReplicaError, DecisionRefusal, LogError."""
    app.settle()
    _check_count(len(composition.members))
    with app.reading() as connection:
        parts = _find_parts(connection, composition)
        first = _check_parts(parts, composition)
        trained = None if composition.router is None else parts[composition.router]
        prompt = None if trained is None else _read_prompt(app, connection, trained, composition)
        descriptions = {} if prompt else _describe_skills(connection, first, composition)
    engine = find_engine(fleet, first.base)
    adapter = None if trained is None else trained.adapter
    if prompt is not None:
        router = PanelRouter(form=prompt.form, adapter=adapter, options=prompt.options)
    else:
        rows = {skill: parts[name] for skill, name in composition.members.items() if name}
        examples = _choose_examples(app, engine, rows, descriptions, composition)
        options = build_options(engine, first.base, descriptions, examples)
        router = PanelRouter(adapter=adapter, options=options)
    members = tuple(
        PanelMember(skill=skill, adapter=None if name is None else parts[name].adapter)
        for skill, name in composition.members.items()
    )
    with app.reading() as connection:
        panel = Panel(members=members, router=router)
        name, known = _find_name(connection, first, panel, composition.cycle)
    if known is not None:
        return known
    calibrated = router
    if router.adapter is None:
        scores = measure_calibration(engine, first.base, router)
        calibrated = router.model_copy(update={"calibration": scores})
    panel = Panel(members=members, router=calibrated)
    composed = PanelComposed(
        adapter=name, alias=first.alias, base=first.base, panel=panel, cycle=composition.cycle,
        sha256=sha256(exact_json(panel.model_dump(mode="json"))),
    )  # fmt: skip
    decisions = Decisions(app)
    cause = (
        by if isinstance(by, str) else decisions.act(by, "panels compose", _list_words(composed))
    )
    decisions.take(composed, f"composed {name}", cause, origin=name)
    with app.reading() as connection:
        return serving.find_adapter(connection, name)


def _choose_examples(
    app: "App",
    engine: Engine,
    members: Mapping[str, AdapterRow],
    descriptions: Mapping[str, str],
    composition: Composition,
) -> dict[str, str]:
    """Return the examples for the router of these members. If the prompt does not fit the engine,
    warn and leave out the generated examples. Raise CompositionRefusal, ReplicaError."""
    own = dict(composition.examples)
    written = write_examples(app, members) if composition.shows_examples else {}
    if not written:
        return own
    examples, base = {**written, **own}, next(iter(members.values())).base
    router = PanelRouter(options=build_options(engine, base, descriptions, examples))
    try:
        measure_calibration(engine, base, router)
    except NoAnswer as error:
        log.warning("the router of %s reads no examples: %s", ", ".join(members), error)
        return own
    return examples


def find_engine(fleet: Fleet, base: str) -> Engine:
    """Return a replica that serves the base. Raise NoReplica."""
    look = fleet.look()
    urls = look.of_base(base)
    if not urls:
        bases = ", ".join(sorted({contents.base for contents in look.holding.values()}))
        raise NoReplica(
            f"the labels of a router are proven by an engine of {base}, and there is none: "
            f"{f'the engines serve {bases}' if bases else look.error_text}"
        )
    return fleet.engines[urls[0]]


def build_options(
    engine: Engine,
    base: str,
    descriptions: Mapping[str, str],
    examples: Mapping[str, str] = MappingProxyType({}),
    no_skill: str = NO_SKILL,
) -> tuple[RouterOption, ...]:
    """Return an option for each skill, and last the option for no skill, described by `no_skill`.
    `descriptions` and `examples` are skill -> text. Raise CompositionRefusal, ReplicaError."""
    words: dict[str | None, str] = {}
    words.update(descriptions)
    words[None] = no_skill
    _check_count(len(descriptions))
    labels = LABELS[: len(words)]
    tokens = prove_labels(engine, base, labels)
    try:
        return tuple(
            RouterOption(
                skill=skill, label=label, token=token, description=text,
                example="" if skill is None else examples.get(skill, ""),
            )
            for (skill, text), label, token in zip(words.items(), labels, tokens, strict=True)
        )  # fmt: skip
    except ValidationError as error:
        raise CompositionRefusal(
            f"a skill cannot be an option of a router: {first_problem(error)}; name or describe it "
            "more briefly"
        ) from error


def _check_count(skills: int) -> None:
    """Raise CompositionRefusal if there are no labels for this number of skills."""
    if not 0 < skills < len(LABELS):
        raise CompositionRefusal(
            f"a panel of {skills} skills has no labels for its router: name 1 to "
            f"{len(LABELS) - 1}, for the {len(LABELS)}th label means no skill"
        )


def measure_calibration(
    engine: Engine, base: str, router: PanelRouter
) -> tuple[tuple[float, ...], ...]:
    """Return the options' scores in nats without content, a row per label order. Raise
    ReplicaError."""
    tokens = label_router.list_label_tokens(router)
    prompts = label_router.build_calibration_prompts(router)
    return tuple(
        label_router.read_scores(
            router, order, engine.replica.score_labels(router.adapter or base, prompt, tokens)
        )
        for order, prompt in enumerate(prompts)
    )


def prove_labels(engine: Engine, base: str, labels: Sequence[str]) -> list[int]:
    """Return each label's token. Raise CompositionRefusal if it is no single one, ReplicaError."""
    tokens: list[int] = []
    for label in labels:
        ids = engine.replica.tokenize(base, label)
        if len(ids) != 1 or ids[0] in tokens:
            raise CompositionRefusal(
                f"the label {label} is {list(ids)} to the tokenizer of {base}, and a router needs "
                "one token of its own for each label; compose a panel of fewer skills"
            )
        tokens.append(ids[0])
    return tokens


def _find_parts(connection: "Connection", composition: Composition) -> dict[str, AdapterRow]:
    """Return name in the composition -> adapter. Raise UnknownAdapter."""
    names = [*composition.members.values(), composition.router]
    wanted = dict.fromkeys(name for name in names if name is not None)
    return {name: serving.find_adapter(connection, name) for name in wanted}


def _check_parts(parts: Mapping[str, AdapterRow], composition: Composition) -> AdapterRow:
    """Check that the adapters can form a panel; return one. Raise CompositionRefusal."""
    if not any(composition.members.values()):
        raise CompositionRefusal("the base answers every skill; name an adapter for one of them")
    rows = list(parts.values())
    for row in rows:
        if row.composition is not None:
            raise CompositionRefusal(
                f"{row.adapter} is a panel, and no panel is a part of another; name its members"
            )
        if row.role != "agent":
            raise CompositionRefusal(f"{describe_user_adapter(row)}; leave it out of panels")
        if row.state is State.COLLECTED:
            raise CompositionRefusal(f"the files of {row.adapter} were collected; leave it out")
    if len({(row.alias, row.base) for row in rows}) > 1:
        listed = ", ".join(f"{row.adapter} of {row.alias} on {row.base}" for row in rows)
        raise CompositionRefusal(
            f"a panel is of adapters of one agent on one base, and these are: {listed}"
        )
    first, alias = rows[0], composition.alias
    if alias not in (None, first.alias):
        raise CompositionRefusal(
            f"the panel is to be for {alias}, and its members are for {first.alias}; name adapters "
            "of that agent"
        )
    return first


def _read_prompt(
    app: "App", connection: "Connection", router: AdapterRow, composition: Composition
) -> PanelRouter | None:  # fmt: skip
    """Return the prompt that a router was trained on, from its job or else its files; None if
    neither has one. Raise CompositionRefusal if its skills differ, or its files are damaged."""
    job = None if router.job is None else learning.job(connection, router.job)
    prompt = _read_stored_prompt(app, router) if job is None else job.spec.router
    if prompt is None and job is None:
        return None
    if prompt is None:
        raise CompositionRefusal(
            f"{router.adapter} was trained to answer, and not to choose; leave --router out, or "
            "name an adapter of a job that teaches a router"
        )
    skills = {option.skill for option in prompt.options} - {None}
    if skills != composition.members.keys():
        raise CompositionRefusal(
            f"{router.adapter} was trained to choose among {', '.join(sorted(map(str, skills)))}, "
            f"and the members are of {', '.join(sorted(composition.members))}"
        )
    if composition.descriptions or composition.examples:
        raise CompositionRefusal(
            f"{router.adapter} reads the descriptions that it was trained on; leave --describe out"
        )
    return prompt


def _read_stored_prompt(app: "App", router: AdapterRow) -> PanelRouter | None:
    """Return the prompt that an adapter's files hold, or None. Raise CompositionRefusal."""
    folder = app.settings.adapter_paths.locate(router.path)
    if not router.path or not folder.is_dir():
        return None
    try:
        stored = verify(folder).spec.get("router")
        return None if stored is None else PanelRouter.model_validate(stored)
    except (BadAdapter, ValidationError) as error:
        raise CompositionRefusal(
            f"the files of {router.adapter} cannot be read: {error}; push them anew"
        ) from error


def _describe_skills(
    connection: "Connection", row: AdapterRow, composition: Composition
) -> dict[str, str]:
    """Return skill -> description. Raise CompositionRefusal if a skill has none."""
    for what, named in (("described", composition.descriptions), ("shown", composition.examples)):
        if stray := sorted(named.keys() - composition.members.keys()):
            raise CompositionRefusal(
                f"{stray[0]} is {what} and has no member; the skills are "
                f"{', '.join(composition.members)}"
            )
    known = {
        line.skill: line.description
        for line in reads.read_skills(connection, row.alias)
        if line.base == row.base
    }
    descriptions: dict[str, str] = {}
    for skill in composition.members:
        text = composition.descriptions.get(skill) or known.get(skill)
        if not text:
            raise CompositionRefusal(
                f"nothing is known of the skill {skill} for the router to read; describe it: "
                f"--describe {skill}=TEXT"
            )
        descriptions[skill] = text
    return descriptions


def _find_name(
    connection: "Connection", row: AdapterRow, panel: Panel, cycle: str | None
) -> tuple[str, AdapterRow | None]:
    """Return a panel's name, and its row if it was composed before. The name follows from all but
    the measured calibration. No name is used twice; each cycle has its own panel."""
    content = panel.model_dump(mode="json")
    words = [row.alias, row.base, content, *([] if cycle is None else [cycle])]
    digits = sha256(exact_json(words))[:_DIGITS]
    number = 1
    while True:
        name = f"{KIND}-{digits}" + (f"-{number}" if number > 1 else "")
        known = serving.adapter_row(connection, name)
        if known is None:
            return name, None
        same = known.composition is not None and _without_calibration(known.composition) == content
        if same and known.state is not State.COLLECTED:
            return name, known
        number += 1


def _without_calibration(panel: Panel) -> dict[str, object]:
    router = panel.router.model_copy(update={"calibration": ()})
    return panel.model_copy(update={"router": router}).model_dump(mode="json")


def _list_words(composed: PanelComposed) -> dict[str, str]:
    members = ", ".join(
        f"{member.skill}={member.adapter or composed.base}" for member in composed.panel.members
    )
    router = composed.panel.router.adapter or composed.base
    return {"adapter": composed.adapter, "members": members, "router": router}
