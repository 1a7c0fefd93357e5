"""`kintsugi eval`: evaluate an agent behind an endpoint on tasks."""

import asyncio
import json
import os
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import DONE, PARTLY, Cli, check_name, command
from daemon.cli.output import format_interval, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from daemon.cli.methods import AttemptObserver
    from daemon.core.app import App
    from daemon.evaluation.run import Means, Run, Selection, Spec
    from envs.environment import Environment
    from envs.evaluation import Attempt
    from envs.grading import Grade
    from envs.task import Operator

GENERATED: Final = "generated"
SCENARIOS: Final = "scenarios"
"""The split of generated tasks, and the split of tasks given by --scenarios."""

_ROUNDING: Final = 1e-9
"""A sum of rates may exceed 1 by this much because of rounding."""

_SHOWN: Final = 5
"""Number of unjudged attempts, remarks and defects that stderr shows; the log has all attempts."""

# The options of each panel of the help.
_task_option = partial(typer.Option, rich_help_panel="Which tasks")
_agent_option = partial(typer.Option, rich_help_panel="The agent")
_user_option = partial(typer.Option, rich_help_panel="The user")
_run_option = partial(typer.Option, rich_help_panel="The run")


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app, "eval")(evaluate)


def evaluate(
    cli: Cli,
    env: Annotated[
        str,
        _task_option(
            metavar="NAME[,NAME...]", help="Name or path of the environment, or several names."
        ),
    ],
    base_url: Annotated[str, _agent_option(help="Of the endpoint, up to /v1.")],
    model: Annotated[str, _agent_option(help="As the endpoint calls it.")],
    split: Annotated[str, _task_option(help="kintsugi env ls lists them.")] = GENERATED,
    tasks: Annotated[int | None, _task_option(min=1, metavar="N", help="The first N.")] = None,
    task: Annotated[
        list[str] | None, _task_option(metavar="ID", help="This task; may be repeated.")
    ] = None,
    capability: Annotated[
        list[str] | None, _task_option(help="Only this kind; may be repeated.")
    ] = None,
    mix: Annotated[
        str | None,
        _task_option(metavar="KIND=SHARE,...", help="Generate --tasks N tasks in these shares."),
    ] = None,
    inject: Annotated[
        list[str] | None,
        _task_option(
            metavar="OP=RATE",
            help="Begin this share of the tasks behind a wrong call: swap, redundant, missing or "
            "argument; may be repeated.",
        ),
    ] = None,
    scenarios: Annotated[
        Path | None,
        _task_option(
            metavar="FILE", exists=True, dir_okay=False, help="Exported scenarios, of toolsandbox."
        ),
    ] = None,
    trials: Annotated[int, _run_option(min=1, help="Attempts at each task.")] = 1,
    seed: Annotated[int, _run_option(help="All others follow from it.")] = 0,
    concurrency: Annotated[int, _run_option(min=1, help="Episodes at once.")] = 16,
    timeout: Annotated[float, _run_option(min=0.001, help="Seconds for one answer.")] = 300.0,
    retries: Annotated[
        int, _run_option(min=0, help="Of a request, while the endpoint is busy.")
    ] = 5,
    temperature: Annotated[
        float | None, _agent_option(min=0, help="Default: the endpoint's.")
    ] = None,
    max_tokens: Annotated[int | None, _agent_option(min=1, help="Of one answer.")] = None,
    extra: Annotated[
        str | None, _agent_option(metavar="JSON", help="Further fields of each request.")
    ] = None,
    api_key_env: Annotated[
        str, _agent_option(metavar="NAME", help="Environment variable that holds the key.")
    ] = "OPENAI_API_KEY",
    alias: Annotated[str, _agent_option(help="Name under which the agent is served.")] = "agent",
    base: Annotated[str | None, _agent_option(help="Base model; default: the model.")] = None,
    moved_from: Annotated[
        str | None,
        _agent_option(
            metavar="URL", help="Its address when this evaluation was begun, which goes on."
        ),
    ] = None,
    user_model: Annotated[
        str | None, _user_option(help="Plays the user; default: a script.")
    ] = None,
    user_base_url: Annotated[str | None, _user_option(help="Default: the agent's.")] = None,
    user_moved_from: Annotated[
        str | None,
        _user_option(
            metavar="URL", help="Default: --moved-from, where it is at the agent's endpoint."
        ),
    ] = None,
    user_best_of: Annotated[int, _user_option(min=1, max=16, help="Candidates per line.")] = 1,
    user_api_key_env: Annotated[
        str, _user_option(metavar="NAME", help="Environment variable that holds its key.")
    ] = "OPENAI_API_KEY",
) -> int:
    """Evaluate an agent on tasks. Killed, the same command goes on where it was."""
    from daemon.cli.methods import inject_mistakes
    from daemon.evaluation.run import Means, ModelEndpoint, Spec

    if user_model is None and (user_base_url or user_moved_from or user_best_of > 1):
        raise typer.BadParameter("name the model too", param_hint="--user-model")
    for name, value in (("--model", model), ("--alias", alias), ("--base", base or model)):
        check_name(name, value)
    if scenarios is not None and split == GENERATED:
        split = SCENARIOS
    fields = parse_json_object(extra)
    agent = ModelEndpoint(base_url, model, temperature, max_tokens, fields, moved_from)
    user = None
    if user_model is not None:
        first = user_moved_from or (None if user_base_url else moved_from)
        user = ModelEndpoint(user_base_url or base_url, user_model, moved_from=first)
    selection = _selection(split, tasks, task or [], capability or [], mix)
    names = _split_names(env, selection, scenarios)
    rates = _read_rates(inject or [])
    specs = {
        name: inject_mistakes(
            Spec(
                environment=name,
                selection=selection,
                trials=trials,
                seed=seed,
                agent=agent,
                user=user,
                candidates=user_best_of,
                timeout=timeout,
                alias=alias,
                base=base or model,
            ),
            rates,
        )
        for name in names
    }
    loaded = {name: _load(cli, name, split, scenarios) for name in names}
    keys = os.environ.get(api_key_env), os.environ.get(user_api_key_env)
    means = Means(keys[0], keys[1], concurrency, retries)
    played = {
        name: play_evaluation(cli, environment, specs[name], means)
        for name, (environment, _) in loaded.items()
    }
    _show(cli, played)
    damaged = any(count for _, count in loaded.values())
    return PARTLY if damaged or any(item.result["unjudged"] for item in played.values()) else DONE


def _split_names(env: str, selection: "Selection", scenarios: Path | None) -> list[str]:
    if "," not in env or Path(env).exists():
        return [env]
    names = [name.strip() for name in env.split(",")]
    options = (
        ("--task", selection.ids), ("--capability", selection.capabilities),
        ("--mix", selection.mix), ("--scenarios", scenarios),
    )  # fmt: skip
    for option, value in options:
        if value:
            raise typer.BadParameter(f"{env} are several; name one with --env", param_hint=option)
    if not all(names) or len(set(names)) < len(names):
        raise typer.BadParameter(
            f"{env!r} has an empty name, or one twice; give each once", param_hint="--env"
        )
    return names


def _load(cli: Cli, name: str, split: str, scenarios: Path | None) -> "tuple[Environment, int]":
    """Return the environment with its own scenarios or a file's, and the number of damaged lines.
    Raise BadParameter if the environment takes no scenarios."""
    from daemon.cli.environments import load_environment

    environment = load_environment(cli, name)
    if scenarios is None and split != SCENARIOS:
        return environment, 0
    damaged = _read_damage(name, environment, scenarios)
    for sentence in damaged:
        cli.out.warn(sentence)
    return environment, len(damaged)


def _read_damage(name: str, environment: "Environment", scenarios: Path | None) -> tuple[str, ...]:
    """Have an environment read its scenarios, or those of a file; describe each damaged line."""
    from envs.toolsandbox.environment import ToolSandbox

    if isinstance(environment, ToolSandbox):
        file = environment.file if scenarios is None else environment.use_scenarios(scenarios)
        return file.damaged
    if scenarios is None:
        return ()
    raise typer.BadParameter(
        f"{name} takes no scenarios; give --env toolsandbox", param_hint="--scenarios"
    )


def _selection(
    split: str, first: int | None, ids: list[str], capabilities: list[str], mix: str | None
) -> "Selection":
    from daemon.evaluation.run import Selection

    options = [
        name
        for name, value in (("--task", ids), ("--capability", capabilities), ("--mix", mix))
        if value
    ]
    if len(options) > 1:
        raise typer.BadParameter(
            "they exclude each other; give one", param_hint=" and ".join(options)
        )
    if mix and first is None:
        raise typer.BadParameter("say how many tasks to generate", param_hint="--tasks")
    return Selection(split, first, tuple(ids), tuple(capabilities), _shares(mix) if mix else {})


def _shares(text: str) -> dict[str, float]:
    """Parse a text of shares, such as `cancel=1,return=3`. Raise BadParameter."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise typer.BadParameter(
                f"{part!r} is not KIND=SHARE, such as cancel=0.5", param_hint="--mix"
            ) from None
    values = shares.values()
    if not all(isfinite(value) and value >= 0 for value in values) or not sum(values) > 0:
        raise typer.BadParameter(
            f"the shares in {text!r} must not be negative, and one must be positive",
            param_hint="--mix",
        )
    return shares


def _read_rates(texts: list[str]) -> "dict[Operator, float]":
    """Parse texts of rates, such as `argument=0.5`. Raise BadParameter."""
    from envs.task import PERTURBATIONS

    rates: dict[Operator, float] = {}
    for text in texts:
        name, _, rate = text.partition("=")
        operator = next((known for known in PERTURBATIONS if known == name.strip()), None)
        try:
            value = float(rate)
        except ValueError:
            value = 0.0
        if operator is None or operator in rates or not 0 < value <= 1:
            raise typer.BadParameter(
                f"{text!r} is not OP=RATE, once for an operator, with {', '.join(PERTURBATIONS)} "
                "and a rate above 0 and at most 1, such as argument=0.5",
                param_hint="--inject",
            )
        rates[operator] = value
    if sum(rates.values()) > 1 + _ROUNDING:
        raise typer.BadParameter(
            f"the rates sum to {sum(rates.values()):g}; a task has one mistake, so they may sum to "
            "1 at most",
            param_hint="--inject",
        )
    return rates


def parse_json_object(text: str | None) -> dict[str, Any]:
    """Parse the JSON object of --extra; return {} without one. Raise BadParameter."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(
            f"{text[:80]!r} is no JSON: {error}", param_hint="--extra"
        ) from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text[:80]!r} is no JSON object", param_hint="--extra")
    return value


@dataclass(frozen=True, slots=True)
class PlayedEvaluation:
    """A finished evaluation and its results."""

    run: "Run"
    idle: "Mapping[str, Grade]"
    """Task -> the grade of an agent that does nothing."""
    result: dict[str, Any]


def play_evaluation(
    cli: Cli, environment: "Environment", spec: "Spec", means: "Means"
) -> PlayedEvaluation:
    from daemon.cli.methods import open_observer
    from daemon.core.task_definitions import with_definitions
    from daemon.evaluation.run import digest_of, lock_evaluation, open_run, passive, report, survey
    from envs.task import is_content_id

    with cli.app() as app, ExitStack() as held:
        if any(map(is_content_id, spec.selection.ids)):
            app.settle()
        observer = open_observer(spec, environment)
        with_definitions(app, environment)
        lines = survey(environment, spec, None if observer is None else observer.note)
        digest = digest_of(spec, lines)
        held.enter_context(lock_evaluation(app.home, digest))
        app.settle()
        with app.reading() as connection:
            run = open_run(connection, digest, lines, spec.trials)
        if run.resumed:
            cli.out.hint(f"{run.resumed:,} attempts of this run are in the log already")
        if observer is not None:
            observer.observe_resumed(app, run)
        unscripted = 0 if spec.user else sum(not line.scripted for line in lines)
        if unscripted:
            cli.out.warn(
                f"{unscripted:,} of {len(lines):,} tasks have no script for their user: the "
                "scripted user tells all it knows and agrees to everything; let a model play it "
                "with --user-model"
            )
        with cli.out.progress("Playing", run.pending, "episodes") as advance:
            seen = asyncio.run(_play(app, environment, spec, run, means, observer, advance))
        with cli.out.progress("Doing nothing", len(lines), "episodes") as advance:
            idle = passive(environment, spec, advance)
        app.settle()
    _warn(cli, seen)
    add = None if observer is None else partial(observer.report, run)
    return PlayedEvaluation(run, idle, report(spec, run, idle, add))


class _Findings:
    def __init__(self) -> None:
        self.unjudged: list[str] = []
        self.remarks: Counter[str] = Counter()
        self.defects: Counter[str] = Counter()

    def add(self, rollout: str, attempt: "Attempt") -> None:
        if attempt.grade is None:
            self.unjudged.append(
                f"rollout {rollout} (task {attempt.task.id}, trial {attempt.trial}) is unjudged: "
                f"{attempt.termination}: {attempt.reason}"
            )
        self.remarks.update(attempt.remarks)
        self.defects.update(attempt.defects)


async def _play(
    app: "App",
    environment: "Environment",
    spec: "Spec",
    run: "Run",
    means: "Means",
    observer: "AttemptObserver | None",
    advance: "Callable[[int], None]",
) -> _Findings:
    from daemon.evaluation.run import play_run, prepare_setup

    seen = _Findings()
    async with AsyncExitStack() as stack:
        setup = await prepare_setup(stack, environment, spec, means)
        recorded = play_run(app, setup, spec, run, means.concurrency)
        async with aclosing(recorded) as batches:
            async for batch in batches:
                for rollout, attempt in batch:
                    seen.add(rollout, attempt)
                    if observer is not None:
                        observer.observe(attempt)
                advance(len(batch))
    return seen


def _warn(cli: Cli, seen: _Findings) -> None:
    for text in seen.unjudged[:_SHOWN]:
        cli.out.warn(text)
    if len(seen.unjudged) > _SHOWN:
        cli.out.warn(f"{len(seen.unjudged) - _SHOWN:,} more attempts are unjudged")
    for text, times in seen.defects.most_common(_SHOWN):
        cli.out.warn(f"a tool raised what no tool should: {text} ({times:,} times)")
    for text, times in seen.remarks.most_common(_SHOWN):
        cli.out.warn(f"{text} ({times:,} times)")


def _show(cli: Cli, played: "Mapping[str, PlayedEvaluation]") -> None:
    from daemon.evaluation.run import report_overall

    if len(played) == 1:
        (item,) = played.values()
        if cli.out.json:
            cli.out.document(item.result)
        else:
            _print(cli, item.result)
        return
    overall = report_overall({name: (item.run, item.idle) for name, item in played.items()})
    results = {name: item.result for name, item in played.items()}
    if cli.out.json:
        cli.out.document({"environments": results, "overall": overall})
        return
    for name, result in results.items():
        cli.out.show(f"{name}:", "")
        _print(cli, result)
    cli.out.show("", _overall_table(results, overall))


def _overall_table(results: "Mapping[str, dict[str, Any]]", overall: dict[str, Any]) -> Any:
    most = max((int(k) for k in overall["pass_hat"]), default=1)
    columns = ["environment", "tasks", *(f"pass^{k}" for k in range(1, most + 1))]
    rows = [
        _row(name, sum(entry["tasks"] for entry in result["per_capability"].values()),
             result["pass_hat"], most)
        for name, result in results.items()
    ]  # fmt: skip
    rows.append(_row("overall", overall["tasks"], overall["pass_hat"], most))
    return table(columns, rows, right=columns[1:], whole=("environment",))


def _print(cli: Cli, result: dict[str, Any]) -> None:
    cli.out.show(_table(result), "")
    if "similarity" in result:
        cli.out.show(_similarity_table(result), "")
    if "repair" in result:
        _print_repairs(cli, result)
    ended = ", ".join(f"{name} {times:,}" for name, times in result["terminations"].items())
    cli.out.show(f"{result['tasks']:,} tasks, {result['trials']:,} trials; ended by {ended}")
    for basis, tasks in result["unevaluated"].items():
        cli.out.show(
            f"{len(tasks):,} tasks need a judge ({basis}) and are not counted; without the judge's "
            f"part pass^1 of all tasks is {_read_pass_1(result['without_judge'])}"
        )
    if result["unjudged"]:
        cli.out.hint(
            f"{result['unjudged']:,} attempts are unjudged; the same command plays those again "
            "that machines spoiled"
        )
    if result["pass_hat"].get("1", {"value": 1.0})["value"] < 1:
        cli.out.hint("see what failed: kintsugi rollouts ls --failed")


def _table(result: dict[str, Any]) -> Any:
    most = max((int(k) for k in result["pass_hat"]), default=1)
    columns = ["capability", "tasks", *(f"pass^{k}" for k in range(1, most + 1))]
    rows = [
        _row(name, entry["tasks"], entry["pass_hat"], most)
        for name, entry in result["per_capability"].items()
    ]
    judged = sum(entry["tasks"] for entry in result["per_capability"].values())
    rows.append(_row("overall", judged, result["pass_hat"], most))
    rows.append(_row("doing nothing", judged, {"1": result["do_nothing"]}, 1))
    rows[-1] += [None] * (most - 1)
    return table(columns, rows, right=columns[1:], whole=("capability",))


def _print_repairs(cli: Cli, result: dict[str, Any]) -> None:
    cli.out.show(_repair_table(result["repair"]), "")
    for name, what in (("clean", "without"), ("injected", "with")):
        part, repeated = result[name], result["redundant_calls"][name]
        if repeated is None:
            continue  # there is no such task, or no attempt at one was judged
        cli.out.show(
            f"{part['tasks']:,} tasks {what} an injected mistake: pass^1 "
            f"{_read_pass_1(part)}, {repeated:.2f} redundant calls an episode"
        )
    for operator, row in result["repair"].items():
        if row["not_injected"]:
            cli.out.warn(
                f"{row['not_injected']:,} tasks were drawn for {operator} and began without a "
                "mistake, because it makes none in them"
            )


def _repair_table(repairs: dict[str, Any]) -> Any:
    shown = sorted({k for row in repairs.values() for k in row["interval"]}, key=int)
    columns = ["operator", "tasks"]
    columns += [f"Repair@{k}" for k in shown] + [f"official @{k}" for k in shown]
    rows = []
    for operator, row in repairs.items():
        estimates: list[str | None] = [
            None
            if k not in row["interval"]
            else f"{row[k]:.3f} [{row['interval'][k][0]:.2f}, {row['interval'][k][1]:.2f}]"
            for k in shown
        ]
        official = [f"{row['official'][k]:.3f}" if k in row["official"] else None for k in shown]
        rows.append([operator, f"{row['n']:,}", *estimates, *official])
    return table(columns, rows, right=columns[1:], whole=("operator",))


def _similarity_table(result: dict[str, Any]) -> Any:
    columns = ["category", "tasks", "similarity", "perfect", "doing nothing"]
    groups = {
        **result["categories"],
        "all that can be fulfilled": result["others"],
        "all that cannot": result["insufficient_information"],
    }
    rows = [
        [
            name,
            f"{group['n']:,}",
            *(
                None if group[key] is None else f"{group[key]:.3f}"
                for key in ("similarity", "perfect", "do_nothing_similarity")
            ),
        ]
        for name, group in groups.items()
    ]
    return table(columns, rows, right=columns[1:], whole=("category",))


def _row(name: str, tasks: int, pass_hat: dict[str, Any], most: int) -> list[Any]:
    intervals = (format_interval(pass_hat.get(str(k))) for k in range(1, most + 1))
    return [name, f"{tasks:,}", *intervals]


def _read_pass_1(part: dict[str, Any]) -> str | None:
    return format_interval(part["pass_hat"].get("1"))
