"""Compare an adapter with the incumbent: both play the same fresh tasks, then the gate decides.

    comparison = compare(environment, row, incumbent, questions, url)   the plan
    asyncio.run(play(app, environment, comparison, means, told))        played and recorded
    judged = judge(app, comparison, settings, act)                      two events

Both play at one engine at the same time, so a slow engine slows both. Tasks are drawn anew for each
evaluation, from seeds that training never uses; a killed command continues its draw. If users may
err, a task counts by the trials with verdicts of both, and a surplus of the candidate's unjudged
trials beyond chance counts as failed. Guarantee: the gate reads the verdicts in the tables, and all
ids follow from the comparison. Not covered: a killed attempt's tokens count as the mean.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.rollouts import RolloutConduct, read_conduct
from consumers.reads.serving import AdapterRow
from daemon.core.decision_log import Act, Decisions
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Conduct, Evaluation, TokenParts, TokenUse
from daemon.evaluation.gate.pairs import Pair, TooFewTrials, count_surplus
from daemon.evaluation.run import (
    Line,
    Means,
    ModelEndpoint,
    Run,
    Selection,
    Slot,
    Spec,
    digest_of,
    load_run,
    lock_evaluation,
    outcomes_of,
    play_run,
    prepare_setup,
    survey,
)
from daemon.evaluation.targets import PlannedTarget
from daemon.evaluation.user_faults import FaultCount, describe_faults, pair_judged, shrink_target
from envs.environment import Environment
from envs.episode import Termination
from envs.statistics import Outcomes
from events import private
from events.canonical import exact_json, sha256
from events.envelope import derive_id
from events.errors import KintsugiError
from events.gate import GateReport, GateSettings
from events.learning import Decision
from events.lifecycle import SERVING
from events.serving import AdapterEvaluated, GateDecided, PassRates
from producers.simulation import name_fallible_user

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App
    from envs.evaluation import Attempt

FIRST_TASK: Final = 1 << 32
"""First seed of gates' tasks; training uses seeds from 0 up to here."""
TASKS: Final = 1 << 24
"""Distance between the first tasks of two evaluations."""
_VIOLATION: Final = "policy_violation"


class NoTarget(KintsugiError):
    """The kind of task to improve is unknown, or the environment lacks it."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Numbers and kinds of the tasks of a comparison."""

    tasks: int
    """Number of the target's tasks; tasks of other kinds come in addition."""
    others: int
    """Number of tasks of all other kinds together."""
    trials: int
    target: str | None = None
    """Kind of task to improve; None: the adapter's own capability."""
    seed: int | None = None
    """Seed of the tasks; None: computed from the adapters and their number of comparisons."""
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float = 300.0


@dataclass(slots=True)
class Side:
    """One of the two players, and its run."""

    spec: Spec
    lines: Sequence[Line]
    run: Run | None = None

    @property
    def digest(self) -> str:
        return digest_of(self.spec, self.lines)


@dataclass(slots=True)
class Comparison:
    """A planned comparison: two players of the same tasks."""

    adapter: AdapterRow
    incumbent: str | None
    target: str
    planned: int
    candidate: Side
    opponent: Side
    users: str | None = None
    """Model that plays the users if it may err, else None."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Rollout -> tokens that the model wrote."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return the side of the adapter, then that of the incumbent."""
        return self.candidate, self.opponent

    @property
    def attempts(self) -> int:
        """Return the number of attempts of both sides together."""
        return 2 * len(self.candidate.lines) * self.candidate.spec.trials

    @property
    def digest(self) -> str:
        """Return the comparison's name: equal for equal comparisons."""
        return sha256(exact_json([self.candidate.digest, self.opponent.digest]))


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Result of a comparison."""

    rates: PassRates
    report: GateReport
    user_faults: str | None = None
    """Sentence on the users' errors in both sides' trials; None without errors."""


def compare(
    environment: Environment,
    row: AdapterRow,
    incumbent: AdapterRow | None,
    questions: Questions,
    url: str,
    earlier: int,
) -> Comparison:
    """Plan a comparison. `earlier` counts the adapter's evaluations; an `incumbent` of None is the
    base. Raises NoTarget, UnknownTask, EnvironmentFailure."""
    target = questions.target or row.capability
    if target is None or target not in environment.capabilities:
        raise NoTarget(
            f"{row.adapter} is for {target!r}, and {environment.name} has "
            f"{', '.join(environment.capabilities)}; name what it is to be better at: --target"
        )
    opponent = None if incumbent is None else incumbent.adapter
    seed = questions.seed
    if seed is None:
        names = [row.adapter, opponent or "", environment.name, str(earlier)]
        seed = Random("evaluation " + "\x1f".join(names)).getrandbits(31)
    selection = Selection(ids=tuple(_tasks(environment, target, questions, seed)))

    def side(version: AdapterRow | None) -> Side:
        model = row.base if version is None else version.adapter
        spec = Spec(
            environment=environment.name,
            selection=selection,
            trials=questions.trials,
            seed=seed,
            agent=ModelEndpoint(url, model, questions.temperature, questions.max_tokens),
            user=None,
            candidates=1,
            timeout=questions.timeout,
            alias=row.alias,
            base=row.base,
            composition=None if version is None else version.composition,
        )
        return Side(spec, survey(environment, spec))

    return Comparison(
        row, opponent, target, questions.tasks, side(row), side(incumbent),
        name_fallible_user(environment),
    )  # fmt: skip


def _tasks(environment: Environment, target: str, questions: Questions, seed: int) -> Iterator[str]:
    """Yield the ids of all tasks; the target's tasks are spread evenly among the others."""
    first = FIRST_TASK + (seed % TASKS) * TASKS
    others = {name: 1.0 for name in environment.capabilities if name != target}
    kinds = [{target: 1.0}] * questions.tasks + [others] * (questions.others if others else 0)
    Random(f"order {seed}").shuffle(kinds)
    for number, shares in enumerate(kinds):
        task = next(iter(islice(environment.mixture(shares, seed + number, first + number), 1)))
        yield task.id


async def play(
    app: "App",
    environment: Environment,
    comparison: Comparison,
    means: Means,
    progress: "Callable[[list[Attempt]], None]",
) -> None:
    """Play all missing attempts, both sides at once. Raises EvaluationBusy and the errors of
    `play_run`."""
    with lock_evaluation(app.home, comparison.digest):
        app.settle()
        comparison.tokens = _read_notes(_notes(app, comparison))
        with app.reading() as connection:
            for side in comparison.sides:
                run = Run(side.digest, 1, side.lines, side.spec.trials)
                side.run = load_run(connection, run)
        await asyncio.gather(
            *(
                _play(app, environment, comparison, side, means, progress)
                for side in comparison.sides
            )
        )
        app.settle()


async def _play(
    app: "App",
    environment: Environment,
    comparison: Comparison,
    side: Side,
    means: Means,
    progress: "Callable[[list[Attempt]], None]",
) -> None:
    assert side.run is not None, "a side has a run before it is played"
    async with AsyncExitStack() as stack:
        setup = await prepare_setup(stack, environment, side.spec, means)
        batches = play_run(app, setup, side.spec, side.run, means.concurrency)
        async with aclosing(batches) as recorded:
            async for batch in recorded:
                _note(app, comparison, batch)
                progress([attempt for _, attempt in batch])


def judge(
    app: "App", comparison: Comparison, settings: GateSettings, act: Act, spent: bool = False
) -> ComparisonResult:
    """Return the gate's decision, and append measurement and decision. `spent`: no more will be
    played, so anything unproven counts as false. Raises TooFewTrials, DecisionRefusal."""
    pairs = _pairs(comparison)
    with app.reading() as connection:
        conducts = [_conduct(connection, side, comparison.tokens) for side in comparison.sides]
    candidate, incumbent = conducts
    target = PlannedTarget.of_count(comparison.target, comparison.planned)
    if comparison.users is not None:
        target = shrink_target(target, pairs)
    evaluation = Evaluation([target], pairs, incumbent, candidate)
    rates = PassRates(
        incumbent=mean(mean(pair.incumbent) for pair in pairs),
        candidate=mean(mean(pair.candidate) for pair in pairs),
    )
    report = decide(evaluation, settings, spent=spent)
    _say(app, comparison, act, rates, report, len(pairs))
    return ComparisonResult(rates, report, _describe_user_faults(comparison))


def _describe_user_faults(comparison: Comparison) -> str | None:
    if comparison.users is None:
        return None
    candidate, incumbent = (
        FaultCount(
            side.spec.agent.model,
            sum(_is_user_error(side.run, slot) for slot in side.run.slots),
            len(side.lines) * side.run.trials,
        )
        for side in comparison.sides
        if side.run is not None
    )
    outcomes = [_outcomes(side) for side in comparison.sides]
    tasks = [line.id for line in comparison.candidate.lines]
    surplus = count_surplus(outcomes[1], outcomes[0], tasks)
    return describe_faults(comparison.users, incumbent, candidate, surplus)


def _say(
    app: "App", comparison: Comparison, act: Act, rates: PassRates, report: GateReport, tasks: int
) -> None:
    """Append measurement and decision in one batch, unless an earlier try has appended them."""
    row, decisions, origin = comparison.adapter, Decisions(app), comparison.digest
    decisions_by_step = _steps(comparison, rates, report, tasks)
    with app.reading() as connection:
        steps = serving.steps_of(connection, derive_id(origin, next(reversed(decisions_by_step))))
    if any(step.refused is None for step in steps):
        return
    arguments = {"adapter": row.adapter, "environment": comparison.candidate.spec.environment}
    decisions.take_all(
        decisions_by_step, decisions.act(act, "adapters evaluate", arguments), origin
    )


def _steps(
    comparison: Comparison, rates: PassRates, report: GateReport, tasks: int
) -> dict[str, Decision]:
    """Return step -> decision; for an adapter that serves, the gate's decisions are left out."""
    row, spec = comparison.adapter, comparison.candidate.spec
    measured = AdapterEvaluated(
        adapter=row.adapter,
        incumbent=comparison.incumbent,
        environment=spec.environment,
        tasks=tasks,
        trials=spec.trials,
        pass_hat_1=rates,
    )
    if row.state in SERVING:
        return {"evaluated": measured}
    decided = GateDecided(
        adapter=row.adapter, alias=row.alias, incumbent=comparison.incumbent, report=report
    )
    return {"evaluated": measured, f"gate {report.decision}": decided}


def _pairs(comparison: Comparison) -> list[Pair]:
    candidate, incumbent = (_outcomes(side) for side in comparison.sides)
    slices = {line.id: line.capability for line in comparison.candidate.lines}
    if missing := sorted(slices.keys() - (candidate.keys() & incumbent.keys())):
        raise TooFewTrials(
            f"nobody could judge {len(missing)} tasks, {missing[0]} among them; run the same "
            "command again, and it plays those that machines spoiled"
        )
    trials = comparison.candidate.spec.trials
    return pair_judged((incumbent, candidate), slices, trials, comparison.users)


def _outcomes(side: Side) -> Outcomes:
    """Return task -> verdicts of its trials, without tasks that machines spoiled. A task whose
    users erred in all trials has no verdicts."""
    run = side.run
    assert run is not None, "a side is judged after it was played"
    spoilt_by_users = {
        line.id: [None] * run.trials
        for line in side.lines
        if all(_is_user_error(run, (line.id, trial)) for trial in range(run.trials))
    }
    return {**spoilt_by_users, **outcomes_of(run, side.lines)}


def _is_user_error(run: Run, slot: Slot) -> bool:
    verdict = run.ended.get(slot)
    return verdict is not None and verdict.termination == Termination.USER_ERROR


def _conduct(connection: "Connection", side: Side, tokens: Mapping[str, int]) -> Conduct:
    assert side.run is not None, "a side is judged after it was played"
    ids = [side.run.rollout(slot, max(0, side.run.tries[slot] - 1)) for slot in side.run.slots]
    return conduct_in(connection, ids, tokens)


def conduct_in(
    connection: "Connection",
    ids: Sequence[str],
    tokens: Mapping[str, int],
    begun_after_error: Collection[str] | None = None,
) -> Conduct:
    """Return the conduct in these rollouts, from the tables; `tokens` has known counts. Rollouts
    with a refused call, or of tasks in `begun_after_error`, count apart unless that is None."""
    rows = read_conduct(connection, ids)
    whole = _measure_tokens(ids, tokens, len(rows))
    parts = None
    if begun_after_error is not None:
        refused = {row.rollout for row in rows if row.tool_errors or row.task in begun_after_error}
        clean = {row.rollout for row in rows} - refused
        parts = TokenParts(
            _measure_tokens(clean, tokens, len(clean)),
            _measure_tokens(refused, tokens, len(refused)),
        )
    return Conduct(
        rollouts=len(rows),
        violations=sum(_VIOLATION in row.categories for row in rows),
        tool_calls=sum(row.tool_calls for row in rows),
        malformed=sum(row.malformed_calls for row in rows),
        tokens=whole.tokens,
        token_spread=whole.spread,
        violating=_violation_rates(rows),
        parts=parts,
    )


def _measure_tokens(ids: Iterable[str], tokens: Mapping[str, int], count: int) -> TokenUse:
    """Return the token use of `count` rollouts, estimated from those with known tokens."""
    known = [tokens[rollout] for rollout in ids if rollout in tokens]
    return TokenUse(
        rollouts=count,
        tokens=round(mean(known) * count) if known else 0,
        spread=stdev(known) if len(known) > 1 else 0.0,
    )


def _violation_rates(rows: Sequence[RolloutConduct]) -> dict[str, float]:
    trials: dict[str, list[bool]] = {}
    for row in rows:
        if row.task is not None:
            trials.setdefault(row.task, []).append(_VIOLATION in row.categories)
    return {task: mean(each) for task, each in trials.items()}


# Token counts, which the log does not hold


def _notes(app: "App", comparison: Comparison) -> Path:
    return app.home / "evaluations" / f"{comparison.digest[:16]}.tokens"


def _read_notes(path: Path) -> dict[str, int]:
    """Return rollout -> tokens from a file; skip a last line that a kill cut short."""
    if not path.exists():
        return {}
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) == 3}


def _note(app: "App", comparison: Comparison, batch: "Sequence[tuple[str, Attempt]]") -> None:
    counts = {
        rollout: attempt.usage.completion_tokens
        for rollout, attempt in batch
        if attempt.usage.completion_tokens is not None
    }
    comparison.tokens |= counts
    with open(_notes(app, comparison), "a", opener=private.opener) as file:
        file.writelines(f"{rollout} {tokens} tokens\n" for rollout, tokens in counts.items())
