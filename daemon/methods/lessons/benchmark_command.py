"""`kintsugi bench reflection`: Tool-Reflection-Bench for any endpoint."""

import asyncio
import os
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from daemon.cli.bench import (
    BaseUrl,
    Extra,
    KeyVariable,
    ModelName,
    MovedFrom,
    Retries,
    Seed,
    Timeout,
)
from daemon.cli.command import DONE, PARTLY, Cli, command
from daemon.cli.output import format_interval, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from daemon.methods.lessons.reflection_benchmark import Answer, Answers, Item, Settings, Slot

_SHOWN: Final = 5


def register(group: typer.Typer) -> None:
    """Register the command with the group `kintsugi bench`."""
    command(group, "reflection")(score_reflections)


def score_reflections(
    cli: Cli,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="Items of Tool-Reflection-Bench."
        ),
    ],
    base_url: BaseUrl,
    model: ModelName,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Answers to each item.")] = 8,
    first: Annotated[
        int | None, typer.Option("--items", min=1, metavar="N", help="The first N.")
    ] = None,
    dialect: Annotated[
        Literal["auto", "qwen", "llama"],
        typer.Option(help="How the model writes calls; auto: by its name, as officially."),
    ] = "auto",
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling.")] = 0.7,
    top_p: Annotated[float, typer.Option(min=0.001, max=1, help="Of sampling.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer.")] = 1024,
    extra: Extra = None,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    timeout: Timeout = 300.0,
    retries: Retries = 5,
    api_key_env: KeyVariable = "OPENAI_API_KEY",
    moved_from: MovedFrom = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask for all answers again.")] = False,
) -> int:
    """Score repairs of failed calls. Killed, the same command goes on where it was."""
    from daemon.cli.evaluation import parse_json_object
    from daemon.methods.lessons.reflection_benchmark import Settings, read_items, report
    from envs.reflection.official import detect_dialect

    if not isfinite(temperature):
        raise typer.BadParameter(f"{temperature} is no number", param_hint="--temperature")
    items, damaged = read_items(file)
    for damage in damaged[:_SHOWN]:
        cli.out.warn(f"{file}, line {damage.line} {damage.reason}; it is left out")
    if len(damaged) > _SHOWN:
        cli.out.warn(f"{len(damaged) - _SHOWN:,} more lines are no items")
    settings = Settings(
        base_url=base_url,
        model=model,
        dialect=detect_dialect(model) if dialect == "auto" else dialect,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        extra=parse_json_object(extra),
        moved_from=moved_from,
    )
    chosen = items[:first]
    slots = [(item.line, sample) for item in chosen for sample in range(samples)]
    requests = _Requests(concurrency, timeout, retries, os.environ.get(api_key_env))
    answers = _collect(cli, settings, items, slots, requests, fresh)
    result = report(chosen, answers, samples, settings)
    if cli.out.json:
        cli.out.document(result)
    else:
        _print(cli, result)
    return PARTLY if damaged or result["unjudged"] else DONE


@dataclass(frozen=True, slots=True)
class _Requests:
    """How requests are sent; none of it changes an answer."""

    concurrency: int
    timeout: float
    retries: int
    key: str | None


def _collect(
    cli: Cli,
    settings: "Settings",
    items: "Sequence[Item]",
    slots: "Sequence[Slot]",
    requests: _Requests,
    fresh: bool,
) -> "Mapping[Slot, Answer]":
    """Ask for the answers that are not stored yet, and return all."""
    from daemon.evaluation.run import lock_evaluation
    from daemon.methods.lessons.reflection_benchmark import Answers, digest_of

    digest = digest_of(settings, items)
    with cli.app() as app, lock_evaluation(app.home, digest):
        path = app.home / "evaluations" / f"reflection-{digest[:16]}.jsonl"
        if fresh:
            path.unlink(missing_ok=True)
        with Answers(path) as answers:
            missing = [slot for slot in slots if slot not in answers.known]
            if stored := len(slots) - len(missing):
                cli.out.hint(f"{stored:,} answers of this run are in {path} already")
            if missing:
                with cli.out.progress("Asking", len(missing), "answers") as advance:
                    spoilt = asyncio.run(_ask(settings, items, missing, answers, requests, advance))
                _warn(cli, spoilt)
    return answers.known


async def _ask(
    settings: "Settings",
    items: "Sequence[Item]",
    missing: "Sequence[Slot]",
    answers: "Answers",
    requests: _Requests,
    advance: "Callable[[int], None]",
) -> list[str]:
    import stamina.instrumentation

    from daemon.methods.lessons.reflection_benchmark import ask_all
    from envs.endpoint import Endpoint

    # It would log each retry; the reason of a failure tells the result.
    stamina.instrumentation.set_on_retry_hooks(())
    async with Endpoint(
        settings.base_url,
        settings.model,
        api_key=requests.key,
        concurrency=requests.concurrency,
        timeout=requests.timeout,
        attempts=requests.retries + 1,
    ) as endpoint:
        await endpoint.check()
        return await ask_all(
            endpoint, settings, items, missing, answers, requests.concurrency, advance
        )


def _warn(cli: Cli, spoilt: list[str]) -> None:
    for reason in spoilt[:_SHOWN]:
        cli.out.warn(f"{reason}; it is unjudged, and the same command asks again")
    if len(spoilt) > _SHOWN:
        cli.out.warn(f"{len(spoilt) - _SHOWN:,} more samples are unjudged")


def _print(cli: Cli, result: dict[str, Any]) -> None:
    depths = list(result["mended"]["repair_at"])
    columns = ["items", "rule", "n", *(f"Repair@{k}" for k in depths)]
    columns += [f"any of {k}" for k in depths if k != "1"]
    groups = {"all": result, **result["per_operator"]}
    rows = [
        [
            name,
            rule,
            f"{group['n']:,}",
            *(format_interval(group[rule]["repair_at"].get(k)) for k in depths),
            *(format_interval(group[rule]["any_of"].get(k)) for k in depths if k != "1"),
        ]
        for name, group in groups.items()
        for rule in ("official", "mended")
    ]
    cli.out.show(table(columns, rows, right=columns[2:], whole=("items", "rule")), "")
    gold = result["gold"]
    cli.out.show(
        f"{result['samples']:,} samples of each item; gold itself passes the official rule in "
        f"{gold['official']:.1%} of the items, and the mended one in {gold['mended']:.1%}"
    )
    if result["failures"]:
        ended = ", ".join(f"{name} {times:,}" for name, times in result["failures"].items())
        cli.out.show(f"samples without an answer, which are wrong: {ended}")
    if result["unjudged"]:
        cli.out.hint(f"{result['unjudged']:,} samples are unjudged; the same command asks again")
