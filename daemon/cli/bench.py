"""`kintsugi bench`: published benchmarks for any endpoint."""

import os
from math import isfinite
from typing import Annotated, Any

import typer

from daemon.cli.command import DONE, PARTLY, Cli, command, noun
from daemon.cli.output import format_interval, table

group = noun("bench", "Published benchmarks for any endpoint.")

BaseUrl = Annotated[str, typer.Option(help="Of the endpoint, up to /v1.")]
ModelName = Annotated[str, typer.Option(help="As the endpoint calls it.")]
Extra = Annotated[str | None, typer.Option(metavar="JSON", help="Further fields of each request.")]
Seed = Annotated[int, typer.Option(help="All others follow from it.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds for one answer.")]
Retries = Annotated[int, typer.Option(min=0, help="Of a request, while it fails.")]
KeyVariable = Annotated[
    str, typer.Option(metavar="NAME", help="Environment variable that holds the key.")
]
MovedFrom = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The endpoint's address when this run was begun, which goes on."
    ),
]


@command(group)
def bfcl(
    cli: Cli,
    base_url: BaseUrl,
    model: ModelName,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="base, miss_func, miss_param or long_context; may be repeated. Default: all."
        ),
    ] = None,
    cases: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The first N of each category.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Attempts at each case.")] = 1,
    temperature: Annotated[
        float, typer.Option(min=0, help="Of sampling; default: BFCL's own.")
    ] = 0.001,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Of one answer; default: BFCL's own.")
    ] = 4096,
    extra: Extra = None,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    timeout: Timeout = 300.0,
    retries: Retries = 5,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    alias: Annotated[str, typer.Option(help="Name under which the agent is served.")] = "agent",
    base: Annotated[str | None, typer.Option(help="Base model; default: the model.")] = None,
    moved_from: MovedFrom = None,
) -> int:
    """Score BFCL's multi-turn categories. Killed, the same command goes on where it was."""
    from daemon.cli.environments import load_environment
    from daemon.cli.evaluation import parse_json_object, play_evaluation
    from daemon.evaluation.bfcl_benchmark import Category, read_official, report, survey_categories
    from daemon.evaluation.run import Means, ModelEndpoint, Selection, Spec
    from envs.bfcl.cases import SPLITS
    from envs.bfcl.environment import Bfcl

    if not isfinite(temperature):
        raise typer.BadParameter(f"{temperature} is no number", param_hint="--temperature")
    if unknown := set(category or ()) - set(SPLITS):
        raise typer.BadParameter(
            f"{min(unknown)!r} is none of {', '.join(SPLITS)}", param_hint="--category"
        )
    environment = load_environment(cli, Bfcl.name)
    assert isinstance(environment, Bfcl), "it is built in"
    splits, lacking = survey_categories(environment, tuple(dict.fromkeys(category or SPLITS)))
    for name, reason in lacking.items():
        cli.out.warn(f"the category {name} is left out: {reason}")
    means = Means(os.environ.get(api_key_env), None, concurrency, retries)
    agent = ModelEndpoint(
        base_url, model, temperature, max_tokens, parse_json_object(extra), moved_from
    )
    played: dict[str, Category] = {}
    for name, split in splits.items():
        spec = Spec(
            environment=environment.name,
            selection=Selection(split, cases),
            trials=trials,
            seed=seed,
            agent=agent,
            user=None,
            candidates=1,
            timeout=timeout,
            alias=alias,
            base=base or model,
        )
        item = play_evaluation(cli, environment, spec, means)
        with cli.app() as app:
            played[name] = Category(item.run, item.idle, read_official(app, item.run))
    result = report(played, lacking)
    if cli.out.json:
        cli.out.document(result)
    else:
        _print_bfcl(cli, result)
    return PARTLY if lacking or result["unjudged"] else DONE


def _print_bfcl(cli: Cli, result: dict[str, Any]) -> None:
    powers = list(result["official"])
    columns = ["category", "cases", *(f"official ^{k}" for k in powers)]
    columns += [f"strict ^{k}" for k in powers]
    groups = {**result["per_category"], "overall": result}
    rows = [
        [
            name,
            f"{group['tasks']:,}",
            *(
                format_interval(group[rule].get(k))
                for rule in ("official", "strict")
                for k in powers
            ),
        ]
        for name, group in groups.items()
    ]
    cli.out.show(table(columns, rows, right=columns[1:], whole=("category",)), "")
    idle = result["do_nothing"]
    cli.out.show(
        f"doing nothing: official {format_interval(idle['official'])}, "
        f"strict {format_interval(idle['strict'])}"
    )
    ended = ", ".join(f"{name} {times:,}" for name, times in result["terminations"].items())
    cli.out.show(f"{result['trials']:,} trials of each case; ended by {ended}")
    if result["unjudged"]:
        cli.out.hint(f"{result['unjudged']:,} attempts are unjudged; the same command plays again")
